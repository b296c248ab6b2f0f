// Several calls of one operator with one agreement. Each has its own place in the autograd graph.
#include <deque>

#include "call.hpp"
#include "recorded.hpp"

namespace tessera::torch_front {
namespace {

// describe(arguments, x) is the call for one tensor, finish(recorded, x, result, arguments) what becomes of its result.
// shared: the gradient is a collective.
template <class Op, class Describe, class Finish>
auto run_list(const char* name, const std::vector<at::Tensor>& xs, bool shared, Comm& comm, Describe&& describe,
              Finish&& finish) {
  const Site site = context().site;
  std::deque<Recorded> recorded;
  std::deque<Arguments> arguments;
  std::vector<tessera::detail::Description> batch;
  std::vector<tessera::detail::Outcome> outcomes(xs.size());
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    for (const at::Tensor& x : xs) {
      context().site = site;
      recorded.emplace_back(name, x, shared);
      Arguments& in = arguments.emplace_back(comm, x);
      auto description = describe(in, x);
      batch.push_back(in.complete(std::move(description)));
    }
    tessera::detail::execute(comm, batch, outcomes, site);
  }
  std::vector<decltype(finish(recorded[0], xs[0], Op::result(std::move(outcomes[0])), arguments[0]))> results;
  for (size_t i = 0; i < xs.size(); ++i) {
    Arguments::settle(comm, outcomes[i].flags, site);
    context().made.place = static_cast<int64_t>(i);
    results.push_back(finish(recorded[i], xs[i], Op::result(std::move(outcomes[i])), arguments[i]));
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> all_reduce_list(const std::vector<at::Tensor>& xs, std::string_view op, double factor,
                                        std::string_view comm_name) {
  return guarded([&] {
    Comm comm = torch_comm(comm_name);
    return run_list<AllReduce>(
        "all_reduce", xs, true, comm,
        [&](Arguments& in, const at::Tensor& x) {
          return AllReduce::describe({.x = in.tensor(x), .op = in.reduction(op, factor)});
        },
        [&](const Recorded& recorded, const at::Tensor&, const Tensor& sum, const Arguments& in) {
          const at::Tensor result = in.result(sum);
          if (!recorded.wanted()) return result;
          linear(op, factor, comm_name);
          return recorded.attach(
              result, [factor, op_name = std::string(op), name = std::string(comm_name)](const at::Tensor& g) {
                return call::all_reduce(g, op_name, factor, name);
              });
        });
  });
}

std::vector<std::tuple<at::Tensor, at::Tensor>> all_gather_list(const std::vector<at::Tensor>& xs, int64_t dim,
                                                                std::string_view grad, std::string_view comm_name) {
  return guarded([&] {
    Comm comm = torch_comm(comm_name);
    return run_list<AllGather>(
        "all_gather", xs, grad != "slice", comm,
        [&](Arguments& in, const at::Tensor& x) {
          in.check_grad(grad);
          return AllGather::describe({.x = in.tensor(x), .dim = dim});
        },
        [&](const Recorded& recorded, const at::Tensor& x, const Gathered& gathered, const Arguments& in) {
          std::tuple result = in.result(gathered);
          if (recorded.wanted()) {
            recorded.attach(std::get<0>(result), backward_of_gather(grad, dim, to_tensor(gathered.sizes),
                                                                    x.sym_size(dim), 1, std::string(comm_name)));
          }
          return result;
        });
  });
}

}  // namespace tessera::torch_front
