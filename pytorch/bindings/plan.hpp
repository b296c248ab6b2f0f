// Meshes, layouts, topologies and plans in Python. They talk to no rank.
#pragma once

#include <nanobind/nanobind.h>

namespace tessera::python {

void bind_plans(nanobind::module_& m);

}  // namespace tessera::python
