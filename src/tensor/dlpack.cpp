#include <fmt/format.h>

#include <tessera/tensor.hpp>

#include "tensor/dlpack_abi.hpp"

namespace tessera {
namespace {

struct TypeRow {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};
constexpr TypeRow kTypes[] = {
    {DType::f64, 2, 64},    {DType::f32, 2, 32},    {DType::f16, 2, 16}, {DType::bf16, 4, 16},  {DType::f8e4m3, 10, 8},
    {DType::f8e5m2, 12, 8}, {DType::i64, 0, 64},    {DType::i32, 0, 32}, {DType::i16, 0, 16},   {DType::i8, 0, 8},
    {DType::u8, 1, 8},      {DType::boolean, 6, 8}, {DType::c64, 5, 64}, {DType::c128, 5, 128},
};

DLDataType to_dl(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return {row.code, row.bits, 1};
  }
  throw DTypeError(fmt::format("DLPack has no type for {}", dtype));
}

DType from_dl(DLDataType type) {
  for (const TypeRow& row : kTypes) {
    if (type.lanes == 1 && row.code == type.code && row.bits == type.bits) return row.dtype;
  }
  throw DTypeError(fmt::format("tessera has no dtype for DLPack's type code {} of {} bits and {} lanes", type.code,
                               type.bits, type.lanes));
}

// The tensor and its shape live as long as the exported struct.
template <class Managed>
struct Exported {
  Managed managed{};
  Tensor tensor;
};

template <class Managed>
Managed* export_as(const Tensor& tensor) {
  if (!tensor.defined()) throw ShapeError("to_dlpack: the tensor is undefined");
  auto* exported = new Exported<Managed>{{}, tensor};
  DLTensor& dl = exported->managed.dl_tensor;
  dl.data = tensor.data();
  dl.device = {1, 0};
  dl.ndim = static_cast<int32_t>(tensor.ndim());
  dl.dtype = to_dl(tensor.dtype());
  dl.shape = const_cast<int64_t*>(exported->tensor.shape().data());
  dl.strides = const_cast<int64_t*>(exported->tensor.strides().data());
  dl.byte_offset = 0;
  exported->managed.manager_ctx = exported;
  exported->managed.deleter = [](Managed* self) { delete static_cast<Exported<Managed>*>(self->manager_ctx); };
  return &exported->managed;
}

constexpr uint64_t kReadOnly = 1;  // among the flags

template <class Managed>
Tensor import_from(Managed* managed) {
  const DLTensor& dl = managed->dl_tensor;
  constexpr int32_t kCpu = 1, kCudaHost = 3;
  if (dl.device.device_type != kCpu && dl.device.device_type != kCudaHost) {
    throw ArgumentTypeError(
        fmt::format("from_dlpack: the tensor is on DLPack device {}; "
                    "tessera takes host memory: copy it there first",
                    dl.device.device_type));
  }
  const DType dtype = from_dl(dl.dtype);
  const Dims shape{std::span<const int64_t>(dl.shape, static_cast<size_t>(dl.ndim))};
  const Dims strides = dl.strides == nullptr ? row_major(shape)
                                             : Dims{std::span<const int64_t>(dl.strides, static_cast<size_t>(dl.ndim))};
  auto* data = static_cast<std::byte*>(dl.data) + dl.byte_offset;
  // Checked before the ownership passes, so that a refused tensor stays its
  // owner's.
  Tensor tensor = Tensor::view(data, dtype, shape, strides);
  std::shared_ptr<void> owner(managed, [](void* p) {
    auto* self = static_cast<Managed*>(p);
    if (self->deleter != nullptr) self->deleter(self);
  });
  return Tensor::view(data, dtype, shape, strides, std::move(owner));
}

}  // namespace

DLManagedTensor* Tensor::to_dlpack() const { return export_as<DLManagedTensor>(*this); }

DLManagedTensorVersioned* Tensor::to_dlpack_versioned() const {
  auto* managed = export_as<DLManagedTensorVersioned>(*this);
  managed->version = {1, 1};  // the first that has the types of float8
  managed->flags = read_only_ ? kReadOnly : 0;
  return managed;
}

Tensor Tensor::from_dlpack(DLManagedTensor* managed) { return import_from(managed); }

Tensor Tensor::from_dlpack(DLManagedTensorVersioned* managed) {
  if (managed->version.major != 1) {
    throw Error(fmt::format("from_dlpack: DLPack version {}.{}; tessera knows 1.x", managed->version.major,
                            managed->version.minor));
  }
  const bool read_only = (managed->flags & kReadOnly) != 0;
  Tensor tensor = import_from(managed);
  tensor.read_only_ = read_only;
  return tensor;
}

}  // namespace tessera
