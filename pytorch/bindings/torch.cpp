// tessera._torch: the operators for eager code, and what they are told of Python: where a call stands, and how errors are
// raised.
#include <algorithm>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include <tessera/torch.hpp>

#include "entry.hpp"
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

// A size that only a call finds out, while shapes are worked out: Python has symbols for those.
std::optional<c10::SymInt> new_size(const at::Tensor& x, const char* op) {
  const pybind11::gil_scoped_acquire gil;
  try {
    const pybind11::object size = pybind11::module_::import("tessera._fakes").attr("new_size")(x, op);
    return size.is_none() ? std::nullopt : std::optional(size.cast<c10::SymInt>());
  } catch (pybind11::error_already_set& error) {
    python_error raised;
    error.restore();
    raised.persist();
    throw raised;
  }
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

PyObject* take_library_paths(PyObject*, PyObject* paths) {
  if (!set_library_paths(paths)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

PyObject* call_by_schema(const char* name, PyObject* const* arguments, Py_ssize_t count) {
  PyObject* const module = PyImport_ImportModule("tessera._by_schema");
  PyObject* const call = module == nullptr ? nullptr : PyObject_GetAttrString(module, "call");
  Py_XDECREF(module);
  if (call == nullptr) return nullptr;
  PyObject* const operation = PyUnicode_FromString(name);
  std::vector<PyObject*> all{operation};
  all.insert(all.end(), arguments, arguments + count);
  PyObject* const result = operation == nullptr ? nullptr : PyObject_Vectorcall(call, all.data(), all.size(), nullptr);
  Py_XDECREF(operation);
  Py_DECREF(call);
  return result;
}

namespace {

namespace call = torch_front::call;

template <size_t n>
struct Text {
  char text[n];
  consteval Text(const char (&literal)[n]) { std::copy_n(literal, n, text); }
};

template <Text name, auto fn>
PyMethodDef entry() {
  PyObject* (*const run)(PyObject*, PyObject* const*, Py_ssize_t) = [](PyObject*, PyObject* const* arguments,
                                                                       Py_ssize_t count) {
    return Entry<fn>::run(name.text, arguments, count, site_of_user());
  };
  return {name.text, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(run)), METH_FASTCALL,
          "The operator of that name, with all of its arguments."};
}

// For DTensors: autograd stands between the user's line and the move, and is told of DTensors, not of their parts.
PyObject* redistribute_at(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 3 || !PyUnicode_Check(arguments[0]) || !PyLong_Check(arguments[1]) || !PyBool_Check(arguments[2])) {
    return PyErr_Format(PyExc_TypeError, "redistribute_at(file, line, recorded_elsewhere, *arguments)");
  }
  const Site site = site_at(arguments[0], PyLong_AsLong(arguments[1]));
  return Entry<call::redistribute>::run("redistribute", arguments + 3, count - 3, site, arguments[2] == Py_True);
}

PyMethodDef methods[] = {
    {"name_of", name_of, METH_O, "name_of(handle) -> str: what the operators call that communicator"},
    {"rank_and_size", rank_and_size, METH_O, "rank_and_size(name) -> (int, int)"},
    {"set_library_paths", take_library_paths, METH_O, "set_library_paths(paths): what begins so is not the user's"},
    entry<"all_gather", call::all_gather>(),
    entry<"gather_sizes", call::gather_sizes>(),
    entry<"reduce_scatter", call::reduce_scatter>(),
    entry<"all_reduce", call::all_reduce>(),
    entry<"all_to_all", call::all_to_all>(),
    entry<"all_to_all_v", call::all_to_all_v>(),
    entry<"broadcast", call::broadcast>(),
    entry<"scatter", call::scatter>(),
    entry<"gather", call::gather>(),
    entry<"reduce", call::reduce>(),
    entry<"redistribute", call::redistribute>(),
    {"redistribute_at", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(redistribute_at)), METH_FASTCALL,
     "redistribute_at(file, line, recorded_elsewhere, *arguments): the operator, called from there; and whether the "
     "caller gives the result its history"},
    // No operators, as these take lists: for plain tensors only.
    entry<"all_reduce_list", torch_front::all_reduce_list>(),
    entry<"all_gather_list", torch_front::all_gather_list>(),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "tessera._torch", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace tessera::python

PyMODINIT_FUNC PyInit__torch() {
  tessera::detail::set_error_hook(&tessera::python::raise);
  tessera::detail::set_size_hook(&tessera::python::new_size);
  PyObject* const made = PyModule_Create(&tessera::python::module);
  if (made != nullptr) PyModule_AddStringConstant(made, "built_for", TESSERA_TORCH_VERSION);
  return made;
}
