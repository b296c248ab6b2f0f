// The collectives: moves of a tensor from one layout to another.
//
// Each is a description with named fields that the function of the same name
// runs at once:
//
//   auto [all, sizes] = all_gather(comm, x, 0);                             //
//   sizes are found out on the way auto [all, sizes] = all_gather(comm, x,
//   {.dim = 0, .sizes = s, .out = out});   // given and checked; caller's
//   memory auto work = start(comm, AllGather{.x = x, .dim = 0}); // goes on by
//   itself; work.get() is the result auto both = run(comm,
//   std::vector{AllGather{.x = a}, AllGather{.x = b}});   // a list: one
//   agreement for all auto [g, r] = run(comm, AllGather{.x = a}, AllReduce{.x =
//   b});          // different ones, one agreement
//
// All are collective: every rank of the communicator calls them, in one order.
// They throw, on every rank the same and with nothing moved: MismatchError (the
// ranks do not agree), ShapeError, DTypeError; and TimeoutError, PeerLostError,
// AbortedError (the communicator is dead then). `x` may have any strides.
// `out`, where given, is written in place, may have any strides, and must not
// overlap x, except that x and out may be the same elements where the operation
// leaves a rank's own elements where they are. Cost: one exchange of a small
// record, then one copy of each byte, from the peer's memory to its final
// place. Gradients: see gradient.hpp.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include <tessera/detail/description.hpp>

