// Where in the user's code a call stands.
#pragma once

#include <Python.h>

#include <tessera/comm.hpp>

namespace tessera::python {

// Files whose names begin with one of these, folders or files, are not the user's. paths: a sequence of str. False: it is
// none, and Python's error says so.
bool set_library_paths(PyObject* paths);
// The callers of both hold the GIL. filename: a str.
Site site_at(PyObject* filename, long line);
// The innermost line of Python on this thread that is not of a library; the outermost one, where all are.
Site site_of_user();
// The same, for a caller that does not hold the GIL; it may be a thread that Python does not know.
Site site_without_gil();

}  // namespace tessera::python
