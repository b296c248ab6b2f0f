// tessera._core: communicators, and the collectives on anything that has __dlpack__. Needs no torch.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <tessera/tessera.hpp>

#include "plan.hpp"
#include "raise.hpp"

namespace nb = nanobind;

namespace tessera::python {
namespace {

// Ctrl-C: a wait on the main thread lets Python's signal handlers run, and ends when one of them raises. What that was is
// kept until the main thread raises it: other ranks' threads have errors of their own then.
unsigned long main_thread = 0;
PyObject* interrupt = nullptr;

void look_for_signals() {
  if (PyThread_get_thread_ident() != main_thread) return;
  nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  const nb::python_error raised;
  Py_XDECREF(std::exchange(interrupt, raised.value().inc_ref().ptr()));
  throw Error("interrupted");
}

nb::object take_interrupt() {
  if (interrupt == nullptr || PyThread_get_thread_ident() != main_thread) return nb::none();
  return nb::steal(std::exchange(interrupt, nullptr));
}

// Elements that Python gave, or is given. The memory goes with the last of them.
struct Array {
  Tensor tensor;
};

constexpr const char* kOld = "dltensor";
constexpr const char* kNew = "dltensor_versioned";

// Takes what __dlpack__ offers, in either version.
Array from_dlpack(nb::handle source) {
  nb::object capsule;
  try {
    capsule = source.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = source.attr("__dlpack__")();
  }
  const bool versioned = PyCapsule_IsValid(capsule.ptr(), kNew) != 0;
  void* const managed = PyCapsule_GetPointer(capsule.ptr(), versioned ? kNew : kOld);
  if (managed == nullptr) throw nb::python_error();
  Array array{versioned ? Tensor::from_dlpack(static_cast<DLManagedTensorVersioned*>(managed))
                        : Tensor::from_dlpack(static_cast<DLManagedTensor*>(managed))};
  PyCapsule_SetName(capsule.ptr(), versioned ? "used_dltensor_versioned" : "used_dltensor");
  return array;
}

template <class Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;  // somebody has taken it
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  Tensor::from_dlpack(managed);
}

nb::object to_dlpack(const Array& array, nb::object, nb::object max_version, nb::object, nb::object) {
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
  PyObject* const capsule =
      versioned
          ? PyCapsule_New(array.tensor.to_dlpack_versioned(), kNew,
                          [](PyObject* c) { drop_capsule<DLManagedTensorVersioned>(c, kNew); })
          : PyCapsule_New(array.tensor.to_dlpack(), kOld, [](PyObject* c) { drop_capsule<DLManagedTensor>(c, kOld); });
  if (capsule == nullptr) throw nb::python_error();
  return nb::steal(capsule);
}

using Result = std::pair<Array, Sizes>;
Result result_of(Gathered&& gathered) { return {{std::move(gathered.tensor)}, std::move(gathered.sizes)}; }

// The names of files live as long as the process.
Site site_of(const std::pair<std::string, uint32_t>& place) {
  static std::mutex guard;
  static std::set<std::string> files;
  std::lock_guard lock(guard);
  return Site(files.insert(place.first).first->c_str(), place.second);
}
using Place = std::pair<std::string, uint32_t>;

ReduceOp reduce_op(const std::string& wanted) {
  for (int op = 0; op <= static_cast<int>(ReduceOp::premul_sum); ++op) {
    if (name(static_cast<ReduceOp>(op)) == wanted) return static_cast<ReduceOp>(op);
  }
  throw ArgumentError(fmt::format("op is \"{}\"; as sum, avg, prod, min, max", wanted));
}

Tensor optional_tensor(const std::optional<Array>& array) { return array ? array->tensor : Tensor(); }

// fn(comm) on threads. The caller's thread waits, and looks for signals: when one raises, the ranks' calls end. A rank that
// is in no call, and does not come back to Python soon, is left behind: it goes on by itself, and ends in its next call.
class Ranks : public std::enable_shared_from_this<Ranks> {
 public:
  explicit Ranks(nb::callable fn) : fn_(std::move(fn)) {}

  // Throws what a signal's handler raised, and why no rank was started. What fn raises is fn's to keep.
  void run(int ranks, const RunOptions& options) {
    nb::gil_scoped_release no_gil;
    std::thread all([self = shared_from_this(), ranks, options] { self->run_all(ranks, options); });
    if (wait()) all.join();
    else all.detach();
    if (stopped_) throw Error("interrupted");
    if (error_ != nullptr && !failed_) std::rethrow_exception(error_);
  }

