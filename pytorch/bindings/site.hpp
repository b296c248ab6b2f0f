// Where in the user's code a call stands.
#pragma once

#include <Python.h>

#include <tessera/comm.hpp>

namespace tessera::python {

// Files under this folder are not the user's.
void set_package_folder(const char* folder);
// The callers of both hold the GIL. filename: a str.
Site site_at(PyObject* filename, long line);
// The innermost line of Python on this thread that is not of the package.
Site site_of_user();

}  // namespace tessera::python
