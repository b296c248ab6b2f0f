#include <tessera/tensor.hpp>

#include <utility>

#include <fmt/format.h>

#include <tessera/pool.hpp>

#include "tensor/copy.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

int64_t bytes_of(DType dtype, const Dims& shape) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(volume(shape), size_bytes(dtype), &bytes)) {
    throw ShapeError(fmt::format("a {} tensor of shape {} has more than 2^63 - 1 bytes", dtype, shape));
  }
  return bytes;
}

}  // namespace

int64_t Tensor::bytes() const { return bytes_of(dtype_, shape_); }

Tensor Tensor::empty(DType dtype, const Dims& shape) {
  auto memory = pool::allocate(bytes_of(dtype, shape));
  void* data = memory.get();
  return view(data, dtype, shape, row_major(shape), std::move(memory));
}

Tensor Tensor::zeros(DType dtype, const Dims& shape) {
  Tensor t = empty(dtype, shape);
  std::memset(t.data(), 0, static_cast<size_t>(t.bytes()));
  return t;
}

Tensor Tensor::view(void* data, DType dtype, const Dims& shape, const Dims& strides, std::shared_ptr<void> owner) {
  if (strides.size() != shape.size()) {
    throw ShapeError(
        fmt::format("a shape of {} dimensions {} needs as many strides, not {}", shape.size(), shape, strides.size()));
  }
  if (volume(shape) > 0 && data == nullptr) throw ShapeError(fmt::format("no memory for a tensor of shape {}", shape));
  check_extent(dtype, shape, strides);
  Tensor t;
  t.defined_ = true;
  t.dtype_ = dtype;
  t.data_ = static_cast<std::byte*>(data);
  t.shape_ = shape;
  t.strides_ = strides;
  t.owner_ = std::move(owner);
  return t;
}

Tensor Tensor::checked_view(const void* data, DType dtype, const Dims& shape, int64_t available) {
  const int64_t needed = volume(shape);
  if (needed != available) {
    throw ShapeError(fmt::format("shape {} has {} elements, the memory {}", shape, needed, available));
  }
  return view(const_cast<void*>(data), dtype, shape, row_major(shape));
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (size_t d = shape_.size(); d-- > 0;) {
    if (shape_[d] == 0) return true;
    if (shape_[d] != 1 && strides_[d] != expected) return false;
    expected *= shape_[d];
  }
  return true;
}

void Tensor::check_access(DType wanted, bool contiguous) const {
  if (!defined_) throw ShapeError("the tensor is undefined: it has no elements to look at");
  if (wanted != dtype_) throw DTypeError(fmt::format("the tensor holds {}, not {}", dtype_, wanted));
  if (contiguous && !is_contiguous()) {
    throw ShapeError(
        fmt::format("span() needs a contiguous tensor; this one has shape {} "
                    "and strides {}: clone() it first",
                    shape_, strides_));
  }
}

void Tensor::check_fill(const Dims& origin) const {
  if (!defined_) throw ShapeError("fill: the tensor is undefined: it has no elements");
  if (origin.empty() || origin.size() == shape_.size()) return;
  throw ShapeError(
      fmt::format("fill: an origin {} for a tensor of shape {}: "
                  "give one number for each dimension",
                  origin, shape_));
}

std::byte* Tensor::element(const Dims& index) const {
  if (index.size() != shape_.size()) {
    throw ShapeError(fmt::format("{} indices {} for a tensor of shape {}", index.size(), index, shape_));
  }
  int64_t at = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    if (index[d] < 0 || index[d] >= shape_[d]) {
      throw ShapeError(fmt::format("index {} lies outside of shape {}", index, shape_));
    }
    at += index[d] * strides_[d];
  }
  return data_ + at * size_bytes(dtype_);
}

namespace {

void check_stretch(size_t dim, int64_t start, int64_t length, const Dims& shape) {
  if (start >= 0 && length >= 0 && start <= shape[dim] - length) return;
  throw ShapeError(
      fmt::format("{} elements from {} on do not lie within dim {} of shape {}", length, start, dim, shape));
}

}  // namespace

Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  const auto d = static_cast<size_t>(normalize_dim(dim, shape_.size()));
  check_stretch(d, start, length, shape_);
  Tensor t = *this;
  t.shape_[d] = length;
  if (length > 0) t.data_ += start * strides_[d] * size_bytes(dtype_);
  return t;
}

Tensor Tensor::select(int64_t dim, int64_t index) const {
  const auto d = static_cast<size_t>(normalize_dim(dim, shape_.size()));
  Tensor t = narrow(dim, index, 1);
  t.shape_.erase(d);
  t.strides_.erase(d);
  return t;
}

Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const {
  const auto a = static_cast<size_t>(normalize_dim(dim0, shape_.size()));
  const auto b = static_cast<size_t>(normalize_dim(dim1, shape_.size()));
  Tensor t = *this;
  std::swap(t.shape_[a], t.shape_[b]);
  std::swap(t.strides_[a], t.strides_[b]);
  return t;
}

