// A device for machines that have none but the CPU: its addresses are none of the host's, and only torch copies there and
// back. What is computed there is computed on copies.
#include <cstdlib>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto kTwin = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
constexpr uintptr_t kAway = uintptr_t{1} << 60;  // no address of a process has it

void* away(void* here) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(here) ^ kAway); }

struct Memory final : c10::Allocator {
  static void release(void* here) { std::free(here); }
  c10::DataPtr allocate(size_t bytes) override {
    void* const here = std::malloc(bytes + 1);
    return {away(here), here, &release, c10::Device(kTwin, 0)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(away(to), away(const_cast<void*>(from)), bytes);
  }
};
Memory memory;
REGISTER_ALLOCATOR(kTwin, &memory)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTwin; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {kTwin, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, getDevice()); }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(getDevice()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys, c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  at::Tensor here = at::from_blob(away(const_cast<void*>(tensor.const_data_ptr())), tensor.sizes(), tensor.strides(),
                                  tensor.options().device(at::kCPU));
  here._set_conj(tensor.is_conj());
  here._set_neg(tensor.is_neg());
  return here;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const at::IntArrayRef extents = C10_AS_INTARRAYREF_SLOW(size);
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (tensor.sizes() == extents) return tensor;
  impl->set_storage_keep_dtype(empty(extents, tensor.scalar_type(), {}, {}, {}, {}).storage());
  impl->set_sizes_contiguous(extents);
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, resize(to, from.sym_sizes(), {}), false);
}

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size));
}

void by_the_cpu(const c10::OperatorHandle& op, ::torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("view", view);
  m.impl("alias", at::native::alias);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
}
// Copies see to these bits themselves.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", ::torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", ::torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(::torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>()); }

const bool registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::register_privateuse1_backend("twin");
  return true;
}();

}  // namespace
