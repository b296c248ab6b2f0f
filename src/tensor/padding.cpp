#include <tessera/padding.hpp>

#include <algorithm>

namespace tessera {

Tensor pad_dim_to(const Tensor& t, int64_t length, int64_t dim) {
  const auto d = static_cast<size_t>(normalize_dim(dim, t.shape().size()));
  if (length < 0) throw ShapeError(fmt::format("pad_dim_to: a length of {} is negative", length));
  const int64_t kept = std::min(length, t.shape()[d]);
  if (kept == length) return t.narrow(dim, 0, kept).clone();
  Dims shape = t.shape();
  shape[d] = length;
  Tensor padded = Tensor::zeros(t.dtype(), shape);
  padded.narrow(dim, 0, kept).copy_from(t);
  return padded;
}

Tensor pad_tensor(const Tensor& t, int64_t dim, int64_t pad_size) {
  if (pad_size == 0) return t;
  int64_t length = 0;
  if (__builtin_add_overflow(t.shape(dim), pad_size, &length)) {
    throw ShapeError(
        fmt::format("pad_tensor: a pad of {} along dim {} of shape {} is too long", pad_size, dim, t.shape()));
  }
  return pad_dim_to(t, length, dim);
}

Tensor unpad_tensor(const Tensor& t, int64_t dim, int64_t pad_size) {
  if (pad_size == 0) return t;
  if (pad_size < 0) throw ShapeError(fmt::format("unpad_tensor: a pad of {} is negative", pad_size));
  return t.narrow(dim, 0, t.shape(dim) - pad_size);
}

std::vector<Tensor>& fill_empty_tensor_to_shards(std::vector<Tensor>& shards, int64_t dim, int64_t count) {
  if (count <= 0) return shards;
  if (shards.empty())
    throw ShapeError(
        "fill_empty_tensor_to_shards: the list has no first "
        "tensor to take the shape from");
  Dims shape = shards[0].shape();
  shape[static_cast<size_t>(normalize_dim(dim, shape.size()))] = 0;
  const Tensor empty = Tensor::zeros(shards[0].dtype(), shape);
  shards.insert(shards.end(), static_cast<size_t>(count), empty);
  return shards;
}

bool has_only_one_value(std::span<const int64_t> values) {
  if (values.empty()) throw ShapeError("has_only_one_value: there is no value");
  return std::all_of(values.begin(), values.end(), [&](int64_t value) { return value == values[0]; });
}

bool has_only_one_value(const Tensor& t) {
  if (t.ndim() == 0 || t.shape(0) == 0) throw ShapeError("has_only_one_value: the tensor has no first row");
  // As t == t[0] has it: every row equals the first, by value (a NaN equals
  // nothing, -0 equals 0).
  return visit(t.dtype(), [&]<class T>(std::type_identity<T>) {
    const Tensor rows = t.clone(), first = t.select(0, 0).clone();
    const auto values = rows.span<T>();
    const auto expected = first.span<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!(values[i] == expected[i % expected.size()])) return false;
    }
    return true;
  });
}

}  // namespace tessera
