#include "site.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace tessera::python {
namespace {

std::vector<std::string>& library_paths() {
  static std::vector<std::string> paths;
  return paths;
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

bool in_library(PyObject* filename) {
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(filename, &length);
  if (text == nullptr) {
    PyErr_Clear();
    return false;
  }
  const std::string_view name(text, static_cast<size_t>(length));
  const auto& paths = library_paths();
  return std::any_of(paths.begin(), paths.end(), [&](const std::string& path) { return name.starts_with(path); });
}

}  // namespace

bool set_library_paths(PyObject* paths) {
  PyObject* const list = PySequence_Fast(paths, "the paths are no sequence");
  if (list == nullptr) return false;
  std::vector<std::string> names;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
    const char* const name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(list, i));
    if (name != nullptr) names.emplace_back(name);
  }
  Py_DECREF(list);
  if (PyErr_Occurred() != nullptr) return false;
  library_paths() = std::move(names);
  return true;
}

Site site_at(PyObject* filename, long line) { return {kept_name(filename), static_cast<uint32_t>(line)}; }

Site site_of_user() {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    PyObject* const filename = code->co_filename;
    PyFrameObject* const outer = in_library(filename) ? PyFrame_GetBack(frame) : nullptr;
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

Site site_without_gil() {
  constexpr Site kUnknown("torch.distributed", 0);
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return kUnknown;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const Site site = site_of_user();
  PyGILState_Release(gil);
  return site.line() == 0 ? kUnknown : site;
}

}  // namespace tessera::python
