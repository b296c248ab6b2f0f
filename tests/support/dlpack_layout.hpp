// Where DLPack's C interface has its fields on a 64-bit machine.
#pragma once

#include <cstddef>

namespace tessera::testing_support {

template <class DLDevice, class DLDataType, class DLTensor>
constexpr bool tensor_layout_fits() {
  return sizeof(DLDevice) == 8 && offsetof(DLDevice, device_type) == 0 && offsetof(DLDevice, device_id) == 4 &&
         sizeof(DLDataType) == 4 && offsetof(DLDataType, code) == 0 && offsetof(DLDataType, bits) == 1 &&
         offsetof(DLDataType, lanes) == 2 && sizeof(DLTensor) == 48 && offsetof(DLTensor, data) == 0 &&
         offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16 && offsetof(DLTensor, dtype) == 20 &&
         offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, strides) == 32 && offsetof(DLTensor, byte_offset) == 40;
}

template <class DLManagedTensor>
constexpr bool managed_layout_fits() {
  return sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, dl_tensor) == 0 &&
         offsetof(DLManagedTensor, manager_ctx) == 48 && offsetof(DLManagedTensor, deleter) == 56;
}

template <class DLManagedTensorVersioned>
constexpr bool versioned_layout_fits() {
  return sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, version) == 0 &&
         offsetof(DLManagedTensorVersioned, manager_ctx) == 8 && offsetof(DLManagedTensorVersioned, deleter) == 16 &&
         offsetof(DLManagedTensorVersioned, flags) == 24 && offsetof(DLManagedTensorVersioned, dl_tensor) == 32;
}

}  // namespace tessera::testing_support