Tensor Tensor::unsqueeze(int64_t dim) const {
  const auto d = static_cast<size_t>(normalize_dim(dim, shape_.size() + 1));
  Tensor t = *this;
  t.strides_.insert(d, d < shape_.size() ? strides_[d] * shape_[d] : 1);
  t.shape_.insert(d, 1);
  return t;
}

Tensor Tensor::expand(const Dims& shape) const {
  const auto fail = [&] { throw ShapeError(fmt::format("shape {} does not expand to {}", shape_, shape)); };
  if (shape.size() < shape_.size()) fail();
  Tensor t = *this;
  const size_t added = shape.size() - shape_.size();
  t.shape_ = shape;
  t.strides_ = Dims::filled(shape.size(), 0);
  for (size_t d = 0; d < shape_.size(); ++d) {
    if (shape_[d] == shape[d + added]) t.strides_[d + added] = strides_[d];
    else if (shape_[d] != 1) fail();
  }
  volume(shape);
  return t;
}

Tensor Tensor::reshape(const Dims& shape) const {
  if (!is_contiguous())
    throw ShapeError(fmt::format("reshape to {}: the tensor is not contiguous; clone() it first", shape));
  if (volume(shape) != elements()) throw ShapeError(fmt::format("shape {} does not reshape to {}", shape_, shape));
  Tensor t = *this;
  t.shape_ = shape;
  t.strides_ = row_major(shape);
  return t;
}

Tensor Tensor::box(const Box& box) const {
  if (box.extent.size() != shape_.size() || box.offset.size() != shape_.size()) {
    throw ShapeError(fmt::format("a box of offset {} and extent {} in shape {}", box.offset, box.extent, shape_));
  }
  Tensor t = *this;
  for (size_t d = 0; d < shape_.size(); ++d) {
    check_stretch(d, box.offset[d], box.extent[d], t.shape_);
    t.shape_[d] = box.extent[d];
    if (box.extent[d] > 0) t.data_ += box.offset[d] * strides_[d] * size_bytes(dtype_);
  }
  return t;
}

Tensor Tensor::clone() const {
  if (!defined_) throw ShapeError("clone: the tensor is undefined: it has no elements to copy");
  Tensor t = empty(dtype_, shape_);
  t.copy_from(*this);
  return t;
}

void Tensor::check_writable() const {
  if (read_only_) throw ShapeError("the tensor is a view of constant memory: it cannot be written to");
}

void Tensor::copy_from(const Tensor& source) const {
  check_writable();
  if (!defined_ || !source.defined_) throw ShapeError("copy_from: a tensor is undefined: it has no elements to copy");
  if (source.dtype_ != dtype_) throw DTypeError(fmt::format("cannot copy {} to {}", source.dtype_, dtype_));
  if (source.shape_ != shape_) throw ShapeError(fmt::format("cannot copy shape {} to {}", source.shape_, shape_));
  copy_box(view_of(*this), view_of(source));
}

bool Tensor::equals(const Tensor& other) const {
  if (defined_ != other.defined_ || dtype_ != other.dtype_ || shape_ != other.shape_) return false;
  if (!defined_) return true;
  const Tensor a = is_contiguous() ? *this : clone();
  const Tensor b = other.is_contiguous() ? other : other.clone();
  return bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<size_t>(bytes())) == 0;
}

namespace {

std::string element_text(DType dtype, const std::byte* at) {
  return visit(dtype, [&]<class T>(std::type_identity<T>) -> std::string {
    T value;
    std::memcpy(&value, at, sizeof(T));
    if constexpr (is_short_float<T>) return fmt::format("{}", float(value));
    else if constexpr (is_complex_type<T>) return fmt::format("{}{:+}i", value.real(), value.imag());
    else if constexpr (sizeof(T) == 1 && !std::is_same_v<T, bool>) return fmt::format("{}", static_cast<int>(value));
    else return fmt::format("{}", value);
  });
}

void append_elements(std::string& text, const Tensor& t, size_t dim, const std::byte* at) {
  if (dim == t.shape().size()) {
    text += element_text(t.dtype(), at);
    return;
  }
  constexpr int64_t kEdge = 3;  // of a long dimension the first and last few are shown
  text += '{';
  for (int64_t i = 0; i < t.shape()[dim]; ++i) {
    if (i > 0) text += ", ";
    if (t.shape()[dim] > 2 * kEdge + 2 && i == kEdge) {
      text += "…, ";
      i = t.shape()[dim] - kEdge;
    }
    append_elements(text, t, dim + 1, at + i * t.strides()[dim] * size_bytes(t.dtype()));
  }
  text += '}';
}

}  // namespace

std::string to_string(const Tensor& t) {
  if (!t.defined()) return "undefined";
  std::string text = fmt::format("{} {} ", t.dtype(), t.shape());
  append_elements(text, t, 0, t.data());
  return text;
}

}  // namespace tessera
