// Where in the user's code a call stands.
#pragma once

#include <Python.h>

#include <tessera/comm.hpp>

namespace tessera::python {

// Files under these folders, which end in a separator, are not the user's. folders: a sequence of str. False: it is none,
// and Python's error says so.
bool set_library_folders(PyObject* folders);
// The callers of both hold the GIL. filename: a str.
Site site_at(PyObject* filename, long line);
// The innermost line of Python on this thread that is not of a library; the outermost one, where all are.
Site site_of_user();
// The same, for a caller that does not hold the GIL; it may be a thread that Python does not know.
Site site_without_gil();

}  // namespace tessera::python
