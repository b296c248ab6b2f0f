// The operators, called through the dispatcher: so that autograd, tracing and shape propagation see them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "border.hpp"

namespace tessera::torch_front::call {

using Pair = std::tuple<at::Tensor, at::Tensor>;
using OptionalInt = std::optional<c10::SymInt>;
using OptionalShape = at::OptionalSymIntArrayRef;
using Name = std::string_view;
using List = std::vector<at::Tensor>;

// Two results are a list to the dispatcher.
inline Pair pair_of(List&& list) { return {std::move(list.at(0)), std::move(list.at(1))}; }
template <auto fn>
struct Listed;
template <class... T, Pair (*fn)(T...)>
struct Listed<fn> {
  static List run(T... arguments) {
    auto [result, sizes] = fn(std::forward<T>(arguments)...);
    List list;
    list.reserve(2);
    list.push_back(std::move(result));
    list.push_back(std::move(sizes));
    return list;
  }
};

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  keep_operators();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline Pair all_gather(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt total, Name grad,
                       double scale, Name comm) {
  static const auto op = find<List(const at::Tensor&, int64_t, const OptionalTensor&, OptionalInt, Name, double, Name)>(
      "tessera::all_gather");
  return pair_of(op.call(x, dim, sizes, std::move(total), grad, scale, comm));
}

inline at::Tensor gather_sizes(const at::Tensor& x, int64_t dim, Name comm) {
  static const auto op = find<at::Tensor(const at::Tensor&, int64_t, Name)>("tessera::gather_sizes");
  return op.call(x, dim, comm);
}

inline at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt own,
                                 Name op_name, double factor, Name comm) {
  static const auto op =
      find<at::Tensor(const at::Tensor&, int64_t, const OptionalTensor&, OptionalInt, Name, double, Name)>(
          "tessera::reduce_scatter");
  return op.call(x, dim, sizes, std::move(own), op_name, factor, comm);
}

inline at::Tensor all_reduce(const at::Tensor& x, Name op_name, double factor, Name comm) {
  static const auto op = find<at::Tensor(const at::Tensor&, Name, double, Name)>("tessera::all_reduce");
  return op.call(x, op_name, factor, comm);
}

inline Pair all_to_all(const at::Tensor& x, int64_t split_dim, int64_t concat_dim, const OptionalTensor& sizes,
                       OptionalInt own, OptionalInt total, Name comm) {
  static const auto op =
      find<List(const at::Tensor&, int64_t, int64_t, const OptionalTensor&, OptionalInt, OptionalInt, Name)>(
          "tessera::all_to_all");
  return pair_of(op.call(x, split_dim, concat_dim, sizes, std::move(own), std::move(total), comm));
}

inline Pair all_to_all_v(const at::Tensor& x, const at::Tensor& send_sizes, const OptionalTensor& recv_sizes,
                         int64_t dim, OptionalInt total, Name comm) {
  static const auto op =
      find<List(const at::Tensor&, const at::Tensor&, const OptionalTensor&, int64_t, OptionalInt, Name)>(
          "tessera::all_to_all_v");
  return pair_of(op.call(x, send_sizes, recv_sizes, dim, std::move(total), comm));
}

inline at::Tensor broadcast(const at::Tensor& x, bool given, int64_t root, OptionalShape shape, double scale,
                            Name comm) {
  static const auto op =
      find<at::Tensor(const at::Tensor&, bool, int64_t, OptionalShape, double, Name)>("tessera::broadcast");
  return op.call(x, given, root, shape, scale, comm);
}

inline Pair scatter(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalShape shape,
                    Name comm) {
  static const auto op =
      find<List(const at::Tensor&, int64_t, int64_t, const OptionalTensor&, OptionalShape, Name)>("tessera::scatter");
  return pair_of(op.call(x, root, dim, sizes, shape, comm));
}

inline Pair gather(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalInt total,
                   Name comm) {
  static const auto op =
      find<List(const at::Tensor&, int64_t, int64_t, const OptionalTensor&, OptionalInt, Name)>("tessera::gather");
  return pair_of(op.call(x, root, dim, sizes, std::move(total), comm));
}

inline at::Tensor reduce(const at::Tensor& x, int64_t root, Name op_name, double factor, Name comm) {
  static const auto op = find<at::Tensor(const at::Tensor&, int64_t, Name, double, Name)>("tessera::reduce");
  return op.call(x, root, op_name, factor, comm);
}

inline at::Tensor split(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt own, Name comm) {
  static const auto op =
      find<at::Tensor(const at::Tensor&, int64_t, const at::Tensor&, OptionalInt, Name)>("tessera::split");
  return op.call(x, dim, sizes, std::move(own), comm);
}

inline at::Tensor embed(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt total, Name comm) {
  static const auto op =
      find<at::Tensor(const at::Tensor&, int64_t, const at::Tensor&, OptionalInt, Name)>("tessera::embed");
  return op.call(x, dim, sizes, std::move(total), comm);
}

inline at::Tensor redistribute(const at::Tensor& x, c10::SymIntArrayRef shape, Name source, Name target, Name plan,
                               double scale, Name convention, Name comm) {
  static const auto op = find<at::Tensor(const at::Tensor&, c10::SymIntArrayRef, Name, Name, Name, double, Name, Name)>(
      "tessera::redistribute");
  return op.call(x, shape, source, target, plan, scale, convention, comm);
}

}  // namespace tessera::torch_front::call
