// Tensor: a counted, strided, typed array in host memory. It holds and
// describes; it has no arithmetic.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tessera/dims.hpp>
#include <tessera/dtype.hpp>
#include <tessera/error.hpp>

struct DLManagedTensor;           // dlpack.h, DLPack 0.x
struct DLManagedTensorVersioned;  // dlpack.h, DLPack 1.x

namespace tessera {

// A handle: copies share the memory, and a const Tensor is a constant handle to
// writable elements. Views of the caller's memory are taken as they are, with
// any strides and any alignment. Thread safety: as std::shared_ptr's for the
// handle; none for the elements.
class Tensor {
 public:
  // Undefined: no dtype, no memory. Not defaulted: that would clear the lists.
  Tensor() noexcept {}  // NOLINT(modernize-use-equals-default)
  Tensor(const Tensor&) = default;
  Tensor& operator=(const Tensor&) = default;
  // What was moved from is undefined. A call moves many of these.
  Tensor(Tensor&& other) noexcept {
    if (other.defined_) take(other);
  }
  Tensor& operator=(Tensor&& other) noexcept {
    if (this != &other) take(other);
    return *this;
  }

  // New, row-major, from the pool (see pool.hpp). empty() leaves the elements
  // as they are.
  static Tensor empty(DType dtype, const Dims& shape);
  static Tensor zeros(DType dtype, const Dims& shape);
  template <class T>
  static Tensor full(DType dtype, const Dims& shape, T value) {
    return generate(dtype, shape, [value](std::span<const int64_t>) { return value; });
  }
  // Each element is fn(its coordinate): the local index plus `origin`, the
  // place of element 0 in a larger tensor.
  template <class Fn>
  static Tensor generate(DType dtype, const Dims& shape, Fn&& fn, const Dims& origin = {}) {
    Tensor t = empty(dtype, shape);
    t.fill(fn, origin);
    return t;
  }

  // The caller's memory, row-major; the caller keeps it alive. Throws
  // ShapeError where data is not just that long. A view of constant memory is
  // refused as an output.
  template <class T>
  static Tensor view(std::span<T> data, const Dims& shape) {
    Tensor t = checked_view(data.data(), dtype_of<std::remove_const_t<T>>(), shape, static_cast<int64_t>(data.size()));
    t.read_only_ = std::is_const_v<T>;
    return t;
  }
  // Any memory with any strides (in elements); `owner`, if given, is kept as
  // long as a Tensor needs it.
  static Tensor view(void* data, DType dtype, const Dims& shape, const Dims& strides, std::shared_ptr<void> owner = {});

  bool defined() const { return defined_; }
  bool read_only() const { return read_only_; }
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  int64_t shape(int64_t dim) const { return shape_[static_cast<size_t>(normalize_dim(dim, shape_.size()))]; }
  int64_t elements() const { return volume(shape_); }
  int64_t bytes() const;  // of its elements, each counted; throws ShapeError past 2^63 - 1, as an expanded view may be
  bool is_contiguous() const;  // row-major without gaps
  std::byte* data() const { return data_; }
  const std::shared_ptr<void>& owner() const { return owner_; }

  // Typed access. T must be the dtype's own C++ type (DTypeError). span(): the
  // tensor must be contiguous (ShapeError).
  template <class T>
  std::span<T> span() const {
    check_access(dtype_of<std::remove_const_t<T>>(), true);
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(elements())};
  }
  template <class T, class... Index>
  T& at(Index... index) const {
    check_access(dtype_of<std::remove_const_t<T>>(), false);
    return *reinterpret_cast<T*>(element(Dims{static_cast<int64_t>(index)...}));
  }
  // Sets each element to fn(coordinate), converted to the dtype. Throws
  // ShapeError for an origin of another length.
  template <class Fn>
  void fill(Fn&& fn, const Dims& origin = {}) const;

  // Views; no element is copied. Throw ShapeError for what does not fit.
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor transpose(int64_t dim0, int64_t dim1) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor expand(const Dims& shape) const;   // extents of 1 (and new leading ones) repeat, with stride 0
  Tensor reshape(const Dims& shape) const;  // contiguous tensors only
  Tensor box(const Box& box) const;

  // New memory.
  Tensor clone() const;                        // row-major copy
  void copy_from(const Tensor& source) const;  // same dtype and shape (DTypeError, ShapeError); no overlap
  bool equals(const Tensor& other) const;      // same dtype, shape and bytes of every element

  // DLPack. to_*: the receiver calls the deleter. from_*: takes over `managed`
  // and calls its deleter when done; throws DTypeError or Error, `managed` then
  // untouched, for a device other than the CPU or a type tessera has not. What
  // is marked read-only is as a view of constant memory, both ways; the older
  // struct cannot say so.
  DLManagedTensor* to_dlpack() const;
  DLManagedTensorVersioned* to_dlpack_versioned() const;
  static Tensor from_dlpack(DLManagedTensor* managed);
  static Tensor from_dlpack(DLManagedTensorVersioned* managed);

 private:
  void take(Tensor& other) noexcept {
    defined_ = std::exchange(other.defined_, false);
    read_only_ = std::exchange(other.read_only_, false);
    dtype_ = other.dtype_;
    data_ = std::exchange(other.data_, nullptr);
    shape_ = std::move(other.shape_);
    strides_ = std::move(other.strides_);
    owner_ = std::move(other.owner_);
  }
  static Tensor checked_view(const void* data, DType dtype, const Dims& shape, int64_t available);
  void check_access(DType wanted, bool contiguous) const;
  void check_fill(const Dims& origin) const;
  std::byte* element(const Dims& index) const;
  void check_writable() const;

  bool defined_ = false;
  bool read_only_ = false;
  DType dtype_ = DType::f32;
  std::byte* data_ = nullptr;
  Dims shape_;
  Dims strides_;
  std::shared_ptr<void> owner_;
};

// "float32 [2, 3] {{0, 1, 2}, {3, 4, 5}}", long ones shortened.
std::string to_string(const Tensor& tensor);

template <class Fn>
void Tensor::fill(Fn&& fn, const Dims& origin) const {
  check_fill(origin);
  check_writable();
  if (elements() == 0) return;
  visit(dtype_, [&]<class T>(std::type_identity<T>) {
    Dims index = Dims::filled(shape_.size(), 0);
    Dims coordinate = origin.empty() ? index : origin;
    const size_t last = shape_.size();
    for (bool more = true; more;) {
      const T value = cast_to<T>(fn(std::span<const int64_t>(coordinate)));
      std::memcpy(element(index), &value, sizeof(T));
      more = false;
      for (size_t d = last; d-- > 0 && !more;) {
        ++coordinate[d];
        more = ++index[d] < shape_[d];
        if (!more) {
          coordinate[d] -= index[d];
          index[d] = 0;
        }
      }
    }
  });
}

}  // namespace tessera

template <>
struct fmt::formatter<tessera::Tensor> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const tessera::Tensor& tensor, Context& context) const {
    return fmt::formatter<std::string_view>::format(tessera::to_string(tensor), context);
  }
};
