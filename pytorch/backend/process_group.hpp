// ProcessGroupTessera: the c10d backend "tessera", for tensors on the CPU. Ranks of one host share memory; between hosts a
// carrier carries what they move.
//
// All collectives of c10d are calls on one communicator; each checks that the ranks agree. Where c10d takes lists of
// tensors, their shapes may be any: their elements are moved in order. Where it takes one tensor that all ranks have alike
// (broadcast, all_reduce, reduce, send and recv), shapes are compared. Errors are those of the Python
// package (tessera.MismatchError, ...), each a DistBackendError too, on every rank.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <tessera/collective.hpp>
#include <tessera/join.hpp>

#include "line.hpp"
#include "message.hpp"

namespace tessera::backend {

class ProcessGroupTessera : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Collective among the ranks. Throws what tessera::join() throws, and what the meeting and make_carrier do.
  ProcessGroupTessera(const Meeting& meeting, int rank, int size, std::chrono::milliseconds timeout,
                      const std::string& name, const MakeCarrier& make_carrier);
  ~ProcessGroupTessera() override;

  const std::string getBackendName() const override { return "tessera"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  double timeout_s() const { return std::chrono::duration<double>(timeout_.load()).count(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void abort() override;
  void shutdown() override;
  // New memory that peers read in place, where it lies.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_for_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Collective. The ranks' inputs combined, in new memory that peers read in place.
  at::Tensor all_reduced(const at::Tensor& input, const c10d::ReduceOp& op);
  // Collective. DTensor's move from a cut along gather_dim to one along shard_dim, at once and without a gather.
  at::Tensor shard_dim_alltoall(const at::Tensor& input, int64_t gather_dim, int64_t shard_dim);

  // The communicator, for callers that have waited by drain() until nothing is pending and start nothing meanwhile.
  Comm& comm();
  void drain();

 private:
  void finish() noexcept;
  bool forked() const;
  void check_not_forked() const;
  struct When {
    bool async;
    std::chrono::milliseconds timeout;
  };
  template <class Options>
  static When when(const Options& opts) {
    return {opts.asyncOp, opts.timeout};
  }
  // What a call is: for c10d, for its profiler, and for tessera.
  struct Kind {
    c10d::OpType type;
    const char* title;
    detail::OpCode op;
  };
  // The body runs in its turn. What it throws before its collective begins is told to all ranks. at: where the user's code
  // calls, for errors.
  using Body = std::function<void(Comm& comm, const Site& at)>;
  c10::intrusive_ptr<Call> launch(const Kind& kind, const When& when, Tensors outputs, Body body);
  void hand_over(const c10::intrusive_ptr<Call>& call, bool async);
  void run_body(const Kind& kind, const Site& at, std::chrono::milliseconds timeout, const Body& body);
  WorkPtr receive(c10d::OpType type, const Tensors& tensors, int from, int tag);

  // The communicator as a thread may end it that waits while the group goes.
  struct Living {
    void abort(const char* reason);
    std::mutex guard;
    Comm* comm = nullptr;
  };

  Comm comm_;
  const std::shared_ptr<Living> living_ = std::make_shared<Living>();
  std::atomic<std::chrono::milliseconds> timeout_;
  const int born_in_;  // the process
  std::atomic<uint64_t> sequence_{0};
  std::shared_ptr<Line> line_;
  std::shared_ptr<Line> message_line_;  // futures of messages, which may take long
  Parcels parcels_;
};

}  // namespace tessera::backend
