// The operators on tensors that have a shape and no elements: on the device "meta", and where torch.compile traces.
#include <atomic>
#include <numeric>

#include <torch/library.h>

#include "border.hpp"
#include "redistribute.hpp"

namespace tessera {
namespace {

std::atomic<detail::SizeHook> size_hook{nullptr};

}  // namespace

void detail::set_size_hook(SizeHook hook) { size_hook.store(hook); }

namespace torch_front::on_meta {
namespace {

using c10::SymInt;
using call::Name;
using call::OptionalInt;
using call::OptionalShape;
using call::Pair;
using Shape = std::vector<SymInt>;

// Sizes whose values are there, beside a tensor whose are not.
std::optional<Sizes> values_of(const OptionalTensor& sizes, const char* field, const Comm& comm, const char* op) {
  if (!sizes || !sizes->defined() || !sizes->key_set().has_backend(c10::BackendComponent::CPUBit)) return std::nullopt;
  if (sizes->key_set().has(c10::DispatchKey::Python)) return std::nullopt;
  Sizes values = read_sizes(*sizes, field);
  if (values.size() != static_cast<size_t>(comm.size())) {
    throw ShapeError(fmt::format("{}: {} {} for {} ranks: give one for each", op, values.size(), field, comm.size()));
  }
  for (const int64_t value : values) {
    if (value < 0) throw ShapeError(fmt::format("{}: {} has {}: a size cannot be negative", op, field, value));
  }
  return values;
}

// What only a call finds out, where nobody has given it.
SymInt found(const OptionalInt& given, const at::Tensor& x, const char* op) {
  if (given) return *given;
  if (auto* const hook = size_hook.load(); hook != nullptr) {
    if (const auto symbol = hook(x, op)) return *symbol;
  }
  throw ShapeError(
      fmt::format("{}: the size of its result is found out by the call, and a meta tensor has nothing to find: give "
                  "sizes with their values",
                  op));
}

SymInt total_of(const OptionalInt& given, const OptionalTensor& sizes, const char* field, const at::Tensor& x,
                const Comm& comm, const char* op) {
  if (const auto values = given ? std::nullopt : values_of(sizes, field, comm, op)) {
    return std::accumulate(values->begin(), values->end(), int64_t{0});
  }
  return found(given, x, op);
}

// This rank's part of a dimension: of the sizes, or of torch.chunk's.
SymInt cut_of(const OptionalInt& given, const OptionalTensor& sizes, int64_t dim, const at::Tensor& x, const Comm& comm,
              const char* op) {
  if (given) return *given;
  if (!sizes || !sizes->defined()) return chunk_of(x.sym_size(dim), comm.size(), comm.rank());
  const auto values = values_of(sizes, "sizes", comm, op);
  return values ? SymInt((*values)[static_cast<size_t>(comm.rank())]) : found(given, x, op);
}

void check_root(int64_t root, const Comm& comm, const char* op) {
  if (root >= 0 && root < comm.size()) return;
  throw ShapeError(fmt::format("{}: root {} is none of the ranks 0 to {}", op, root, comm.size() - 1));
}

Shape resized(const at::Tensor& x, std::initializer_list<std::pair<int64_t, SymInt>> extents) {
  Shape shape = x.sym_sizes().vec();
  for (const auto& [dim, extent] : extents) shape[static_cast<size_t>(normalize_dim(dim, shape.size()))] = extent;
  return shape;
}

at::Tensor sizes_of(const at::Tensor& x, const Comm& comm) {
  return x.new_empty({comm.size()}, x.options().dtype(at::kLong));
}

Pair pair_of(const at::Tensor& x, const Shape& shape, const Comm& comm) {
  return {x.new_empty_symint(shape), sizes_of(x, comm)};
}

Pair all_gather(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt total, Name grad, double,
                Name name) {
  return guarded([&] {
    const Comm comm = torch_comm(name);
    parse_grad(grad);
    return pair_of(x, resized(x, {{dim, total_of(total, sizes, "sizes", x, comm, "all_gather")}}), comm);
  });
}

at::Tensor gather_sizes(const at::Tensor& x, int64_t dim, Name name) {
  return guarded([&] {
    normalize_dim(dim, static_cast<size_t>(x.dim()));
    return sizes_of(x, torch_comm(name));
  });
}

at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const OptionalTensor& sizes, OptionalInt own, Name op,
                          double factor, Name name) {
  return guarded([&] {
    const Comm comm = torch_comm(name);
    check_reduction(x, op, factor);
    return x.new_empty_symint(resized(x, {{dim, cut_of(own, sizes, dim, x, comm, "reduce_scatter")}}));
  });
}

at::Tensor all_reduce(const at::Tensor& x, Name op, double factor, Name) {
  return guarded([&] {
    check_reduction(x, op, factor);
    return x.new_empty_symint(x.sym_sizes());
  });
}

Pair all_to_all(const at::Tensor& x, int64_t split_dim, int64_t concat_dim, const OptionalTensor& sizes,
                OptionalInt own, OptionalInt total, Name name) {
  return guarded([&] {
    const Comm comm = torch_comm(name);
    const SymInt part = cut_of(own, sizes, split_dim, x, comm, "all_to_all");
    return pair_of(x, resized(x, {{split_dim, part}, {concat_dim, found(total, x, "all_to_all")}}), comm);
  });
}

Pair all_to_all_v(const at::Tensor& x, const at::Tensor&, const OptionalTensor& recv_sizes, int64_t dim,
                  OptionalInt total, Name name) {
  return guarded([&] {
    const Comm comm = torch_comm(name);
    const SymInt whole = total_of(total, recv_sizes, "recv_sizes", x, comm, "all_to_all_v");
    return pair_of(x, resized(x, {{dim, whole}}), comm);
  });
}

at::Tensor broadcast(const at::Tensor& x, bool given, int64_t root, OptionalShape shape, double, Name name) {
  return guarded([&] {
    check_root(root, torch_comm(name), "broadcast");
    if (shape) return x.new_empty_symint(*shape);
    if (given) return x.new_empty_symint(x.sym_sizes());
    throw ShapeError(
        "broadcast: where shapes are worked out, give a tensor of the result's shape and dtype on every rank");
  });
}

Pair scatter(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalShape shape,
             Name name) {
  return guarded([&] {
    const Comm comm = torch_comm(name);
    check_root(root, comm, "scatter");
    if (shape) return pair_of(x, shape->vec(), comm);
    if (comm.rank() == root) {
      return pair_of(x, resized(x, {{dim, cut_of(std::nullopt, sizes, dim, x, comm, "scatter")}}), comm);
    }
    // Which sizes the root gives is known there alone.
    if (x.dim() > 0) return pair_of(x, resized(x, {{dim, found(std::nullopt, x, "scatter")}}), comm);
    throw ShapeError(
        "scatter: where shapes are worked out, give a tensor of the root's shape and dtype on every rank; its elements "
        "do not matter");
  });
}

Pair gather(const at::Tensor& x, int64_t root, int64_t dim, const OptionalTensor& sizes, OptionalInt total, Name name) {
  return guarded([&] {
    const Comm comm = torch_comm(name);
    check_root(root, comm, "gather");
    const SymInt extent = comm.rank() == root ? total_of(total, sizes, "sizes", x, comm, "gather") : SymInt(0);
    return pair_of(x, resized(x, {{dim, extent}}), comm);
  });
}

at::Tensor reduce(const at::Tensor& x, int64_t root, Name op, double factor, Name name) {
  return guarded([&] {
    const Comm comm = torch_comm(name);
    check_root(root, comm, "reduce");
    check_reduction(x, op, factor);
    Shape shape = x.sym_sizes().vec();
    if (comm.rank() != root) shape.insert(shape.begin(), 0);
    return x.new_empty_symint(shape);
  });
}

at::Tensor split(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt own, Name name) {
  return guarded([&] {
    return x.new_empty_symint(resized(x, {{dim, cut_of(own, sizes, dim, x, torch_comm(name), "split")}}));
  });
}

at::Tensor embed(const at::Tensor& x, int64_t dim, const at::Tensor& sizes, OptionalInt total, Name name) {
  return guarded([&] {
    return x.new_empty_symint(resized(x, {{dim, total_of(total, sizes, "sizes", x, torch_comm(name), "embed")}}));
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(tessera, Meta, m) {
  m.impl("all_gather", TORCH_FN(call::Listed<all_gather>::run));
  m.impl("gather_sizes", TORCH_FN(gather_sizes));
  m.impl("reduce_scatter", TORCH_FN(reduce_scatter));
  m.impl("all_reduce", TORCH_FN(all_reduce));
  m.impl("all_to_all", TORCH_FN(call::Listed<all_to_all>::run));
  m.impl("all_to_all_v", TORCH_FN(call::Listed<all_to_all_v>::run));
  m.impl("broadcast", TORCH_FN(broadcast));
  m.impl("scatter", TORCH_FN(call::Listed<scatter>::run));
  m.impl("gather", TORCH_FN(call::Listed<gather>::run));
  m.impl("reduce", TORCH_FN(reduce));
  m.impl("split", TORCH_FN(split));
  m.impl("embed", TORCH_FN(embed));
  m.impl("redistribute", TORCH_FN(redistribute_on_meta));
}

}  // namespace torch_front::on_meta
}  // namespace tessera

void tessera::torch_front::keep_shapes() {}