 private:
  void run_all(int ranks, const RunOptions& options) {
    try {
      tessera::run(
          ranks, [this](Comm& comm) { run_rank(comm); }, options);
    } catch (...) {
      error_ = std::current_exception();
    }
    {
      nb::gil_scoped_acquire gil;
      fn_.reset();
    }
    std::lock_guard lock(guard_);
    done_ = true;
    changed_.notify_all();
  }

  // Whether all have ended.
  bool wait() {
    constexpr std::chrono::milliseconds kBetweenLooks(50), kGrace(2000);
    auto end = std::chrono::steady_clock::time_point::max();
    std::unique_lock lock(guard_);
    while (!changed_.wait_for(lock, kBetweenLooks, [&] { return done_; }) && std::chrono::steady_clock::now() < end) {
      lock.unlock();
      try {
        look_for_signals();
      } catch (const Error&) {
        stop();
        end = std::min(end, std::chrono::steady_clock::now() + kGrace);
      }
      lock.lock();
    }
    return done_;
  }

  void stop() {
    std::lock_guard lock(guard_);
    stopped_ = true;
    for (const auto& comm : comms_) comm->abort("interrupted");
    nb::gil_scoped_acquire gil;
    for (const unsigned long thread : threads_) PyThreadState_SetAsyncExc(thread, PyExc_KeyboardInterrupt);
  }

  void run_rank(Comm& comm) {
    auto mine = std::make_shared<Comm>(std::move(comm));
    {
      std::lock_guard lock(guard_);
      comms_.push_back(mine);
      threads_.push_back(PyThread_get_thread_ident());
      if (stopped_) mine->abort("interrupted");
    }
    nb::gil_scoped_acquire gil;
    try {
      fn_(mine);
    } catch (nb::python_error& error) {
      // Python keeps the exception; the ranks only need its text.
      failed_ = true;
      const std::string text = error.what();
      throw std::runtime_error(text.substr(text.rfind('\n', text.size() - 2) + 1));
    }
  }

  nb::callable fn_;
  std::mutex guard_;
  std::condition_variable changed_;
  bool done_ = false, stopped_ = false;
  std::atomic<bool> failed_ = false;  // fn raised on some rank
  std::exception_ptr error_;
  std::vector<std::shared_ptr<Comm>> comms_;
  std::vector<unsigned long> threads_;
};

// Infinity is a year.
std::chrono::nanoseconds timeout_of(double seconds) {
  constexpr double kLongest = 365.0 * 24 * 3600;
  if (!(seconds > 0))
    throw ArgumentError(fmt::format("a timeout of {} s is not positive: give seconds, or math.inf", seconds));
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, kLongest) * 1e9));
}

RunOptions options_of(const std::string& name, double timeout) {
  RunOptions options;
  options.name = name;
  options.timeout = timeout_of(timeout);
  return options;
}

// get(key, seconds) answers with bytes, or None when the time is over; make_carrier() with a capsule, if it is not None.
std::shared_ptr<Comm> join_processes(const nb::callable& set, const nb::callable& get, int rank, int size,
                                     const std::string& name, double timeout, const nb::object& make_carrier) {
  const Meeting meeting{[&](const std::string& key, const std::string& value) {
                          nb::gil_scoped_acquire gil;
                          set(key, nb::bytes(value.data(), value.size()));
                        },
                        [&](const std::string& key, std::chrono::milliseconds time) -> std::optional<std::string> {
                          nb::gil_scoped_acquire gil;
                          const nb::object answer = get(key, std::chrono::duration<double>(time).count());
                          if (answer.is_none()) return std::nullopt;
                          const auto bytes = nb::cast<nb::bytes>(answer);
                          return std::string(bytes.c_str(), bytes.size());
                        }};
  MakeCarrier carrier;
  if (!make_carrier.is_none()) {
    carrier = [&make_carrier] {
      nb::gil_scoped_acquire gil;
      const nb::object capsule = make_carrier();
      void* const held = PyCapsule_GetPointer(capsule.ptr(), "tessera.Carrier");
      if (held == nullptr) throw nb::python_error();
      return *static_cast<std::shared_ptr<Carrier>*>(held);
    };
  }
  nb::gil_scoped_release no_gil;
  return std::make_shared<Comm>(join(meeting, rank, size, options_of(name, timeout), carrier));
}

