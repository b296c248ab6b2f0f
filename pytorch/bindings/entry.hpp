// The operators as functions of Python, for eager code: torch.ops parses arguments by their schema, which takes longer than
// a small gather. They have the operators' arguments, go through the dispatcher as those do, and name the user's line.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "../src/call.hpp"
#include "site.hpp"

namespace tessera::python {

// How an argument is taken from Python. What does not fit is for torch.ops to take, or to complain of.
template <class T>
struct Taken;

template <>
struct Taken<at::Tensor> {
  static bool fits(PyObject* object) {
    return THPVariable_CheckExact(object) && !at::impl::torch_function_mode_enabled();
  }
  static at::Tensor of(PyObject* object) { return THPVariable_Unpack(object); }
};
template <class T>
struct Taken<std::optional<T>> {
  static bool fits(PyObject* object) { return object == Py_None || Taken<T>::fits(object); }
  static std::optional<T> of(PyObject* object) {
    return object == Py_None ? std::nullopt : std::optional<T>(Taken<T>::of(object));
  }
};
template <>
struct Taken<int64_t> {
  static bool fits(PyObject* object) {
    int overflow = 0;
    return PyLong_CheckExact(object) && (PyLong_AsLongLongAndOverflow(object, &overflow), overflow == 0);
  }
  static int64_t of(PyObject* object) { return PyLong_AsLongLong(object); }
};
template <>
struct Taken<c10::SymInt> : Taken<int64_t> {};
template <>
struct Taken<at::OptionalSymIntArrayRef> {
  static bool fits(PyObject* object) { return object == Py_None; }
  static at::OptionalSymIntArrayRef of(PyObject*) { return std::nullopt; }
};
template <>
struct Taken<c10::SymIntArrayRef> {
  static bool fits(PyObject* object) {
    if (!PyTuple_Check(object)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      if (!Taken<int64_t>::fits(PyTuple_GET_ITEM(object, i))) return false;
    }
    return true;
  }
  static std::vector<c10::SymInt> of(PyObject* object) {
    std::vector<c10::SymInt> extents;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      extents.emplace_back(Taken<int64_t>::of(PyTuple_GET_ITEM(object, i)));
    }
    return extents;
  }
};
template <>
struct Taken<bool> {
  static bool fits(PyObject* object) { return PyBool_Check(object); }
  static bool of(PyObject* object) { return object == Py_True; }
};
template <>
struct Taken<double> {
  static bool fits(PyObject* object) { return PyFloat_CheckExact(object); }
  static double of(PyObject* object) { return PyFloat_AS_DOUBLE(object); }
};
template <>
struct Taken<std::string_view> {
  static bool fits(PyObject* object) {
    if (!PyUnicode_CheckExact(object)) return false;
    if (PyUnicode_AsUTF8(object) != nullptr) return true;
    PyErr_Clear();
    return false;
  }
  static std::string_view of(PyObject* object) {
    Py_ssize_t length = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(object, &length);  // which keeps it
    return {text, static_cast<size_t>(length)};
  }
};

template <class T>
struct Taken<std::vector<T>> {
  static bool fits(PyObject* object) {
    if (!PyList_CheckExact(object)) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      if (!Taken<T>::fits(PyList_GET_ITEM(object, i))) return false;
    }
    return true;
  }
  static std::vector<T> of(PyObject* object) {
    std::vector<T> list;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) list.push_back(Taken<T>::of(PyList_GET_ITEM(object, i)));
    return list;
  }
};

inline PyObject* given(const at::Tensor& tensor) { return THPVariable_Wrap(tensor); }
inline PyObject* given(const std::tuple<at::Tensor, at::Tensor>& pair) {
  return Py_BuildValue("NN", given(std::get<0>(pair)), given(std::get<1>(pair)));
}

template <class T>
PyObject* given(const std::vector<T>& results) {
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(results.size()));
  for (size_t i = 0; list != nullptr && i < results.size(); ++i) {
    PyObject* const result = given(results[i]);
    if (result == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), result);
  }
  return list;
}

// The same call through torch.ops, or its complaint: see tessera/_by_schema.py.
PyObject* call_by_schema(const char* name, PyObject* const* arguments, Py_ssize_t count);

class WithoutGil {
 public:
  WithoutGil() = default;
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_ = PyEval_SaveThread();
};

// fn: of torch_front::call. It may wait, which lets other threads run.
template <auto fn>
struct Entry;
template <class Result, class... T, Result (*fn)(T...)>
struct Entry<fn> {
  template <size_t... I>
  static PyObject* run(const char* name, PyObject* const* arguments, Py_ssize_t count, std::index_sequence<I...>) {
    HANDLE_TH_ERRORS
    if (count != sizeof...(T) || !(Taken<std::decay_t<T>>::fits(arguments[I]) && ...)) {
      return call_by_schema(name, arguments, count);
    }
    const std::tuple taken{Taken<std::decay_t<T>>::of(arguments[I])...};
    Result result = [&] {
      const WithoutGil others_run;
      return fn(std::get<I>(taken)...);
    }();
    return given(result);
    END_HANDLE_TH_ERRORS
  }
  static PyObject* run(const char* name, PyObject* const* arguments, Py_ssize_t count, const Site& site,
                       bool recorded_elsewhere = false) {
    detail::set_next_site(site, recorded_elsewhere);
    PyObject* const result = run(name, arguments, count, std::index_sequence_for<T...>());
    if (recorded_elsewhere) detail::set_next_site(site, false);  // it may not have come so far
    return result;
  }
};

}  // namespace tessera::python
