// The Python module tessera._backend.
#include <thread>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "../bindings/site.hpp"
#include "carrier.hpp"
#include "convert.hpp"
#include "process_group.hpp"

namespace py = pybind11;

namespace tessera::backend {
namespace {

// Called while Python waits for a group to come together: Ctrl-C ends that.
void check_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

Meeting meeting_in(const c10::intrusive_ptr<c10d::Store>& store, const std::string& prefix) {
  const auto set = [store, prefix](const std::string& key, const std::string& value) {
    store->set(prefix + key, std::vector<uint8_t>(value.begin(), value.end()));
  };
  // Asking now and then costs less than a store's wait(), which throws, with a trace of the stack, when the time is over.
  const auto get = [store, prefix](const std::string& key,
                                   std::chrono::milliseconds timeout) -> std::optional<std::string> {
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (auto pause = std::chrono::microseconds(100);; pause = std::min(2 * pause, std::chrono::microseconds(5000))) {
      if (store->check({prefix + key})) break;
      check_signals();
      if (std::chrono::steady_clock::now() >= end) return std::nullopt;
      std::this_thread::sleep_for(pause);
    }
    const std::vector<uint8_t> value = store->get(prefix + key);
    return std::string(value.begin(), value.end());
  };
  return {set, get};
}

std::shared_ptr<Carrier> carrier_over(const py::object& engine) {
  return std::make_shared<GroupCarrier>(engine.cast<c10::intrusive_ptr<c10d::Backend>>());
}

// For tessera._core, which does not know torch: it takes the carrier out.
py::capsule carrier_capsule(const py::object& engine) {
  using Held = std::shared_ptr<Carrier>;
  return py::capsule(new Held(carrier_over(engine)), "tessera.Carrier", [](PyObject* capsule) {
    delete static_cast<Held*>(PyCapsule_GetPointer(capsule, "tessera.Carrier"));
  });
}

c10::intrusive_ptr<ProcessGroupTessera> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& prefix, int rank, int size, double timeout_s,
                                                   const std::string& name, const py::object& make_engine) {
  constexpr double kLongestSeconds = 365.0 * 24 * 3600;
  const std::chrono::milliseconds timeout(static_cast<int64_t>(std::min(timeout_s, kLongestSeconds) * 1000));
  try {
    const MakeCarrier make_carrier = [&make_engine] {
      const py::gil_scoped_acquire acquire;
      return carrier_over(make_engine());
    };
    return c10::make_intrusive<ProcessGroupTessera>(meeting_in(store, prefix), rank, size, timeout, name, make_carrier);
  } catch (...) {
    rethrow_to_python();
  }
}

template <class Fn>
auto safely(Fn&& fn) {
  return torch::wrap_pybind_function_no_gil(std::forward<Fn>(fn));
}

}  // namespace
}  // namespace tessera::backend

PYBIND11_MODULE(_backend, module) {
  using namespace tessera::backend;
  using tessera::Comm;
  module.doc() = "The c10d backend \"tessera\"; `import tessera` registers it.";
  py::module_::import("torch.distributed");  // the types that the class derives from

  py::class_<ProcessGroupTessera, c10d::Backend, c10::intrusive_ptr<ProcessGroupTessera>>(module, "ProcessGroupTessera")
      .def("all_reduced", safely([](ProcessGroupTessera& group, const at::Tensor& input, const c10d::ReduceOp& op) {
             return group.all_reduced(input, op);
           }),
           py::arg("input"), py::arg("op"))
      .def("shard_dim_alltoall",
           safely([](ProcessGroupTessera& group, const at::Tensor& input, int64_t gather_dim, int64_t shard_dim) {
             return group.shard_dim_alltoall(input, gather_dim, shard_dim);
           }),
           py::arg("input"), py::arg("gather_dim"), py::arg("shard_dim"))
      .def("drain", safely([](ProcessGroupTessera& group) { group.drain(); }),
           "Waits until nothing is pending: then the communicator may be used by its address.")
      .def(
          "comm_address", [](ProcessGroupTessera& group) { return reinterpret_cast<uintptr_t>(&group.comm()); },
          "The address of the group's tessera::Comm, which lives as long as the group.")
      .def_property_readonly("timeout_s", [](ProcessGroupTessera& group) { return group.timeout_s(); })
      .def_property_readonly("comm_name", [](ProcessGroupTessera& group) { return group.comm().name(); })
      .def("stats", [](ProcessGroupTessera& group) {
        const tessera::Stats stats = group.comm().stats();
        return std::map<std::string, int64_t>{{"calls", stats.calls},
                                              {"exchanges", stats.exchanges},
                                              {"bytes_received", stats.bytes_received},
                                              {"bytes_attached", stats.bytes_attached},
                                              {"bytes_staged", stats.bytes_staged},
                                              {"bytes_within_host", stats.bytes_within_host},
                                              {"bytes_between_hosts", stats.bytes_between_hosts}};
      });
  module.def(
      "make_group", safely(make_group), py::arg("store"), py::arg("prefix"), py::arg("rank"), py::arg("size"),
      py::arg("timeout_s"), py::arg("name"), py::arg("make_engine"),
      "Collective. `make_engine` makes the backend that carries messages between hosts, where there are several.");
  module.def("carrier", carrier_capsule, py::arg("engine"));
  module.def(
      "set_library_paths",
      [](const py::object& paths) {
        if (!tessera::python::set_library_paths(paths.ptr())) throw py::error_already_set();
      },
      py::arg("paths"), "Files whose names begin with one of these are not the user's.");
}