namespace tessera {

struct Gathered {
  Tensor tensor;  // gather(): defined on the root only
  Sizes sizes;    // of every rank, along dim
};
struct Parts {
  std::vector<Tensor> parts;  // by rank
  Sizes sizes;
};

// The concatenation of every rank's x along dim, on every rank. Only dim may
// differ between ranks; zero is a size. Shard(dim, sizes) → Replicate. Moves
// the other ranks' elements to each rank.
struct AllGather {
  Tensor x = {};
  int64_t dim = 0;
  Sizes sizes = {};  // of every rank along dim: given, they are checked; empty,
                     // they are found out
  Tensor out = {};
  double scale = 1;  // multiplies every element on the way (floating and complex
                     // dtypes): adjoints of averages
  // The caller vouches for `sizes`, and that every rank makes this call with the same dtype and the same other
  // dimensions. Under MPI, between hosts, the ranks then agree on nothing, and the call is one MPI_Allgatherv: where they
  // differ it may hang, or corrupt memory. It has NO TIMEOUT there with MPI_THREAD_MULTIPLE, which from_env() asks for: where
  // a rank does not come, the others wait until the launcher ends them. Elsewhere agreeing costs nothing, and of much along
  // an inner dimension less than it saves: there it is done, and this is ignored. To be the same on every rank.
  bool sizes_trusted = false;
  using Result = Gathered;
  static detail::Description describe(AllGather&& op);
  static Result result(detail::Outcome&& outcome);
};

// The same as a list of tensors, one a rank.
struct AllGatherParts {
  Tensor x = {};
  int64_t dim = 0;
  Sizes sizes = {};
  std::vector<Tensor> outs = {};
  using Result = Parts;
  static detail::Description describe(AllGatherParts&& op);
  static Result result(detail::Outcome&& outcome);
};

// Tensors of one shape, 0-d too, as a list: views of one tensor [ranks, …],
// which may be given as out.
struct AllGatherSame {
  Tensor x = {};
  Tensor out = {};
  using Result = std::vector<Tensor>;
  static detail::Description describe(AllGatherSame&& op);
  static Result result(detail::Outcome&& outcome);
};

// Every rank's extent along dim. Moves no elements.
struct GatherSizes {
  Tensor x = {};
  int64_t dim = 0;
  using Result = Sizes;
  static detail::Description describe(GatherSizes&& op);
  static Result result(detail::Outcome&& outcome);
};

// The ranks' x combined, of which each rank keeps its cut along dim.
// Partial(op) → Shard(dim, sizes). Sizes: empty on all ranks for the cut of
// torch.chunk.
struct ReduceScatter {
  Tensor x = {};
  int64_t dim = 0;
  Sizes sizes = {};
  Reduction op = ReduceOp::sum;
  Tensor out = {};
  using Result = Tensor;
  static detail::Description describe(ReduceScatter&& op);
  static Result result(detail::Outcome&& outcome);
};

// The ranks' x combined, on every rank. Partial(op) → Replicate. out may be x.
struct AllReduce {
  Tensor x = {};
  Reduction op = ReduceOp::sum;
  Tensor out = {};
  using Result = Tensor;
  static detail::Description describe(AllReduce&& op);
  static Result result(detail::Outcome&& outcome);
};

// From a cut along concat_dim to one along split_dim. Shard(concat_dim) →
// Shard(split_dim, sizes). Sizes: of the cut of split_dim; empty on all ranks
// for that of torch.chunk. concat_dim may be ragged; its sizes are found out
// and returned.
struct AllToAll {
  Tensor x = {};
  int64_t split_dim = 0;
  int64_t concat_dim = 0;
  Sizes sizes = {};
  Tensor out = {};
  using Result = Gathered;
  static detail::Description describe(AllToAll&& op);
  static Result result(detail::Outcome&& outcome);
};

// send_sizes[r] elements of dim go to rank r, in order; what comes is
// concatenated along dim by sender. recv_sizes, where given, are checked.
// Returns what came and its sizes by sender.
struct AllToAllV {
  Tensor x = {};
  Sizes send_sizes = {};
  Sizes recv_sizes = {};
  int64_t dim = 0;
  Tensor out = {};
  using Result = Gathered;
  static detail::Description describe(AllToAllV&& op);
  static Result result(detail::Outcome&& outcome);
};

// The root's x on every rank. At(root) → Replicate. On the root the result is x
// itself, unless out is another tensor. Other ranks may give an x, which must
// then fit and is only looked at; give it as out to have it written.
struct Broadcast {
  Tensor x = {};
  int64_t root = 0;
  Tensor out = {};
  double scale = 1;
  using Result = Tensor;
  static detail::Description describe(Broadcast&& op);
  static Result result(detail::Outcome&& outcome);
};

// Each rank's cut of the root's x along dim. At(root) → Shard(dim, sizes).
// Other ranks need no x and no sizes; sizes empty on the root: those of
// torch.chunk.
struct Scatter {
  Tensor x = {};
  int64_t root = 0;
  int64_t dim = 0;
  Sizes sizes = {};
  Tensor out = {};
  using Result = Gathered;
  static detail::Description describe(Scatter&& op);
  static Result result(detail::Outcome&& outcome);
};

// The concatenation of every rank's x along dim, on the root; elsewhere the
// tensor is undefined. Shard(dim, sizes) → At(root).
struct Gather {
  Tensor x = {};
  int64_t root = 0;
  int64_t dim = 0;
  Sizes sizes = {};
  Tensor out = {};
  using Result = Gathered;
  static detail::Description describe(Gather&& op);
  static Result result(detail::Outcome&& outcome);
};

// The ranks' x combined, on the root; elsewhere undefined. Partial(op) →
// At(root).
struct Reduce {
  Tensor x = {};
  int64_t root = 0;
  Reduction op = ReduceOp::sum;
  Tensor out = {};
  using Result = Tensor;
  static detail::Description describe(Reduce&& op);
  static Result result(detail::Outcome&& outcome);
};

// Nothing moves; every rank has come when it is done. Comm::barrier() runs it,
// start() makes it a Work.
struct Barrier {
  struct Result {};
  static detail::Description describe(Barrier&&);
  static Result result(detail::Outcome&& outcome);
};

template <class Op>
concept Operation = requires(const Op& op) {
  Op::describe(Op(op));
};

namespace detail {

template <class Op>
std::vector<Description> describe_all(const std::vector<Op>& ops) {
  std::vector<Description> batch;
  for (const Op& op : ops) batch.push_back(Op::describe(Op(op)));
  return batch;
}

template <class Op>
std::vector<typename Op::Result> results_of(const std::vector<Op>& ops, std::vector<Outcome>& outcomes) {
  std::vector<typename Op::Result> results;
  for (size_t i = 0; i < ops.size(); ++i) results.push_back(ops[i].result(std::move(outcomes[i])));
  return results;
}

}  // namespace detail

// Runs described operations. Several share one agreement and one move; none may
// need another's result.
template <Operation Op>
typename Op::Result run(Comm& comm, Op&& op, const Site& site = Site::current()) {
  const detail::Description description = Op::describe(std::forward<Op>(op));
  detail::Outcome outcome;
  detail::execute(comm, {&description, 1}, {&outcome, 1}, site);
  return Op::result(std::move(outcome));
}
template <Operation Op>
typename Op::Result run(Comm& comm, const Op& op, const Site& site = Site::current()) {
  return run(comm, Op(op), site);
}

template <Operation Op>
std::vector<typename Op::Result> run(Comm& comm, const std::vector<Op>& ops, const Site& site = Site::current()) {
  std::vector<detail::Outcome> outcomes(ops.size());
  detail::execute(comm, detail::describe_all(ops), outcomes, site);
  return detail::results_of(ops, outcomes);
}

// A Comm and the place in the caller's code where it was passed.
struct CommHere {
  Comm& comm;
  Site site;
  CommHere(Comm& c, const Site& s = Site::current()) : comm(c), site(s) {}
};

namespace detail {

template <class... Ops>
using ResultsOf = std::tuple<typename Ops::Result...>;

template <class... Ops, size_t... I>
ResultsOf<Ops...> take_results(std::vector<Outcome>& outcomes, std::index_sequence<I...>) {
  return {Ops::result(std::move(outcomes[I]))...};
}

template <class... Ops>
ResultsOf<Ops...> take_results(std::vector<Outcome>& outcomes) {
  return take_results<Ops...>(outcomes, std::index_sequence_for<Ops...>{});
}

}  // namespace detail

template <Operation First, Operation Second, Operation... More>
auto run(CommHere here, const First& first, const Second& second, const More&... more) {
  const std::vector<detail::Description> batch{First::describe(First(first)), Second::describe(Second(second)),
                                               More::describe(More(more))...};
  std::vector<detail::Outcome> outcomes(batch.size());
  detail::execute(here.comm, batch, outcomes, here.site);
  return detail::take_results<First, Second, More...>(outcomes);
}

// Starts described operations on the communicator's worker, after all that was
// started before, and returns at once.
template <Operation Op>
WorkOf<std::vector<typename Op::Result>> start(Comm& comm, const std::vector<Op>& ops,
                                               const Site& site = Site::current()) {
  auto outcomes = std::make_shared<std::vector<detail::Outcome>>();
  auto task = detail::start(comm, detail::describe_all(ops), site, outcomes);
  return {std::move(task), [outcomes, ops] { return detail::results_of(ops, *outcomes); }};
}

template <Operation First, Operation Second, Operation... More>
auto start(CommHere here, const First& first, const Second& second, const More&... more) {
  auto outcomes = std::make_shared<std::vector<detail::Outcome>>();
  auto task = detail::start(
      here.comm, {First::describe(First(first)), Second::describe(Second(second)), More::describe(More(more))...},
      here.site, outcomes);
  return WorkOf<detail::ResultsOf<First, Second, More...>>(
      std::move(task), [outcomes] { return detail::take_results<First, Second, More...>(*outcomes); });
}

template <Operation Op>
WorkOf<typename Op::Result> start(Comm& comm, const Op& op, const Site& site = Site::current()) {
  auto outcomes = std::make_shared<std::vector<detail::Outcome>>();
  auto task = detail::start(comm, {Op::describe(Op(op))}, site, outcomes);
  return {std::move(task), [outcomes, op] { return op.result(std::move((*outcomes)[0])); }};
}

// The functions: x, then the description's other fields, named or in the usual
// order.
Gathered all_gather(Comm& comm, const Tensor& x, AllGather op, const Site& site = Site::current());
Gathered all_gather(Comm& comm, const Tensor& x, int64_t dim = 0, const Sizes& sizes = {},
                    const Site& site = Site::current());
Parts all_gather_parts(Comm& comm, const Tensor& x, AllGatherParts op, const Site& site = Site::current());
Parts all_gather_parts(Comm& comm, const Tensor& x, int64_t dim = 0, const Sizes& sizes = {},
                       const Site& site = Site::current());
std::vector<Tensor> all_gather_same(Comm& comm, const Tensor& x, const Tensor& out = {},
                                    const Site& site = Site::current());
Sizes gather_sizes(Comm& comm, const Tensor& x, int64_t dim = 0, const Site& site = Site::current());
Tensor reduce_scatter(Comm& comm, const Tensor& x, ReduceScatter op, const Site& site = Site::current());
Tensor reduce_scatter(Comm& comm, const Tensor& x, int64_t dim = 0, const Sizes& sizes = {},
                      Reduction op = ReduceOp::sum, const Site& site = Site::current());
Tensor all_reduce(Comm& comm, const Tensor& x, Reduction op = ReduceOp::sum, const Tensor& out = {},
                  const Site& site = Site::current());
Gathered all_to_all(Comm& comm, const Tensor& x, AllToAll op, const Site& site = Site::current());
Gathered all_to_all(Comm& comm, const Tensor& x, int64_t split_dim, int64_t concat_dim, const Sizes& sizes = {},
                    const Site& site = Site::current());
Gathered all_to_all_v(Comm& comm, const Tensor& x, AllToAllV op, const Site& site = Site::current());
Gathered all_to_all_v(Comm& comm, const Tensor& x, const Sizes& send_sizes, const Sizes& recv_sizes = {},
                      int64_t dim = 0, const Site& site = Site::current());
Tensor broadcast(Comm& comm, const Tensor& x, int64_t root = 0, const Tensor& out = {},
                 const Site& site = Site::current());
Gathered scatter(Comm& comm, const Tensor& x, Scatter op, const Site& site = Site::current());
Gathered scatter(Comm& comm, const Tensor& x, int64_t root, int64_t dim = 0, const Sizes& sizes = {},
                 const Site& site = Site::current());
Gathered gather(Comm& comm, const Tensor& x, Gather op, const Site& site = Site::current());
Gathered gather(Comm& comm, const Tensor& x, int64_t root, int64_t dim = 0, const Site& site = Site::current());
Tensor reduce(Comm& comm, const Tensor& x, int64_t root, Reduction op = ReduceOp::sum, const Tensor& out = {},
              const Site& site = Site::current());

// Local. This rank's cut of a tensor that every rank has whole: a view.
// Replicate → Shard(dim, sizes). Throws ShapeError where sizes are not one for
// each rank, not negative, with the extent of dim for their sum.
Tensor split(const Comm& comm, const Tensor& x, int64_t dim, const Sizes& sizes);

// Local. This rank's own of a list of parts (or of a tensor stacked along dim
// 0), and the extents of their first dimensions.
Gathered split_by_rank(const Comm& comm, const std::vector<Tensor>& parts);
Gathered split_by_rank(const Comm& comm, const Tensor& stacked);

// Between two ranks. A message goes to the first receive that fits its sender
// and tag, in order. send() returns when the receiver has the elements. Where
// dtypes or shapes do not fit, both get a MismatchError and nothing is moved.
inline constexpr int kAnySource = -1;
struct Received {
  Tensor tensor;
  int source = 0;
};
void send(Comm& comm, const Tensor& x, int to, int64_t tag = 0, const Site& site = Site::current());
Received recv(Comm& comm, int from, int64_t tag = 0, const Tensor& out = {}, const Site& site = Site::current());
// Posted at once; they do not wait for calls that were started before.
Work start_send(Comm& comm, const Tensor& x, int to, int64_t tag = 0, const Site& site = Site::current());
WorkOf<Received> start_recv(Comm& comm, int from, int64_t tag = 0, const Tensor& out = {},
                            const Site& site = Site::current());

}  // namespace tessera