nb::dict stats_of(const Comm& comm) {
  const Stats s = comm.stats();
  nb::dict dict;
  dict["calls"] = s.calls;
  dict["exchanges"] = s.exchanges;
  dict["moves"] = s.moves;
  dict["messages"] = s.messages;
  dict["bytes_received"] = s.bytes_received;
  dict["bytes_sent"] = s.bytes_sent;
  dict["copies"] = s.copies;
  dict["bytes_copied"] = s.bytes_copied;
  dict["allocations"] = s.allocations;
  dict["bytes_allocated"] = s.bytes_allocated;
  dict["bytes_within_host"] = s.bytes_within_host;
  dict["bytes_between_hosts"] = s.bytes_between_hosts;
  return dict;
}

void bind_comm(nb::module_& m) {
  nb::class_<Comm>(m, "Comm")
      .def_prop_ro("rank", &Comm::rank)
      .def_prop_ro("size", &Comm::size)
      .def_prop_ro("name", &Comm::name)
      .def_prop_rw(
          "timeout", [](const Comm& comm) { return std::chrono::duration<double>(comm.timeout()).count(); },
          [](Comm& comm, double seconds) { comm.set_timeout(timeout_of(seconds)); })
      .def(
          "barrier", [](Comm& comm, const Place& site) { comm.barrier(site_of(site)); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "split",
          [](Comm& comm, int64_t color, int64_t key, const Place& site) -> std::shared_ptr<Comm> {
            auto part = std::make_shared<Comm>(comm.split(color, key, site_of(site)));
            return part->defined() ? part : nullptr;
          },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "shrink", [](Comm& comm) { return std::make_shared<Comm>(comm.shrink()); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("abort", &Comm::abort, nb::call_guard<nb::gil_scoped_release>())
      .def("stats", &stats_of)
      .def("reset_stats", &Comm::reset_stats)
      .def("chrome_trace", &Comm::chrome_trace)
      .def_prop_ro("handle", [](Comm& comm) { return nb::capsule(&comm, "tessera.Comm"); });
  m.def(
      "from_env", [] { return std::make_shared<Comm>(Comm::from_env()); }, nb::call_guard<nb::gil_scoped_release>());
  m.def("join", &join_processes);
  m.def("run", [](int ranks, nb::callable fn, const std::string& name, double timeout) {
    std::make_shared<Ranks>(std::move(fn))->run(ranks, options_of(name, timeout));
  });
}

std::exception_ptr problem_of(const std::string& kind, const std::string& text) {
  if (kind == "ArgumentTypeError") return std::make_exception_ptr(ArgumentTypeError(text));
  if (kind == "ArgumentError") return std::make_exception_ptr(ArgumentError(text));
  if (kind == "ShapeError") return std::make_exception_ptr(ShapeError(text));
  if (kind == "DTypeError") return std::make_exception_ptr(DTypeError(text));
  return std::make_exception_ptr(Error(text));
}

void bind_collectives(nb::module_& m) {
  const auto guard = nb::call_guard<nb::gil_scoped_release>();
  m.def("reductions", [] {
    std::vector<std::string> names;
    for (int op = 0; op <= static_cast<int>(ReduceOp::premul_sum); ++op) {
      names.emplace_back(name(static_cast<ReduceOp>(op)));
    }
    return names;
  });
  m.def(
      "refuse",
      [](Comm& c, const std::string& op, const std::string& kind, const std::string& text, const Place& site) {
        detail::refuse(c, detail::find_op(op), problem_of(kind, text), site_of(site));
      },
      guard);
  m.def(
      "all_gather",
      [](Comm& c, const Array& x, int64_t dim, const Sizes& sizes, const Place& site) {
        return result_of(all_gather(c, x.tensor, dim, sizes, site_of(site)));
      },
      guard);
  m.def(
      "gather_sizes",
      [](Comm& c, const Array& x, int64_t dim, const Place& site) {
        return gather_sizes(c, x.tensor, dim, site_of(site));
      },
      guard);
  m.def(
      "reduce_scatter",
      [](Comm& c, const Array& x, int64_t dim, const Sizes& sizes, const std::string& op, const Place& site) {
        return Array{reduce_scatter(c, x.tensor, dim, sizes, reduce_op(op), site_of(site))};
      },
      guard);
  m.def(
      "all_reduce",
      [](Comm& c, const Array& x, const std::string& op, const Place& site) {
        return Array{all_reduce(c, x.tensor, reduce_op(op), {}, site_of(site))};
      },
      guard);
  m.def(
      "all_to_all",
      [](Comm& c, const Array& x, int64_t split_dim, int64_t concat_dim, const Sizes& sizes, const Place& site) {
        return result_of(all_to_all(c, x.tensor, split_dim, concat_dim, sizes, site_of(site)));
      },
      guard);
  m.def(
      "all_to_all_v",
      [](Comm& c, const Array& x, const Sizes& send, const Sizes& recv, int64_t dim, const Place& site) {
        return result_of(all_to_all_v(c, x.tensor, send, recv, dim, site_of(site)));
      },
      guard);
  m.def(
      "broadcast",
      [](Comm& c, const std::optional<Array>& x, int64_t root, const Place& site) {
        const Tensor mine = optional_tensor(x);
        const bool copies = c.rank() == root && mine.defined();  // the root's result is not its x
        return Array{
            broadcast(c, mine, root, copies ? c.allocate(mine.dtype(), mine.shape()) : Tensor(), site_of(site))};
      },
      guard);
  m.def(
      "scatter",
      [](Comm& c, const std::optional<Array>& x, int64_t root, int64_t dim, const Sizes& sizes, const Place& site) {
        return result_of(scatter(c, optional_tensor(x), root, dim, sizes, site_of(site)));
      },
      guard);
  m.def(
      "gather",
      [](Comm& c, const Array& x, int64_t root, int64_t dim, const Place& site) {
        return result_of(gather(c, x.tensor, root, dim, site_of(site)));
      },
      guard);
  m.def(
      "reduce",
      [](Comm& c, const Array& x, int64_t root, const std::string& op, const Place& site) {
        return Array{reduce(c, x.tensor, root, reduce_op(op), {}, site_of(site))};
      },
      guard);
  m.def(
      "redistribute",
      [](Comm& c, const std::optional<Array>& x, const Plan& plan, const Place& site) {
        const Tensor mine = optional_tensor(x);
        const Tensor moved = redistribute(c, mine, plan, {}, site_of(site));
        // The result is never the argument, nor a view of it.
        return Array{moved.defined() && moved.owner() == mine.owner() ? moved.clone() : moved};
      },
      guard);
}

void bind_messages(nb::module_& m) {
  const auto guard = nb::call_guard<nb::gil_scoped_release>();
  m.def(
      "send",
      [](Comm& c, const Array& x, int to, int64_t tag, const Place& site) {
        send(c, x.tensor, to, tag, site_of(site));
      },
      guard);
  m.def(
      "recv",
      [](Comm& c, int source, int64_t tag, const std::optional<Array>& out, const Place& site) {
        Received received = recv(c, source, tag, optional_tensor(out), site_of(site));
        return std::pair(Array{std::move(received.tensor)}, received.source);
      },
      guard);
}

}  // namespace
}  // namespace tessera::python

NB_MODULE(_core, m) {
  using namespace tessera;
  using namespace tessera::python;
  main_thread = PyThread_get_thread_ident();
  set_wait_hook(&look_for_signals);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      set_error(error);
    } catch (const nb::cast_error&) {
      PyErr_SetString(PyExc_TypeError, "an argument is of a type that this does not take");
    }
  });
  m.def("take_interrupt", &take_interrupt);
  nb::class_<Array>(m, "Array")
      .def_static("from_dlpack", &from_dlpack)
      .def("__dlpack__", &to_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
           nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack_device__", [](const Array&) { return std::pair(1, 0); })
      .def_prop_ro("defined", [](const Array& array) { return array.tensor.defined(); })
      .def_prop_ro(
          "shape",
          [](const Array& array) {
            return nb::tuple(nb::cast(std::vector<int64_t>(array.tensor.shape().begin(), array.tensor.shape().end())));
          })
      .def_prop_ro("dtype", [](const Array& array) { return std::string(name(array.tensor.dtype())); });
  bind_comm(m);
  bind_plans(m);
  bind_collectives(m);
  bind_messages(m);
}
