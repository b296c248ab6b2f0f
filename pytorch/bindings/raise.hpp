// tessera's exceptions as Python's. The classes are those of tessera/_errors.py.
#pragma once

#include <Python.h>

#include <tessera/error.hpp>

namespace tessera::python {

inline const char* class_of(const Error& error) {
  if (dynamic_cast<const MismatchError*>(&error) != nullptr) return "MismatchError";
  if (dynamic_cast<const ShapeError*>(&error) != nullptr) return "ShapeError";
  if (dynamic_cast<const DTypeError*>(&error) != nullptr) return "DTypeError";
  if (dynamic_cast<const ArgumentError*>(&error) != nullptr) return "ArgumentError";
  if (dynamic_cast<const ArgumentTypeError*>(&error) != nullptr) return "ArgumentTypeError";
  if (dynamic_cast<const PeerLostError*>(&error) != nullptr) return "PeerLostError";
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return "TimeoutError";
  if (dynamic_cast<const AbortedError*>(&error) != nullptr) return "AbortedError";
  return "Error";
}

// Sets Python's error; the caller holds the GIL.
inline void set_error(const Error& error) {
  PyObject* const module = PyImport_ImportModule("tessera._errors");
  PyObject* const type = module == nullptr ? nullptr : PyObject_CallMethod(module, "take", "s", class_of(error));
  Py_XDECREF(module);
  if (type == nullptr) return;  // Python says why
  if (PyExceptionInstance_Check(type)) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(type)), type);
  else PyErr_SetString(type, error.what());
  Py_DECREF(type);
}

}  // namespace tessera::python
