// The player `tessera`: the ranks whose times are ours. Only this file knows which transports there are.
#include <sys/mman.h>

#include <tessera/tessera.hpp>

#include "bench.hpp"
#include "players/play.hpp"

namespace tessera::cli {
namespace {

using bench::Op;

// Memory of the system's for one call, as an allocator without a pool hands it out: every page of it costs a fault.
Tensor fresh(const Dims& shape) {
  const auto bytes = static_cast<size_t>(std::max<int64_t>(volume(shape), 1) * size_bytes(DType::f32));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("no fresh memory");
  return Tensor::view(memory, DType::f32, shape, row_major(shape),
                      std::shared_ptr<void>(memory, [bytes](void* data) { munmap(data, bytes); }));
}

class TesseraRank : public bench::Rank {
 public:
  explicit TesseraRank(Comm& comm) : comm_(comm) {}

  void prepare(const bench::Case& c) override {
    inputs_.clear();
    outputs_.assign(static_cast<size_t>(c.sets), {});
    pool::trim();
    case_ = c;
    is_fresh_ = c.output == "fresh";
    is_trusted_ = c.output == "trusted";
    is_given_ = is_trusted_ || c.output == "given";
    shape_of_output_ = shape_of_output();
    sends_.clear();
    plan_.reset();
    if (c.op == Op::redistribute) {
      const Mesh mesh({{"x", c.ranks()}});
      Topology topology = Topology::dtensor(mesh);
      topology.exchange_base_us = topology.base_us;  // here an all-to-all starts no later than a gather
      plan_ = plan(Layout(mesh, {Shard(0)}), Layout(mesh, {Shard(1)}), {c.total(), c.across}, DType::f32, topology);
    }
    if (c.op == Op::all_to_all) {
      const auto row = c.counts.begin() + comm_.rank() * c.ranks();
      sends_.assign(row, row + c.ranks());
    }
    const bench::Box box = bench::input_of(c, comm_.rank());
    for (int64_t set = 0; set < c.sets; ++set) {
      if (is_given_) outputs_[static_cast<size_t>(set)] = allocate(shape_of_output_);
      inputs_.push_back(box.elements() == 0 && c.op == Op::broadcast ? Tensor() : allocate({box.rows, box.columns}));
      if (inputs_.back().defined()) {
        bench::fill_input(c, comm_.rank(), set, reinterpret_cast<float*>(inputs_.back().data()));
      }
    }
  }

  void barrier() override { comm_.barrier(); }

  // What the last call with this set returned is dropped first: the pool hands it out again, and the outputs rotate with
  // the sets as every contender's do.
  void call(int64_t set) override {
    const Tensor& x = inputs_[static_cast<size_t>(set)];
    Tensor& result = outputs_[static_cast<size_t>(set)];
    if (is_given_) {
      run_once(x, result);
      return;
    }
    result = Tensor();
    result = run_once(x, is_fresh_ ? fresh(shape_of_output_) : Tensor());
  }

  float* input(int64_t set) override { return reinterpret_cast<float*>(inputs_[static_cast<size_t>(set)].data()); }

  float* output(int64_t set) override {
    const Tensor& result = outputs_[static_cast<size_t>(set)];
    // As is what redistribute returns where nothing has to move.
    const bool is_input = (case_.op == Op::broadcast && comm_.rank() == 0) ||
                          (case_.op == Op::redistribute && comm_.size() == 1 && case_.output == "recycled");
    return result.defined() && !is_input ? reinterpret_cast<float*>(result.data()) : nullptr;
  }

  std::string how() const override {
    const auto calls = comm_.recent_calls();
    return calls.empty() ? "" : calls.back().schedule;
  }

 private:
  Tensor allocate(const Dims& shape) {
    return case_.memory == "heap" ? comm_.allocate(DType::f32, shape) : Tensor::empty(DType::f32, shape);
  }

  Dims shape_of_output() const {
    const auto boxes = bench::output_of(case_, comm_.rank());
    if (case_.op == Op::all_to_all) {
      return {bench::output_elements(case_, comm_.rank()) / case_.across, case_.across};
    }
    return {boxes[0].rows, boxes[0].columns};
  }

  Tensor run_once(const Tensor& x, const Tensor& out) {
    switch (case_.op) {
      case Op::all_gather: {
        if (!is_trusted_) return all_gather(comm_, x, {.dim = case_.dim, .out = out}).tensor;
        return all_gather(comm_, x, {.dim = case_.dim, .sizes = case_.extents, .out = out, .sizes_trusted = true})
            .tensor;
      }
      case Op::reduce_scatter:
        if (!out.defined()) return reduce_scatter(comm_, x, 0, case_.extents);  // which copies no sizes
        return reduce_scatter(comm_, x, {.dim = 0, .sizes = case_.extents, .out = out});
      case Op::all_reduce: return all_reduce(comm_, x, ReduceOp::sum, out);
      case Op::all_to_all:
        if (!out.defined()) return all_to_all_v(comm_, x, sends_).tensor;
        return all_to_all_v(comm_, x, {.send_sizes = sends_, .out = out}).tensor;
      case Op::broadcast: return broadcast(comm_, x, 0, comm_.rank() == 0 ? Tensor() : out);
      case Op::redistribute: return redistribute(comm_, x, *plan_, out);
    }
    throw Error("unknown operation");
  }

  Comm& comm_;
  bench::Case case_;
  // Its output. Given, and trusted: the ranks agree on nothing, where the transport can do without.
  bool is_fresh_ = false, is_given_ = false, is_trusted_ = false;
  Dims shape_of_output_;
  Sizes sends_;
  std::optional<Plan> plan_;  // of redistribute
  std::vector<Tensor> inputs_, outputs_;
};

void play(Comm& comm, const std::string& name, const std::string& socket) {
  auto channel = bench::Channel::connect(socket);
  TesseraRank rank(comm);
  bench::Play(channel, comm.rank(), rank).run(name, comm.size());
}

}  // namespace

int play_tessera(const std::string& name, const std::string& socket, const std::string& transport, int ranks) {
  if (transport == "threads") {
    run(ranks, [&](Comm& comm) { play(comm, name, socket); });
  } else {
    Comm comm = Comm::from_env();
    play(comm, name, socket);
  }
  return 0;
}

}  // namespace tessera::cli
