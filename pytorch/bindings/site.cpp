#include "site.hpp"

#include <set>
#include <string>

namespace tessera::python {
namespace {

// The package's own folder, with the separator at its end.
std::string& package_folder() {
  static std::string folder;
  return folder;
}

// The name of a file for as long as the process lives. Both caches are guarded by the GIL.
const char* kept_name(PyObject* filename) {
  static std::set<std::string, std::less<>> names;
  static struct {
    PyObject* object = nullptr;
    const char* name = nullptr;
  } last;
  if (filename == last.object) return last.name;
  const char* const text = PyUnicode_AsUTF8(filename);
  if (text == nullptr) {
    PyErr_Clear();
    return "";
  }
  auto at = names.find(std::string_view(text));
  if (at == names.end()) at = names.emplace(text).first;
  Py_XDECREF(last.object);
  Py_INCREF(filename);
  last.object = filename;
  return last.name = at->c_str();
}

bool in_package(PyObject* filename) {
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(filename, &length);
  if (text == nullptr) PyErr_Clear();
  const std::string& folder = package_folder();
  return text != nullptr && std::string_view(text, static_cast<size_t>(length)).starts_with(folder);
}

}  // namespace

void set_package_folder(const char* folder) { package_folder() = folder; }

Site site_at(PyObject* filename, long line) { return {kept_name(filename), static_cast<uint32_t>(line)}; }

Site site_of_user() {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    PyObject* const filename = code->co_filename;
    PyFrameObject* const outer = in_package(filename) ? PyFrame_GetBack(frame) : nullptr;
    if (outer == nullptr) {
      const Site site = site_at(filename, PyFrame_GetLineNumber(frame));
      Py_DECREF(code);
      Py_DECREF(frame);
      return site;
    }
    Py_DECREF(code);
    Py_DECREF(frame);
    frame = outer;
  }
  return {};
}

}  // namespace tessera::python
