// tessera._torch: loads the operators, and tells them of Python: where a call stands, and how errors are raised.
#include <torch/csrc/Exceptions.h>

#include <mutex>
#include <set>

#include <tessera/torch.hpp>

#include "raise.hpp"

namespace tessera::python {
namespace {

// Python's exception in place of tessera's: also where torch is between the operator and Python, as in backward().
void raise(const Error& error) {
  python_error raised;
  {
    const PyGILState_STATE gil = PyGILState_Ensure();
    set_error(error);
    raised.persist();
    PyGILState_Release(gil);
  }
  throw raised;
}

// Runs fn; its exceptions become Python's.
template <class Fn>
PyObject* answer(Fn&& fn) {
  try {
    return fn();
  } catch (const Error& error) {
    set_error(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* name_of(PyObject*, PyObject* capsule) {
  return answer([&]() -> PyObject* {
    auto* const comm = static_cast<Comm*>(PyCapsule_GetPointer(capsule, "tessera.Comm"));
    if (comm == nullptr) return nullptr;
    return PyUnicode_FromString(torch_name(*comm).c_str());
  });
}

PyObject* rank_and_size(PyObject*, PyObject* name) {
  return answer([&]() -> PyObject* {
    const char* const text = PyUnicode_AsUTF8(name);
    if (text == nullptr) return nullptr;
    const Comm comm = torch_comm(text);
    return Py_BuildValue("ii", comm.rank(), comm.size());
  });
}

// The names of files live as long as the process.
PyObject* set_site(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  static std::set<std::string, std::less<>> files;  // guarded by the GIL
  const char* const file = count == 2 || count == 3 ? PyUnicode_AsUTF8(arguments[0]) : nullptr;
  if (file == nullptr) return PyErr_Format(PyExc_TypeError, "set_site(file, line, recorded_elsewhere=False)");
  const long line = PyLong_AsLong(arguments[1]);
  if (line == -1 && PyErr_Occurred() != nullptr) return nullptr;
  auto at = files.find(std::string_view(file));
  if (at == files.end()) at = files.emplace(file).first;
  detail::set_next_site(Site(at->c_str(), static_cast<uint32_t>(line)), count == 3 && arguments[2] == Py_True);
  Py_RETURN_NONE;
}

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

PyObject* refuse(PyObject*, PyObject* arguments) {
  const char *name = nullptr, *text = nullptr;
  if (PyArg_ParseTuple(arguments, "ss", &name, &text) == 0) return nullptr;
  return answer([&]() -> PyObject* {
    const WithoutGil no_gil;
    Comm comm = torch_comm(name);
    detail::refuse(comm, text);
  });
}

PyMethodDef methods[] = {
    {"name_of", name_of, METH_O, "name_of(handle) -> str: what the operators call that communicator"},
    {"rank_and_size", rank_and_size, METH_O, "rank_and_size(name) -> (int, int)"},
    {"refuse", refuse, METH_VARARGS, "refuse(name, text): collective; raises ShapeError on every rank"},
    {"set_site", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(set_site)), METH_FASTCALL,
     "set_site(file, line, recorded_elsewhere=False): of the next operator on this thread, and whether the caller "
     "gives its result a history"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "tessera._torch", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace tessera::python

PyMODINIT_FUNC PyInit__torch() {
  tessera::detail::set_error_hook(&tessera::python::raise);
  PyObject* const made = PyModule_Create(&tessera::python::module);
  if (made != nullptr) PyModule_AddStringConstant(made, "built_for", TESSERA_TORCH_VERSION);
  return made;
}
