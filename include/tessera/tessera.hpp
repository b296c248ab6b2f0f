// All of tessera.
#pragma once

#include <tessera/collective.hpp>
#include <tessera/comm.hpp>
#include <tessera/cost.hpp>
#include <tessera/dtype.hpp>
#include <tessera/error.hpp>
#include <tessera/gradient.hpp>
#include <tessera/join.hpp>
#include <tessera/layout.hpp>
#include <tessera/mesh.hpp>
#include <tessera/mesh_collective.hpp>
#include <tessera/overlap.hpp>
#include <tessera/padding.hpp>
#include <tessera/plan.hpp>
#include <tessera/pool.hpp>
#include <tessera/redistribute.hpp>
#include <tessera/reduction.hpp>
#include <tessera/tensor.hpp>
#include <tessera/topology.hpp>
#include <tessera/version.hpp>
#include <tessera/work.hpp>
