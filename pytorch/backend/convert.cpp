#include "convert.hpp"

#include <sys/mman.h>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <fmt/format.h>

#include "../bindings/raise.hpp"

namespace tessera::backend {
namespace {

// What tessera computes with; none: it can only move it.
std::optional<DType> own_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return DType::f64;
    case at::kFloat: return DType::f32;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kFloat8_e4m3fn: return DType::f8e4m3;
    case at::kFloat8_e5m2: return DType::f8e5m2;
    case at::kLong: return DType::i64;
    case at::kInt: return DType::i32;
    case at::kShort: return DType::i16;
    case at::kChar: return DType::i8;
    case at::kByte: return DType::u8;
    case at::kBool: return DType::boolean;
    case at::kComplexFloat: return DType::c64;
    case at::kComplexDouble: return DType::c128;
    default: return std::nullopt;
  }
}

DType dtype_of_bytes(at::ScalarType dtype) {
  switch (c10::elementSize(dtype)) {
    case 1: return DType::u8;
    case 2: return DType::i16;
    case 4: return DType::i32;
    case 8: return DType::i64;
    default: throw DTypeError(fmt::format("{} cannot be moved: tessera has no elements of that size", toString(dtype)));
  }
}

Dims dims_of(at::IntArrayRef values) { return Dims(std::span<const int64_t>(values.data(), values.size())); }

// Row-major tensors that lie one behind the other.
bool in_one_piece(const std::vector<Tensor>& tensors) {
  const std::byte* end = nullptr;
  for (const Tensor& tensor : tensors) {
    if (tensor.elements() == 0) continue;
    if (!tensor.is_contiguous() || (end != nullptr && tensor.data() != end)) return false;
    end = tensor.data() + tensor.bytes();
  }
  return true;
}

std::byte* beginning(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.elements() != 0) return tensor.data();
  }
  return nullptr;
}

}  // namespace

DType dtype_of(at::ScalarType dtype, bool reduced) {
  const auto own = own_dtype(dtype);
  if (own) return *own;
  if (reduced) {
    throw DTypeError(fmt::format("{} cannot be reduced: convert it to a dtype such as int64", toString(dtype)));
  }
  return dtype_of_bytes(dtype);
}

Tensor view_of(const at::Tensor& tensor, bool reduced) {
  if (!tensor.defined()) throw ShapeError("a tensor is undefined");
  if (!tensor.device().is_cpu()) {
    throw DTypeError(
        fmt::format("a tensor is on {}: the tessera backend takes tensors on the CPU", tensor.device().str()));
  }
  if (tensor.layout() != at::kStrided) throw DTypeError("a tensor is sparse: the tessera backend takes dense ones");
  if (tensor.is_conj() || tensor.is_neg()) {
    throw DTypeError("a tensor is a lazy conjugate or negative: call resolve_conj() or resolve_neg() first");
  }
  // The version counter stays as it is: c10d's callers do not expect that a collective counts as a change.
  void* data = tensor.unsafeGetTensorImpl()->mutable_data();
  return Tensor::view(data, dtype_of(tensor.scalar_type(), reduced), dims_of(tensor.sizes()),
                      dims_of(tensor.strides()));
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return ReduceOp::sum;
    case c10d::ReduceOp::AVG: return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT: return ReduceOp::prod;
    case c10d::ReduceOp::MIN: return ReduceOp::min;
    case c10d::ReduceOp::MAX: return ReduceOp::max;
    case c10d::ReduceOp::BAND: return ReduceOp::bit_and;
    case c10d::ReduceOp::BOR: return ReduceOp::bit_or;
    case c10d::ReduceOp::BXOR: return ReduceOp::bit_xor;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* given = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      if (given == nullptr)
        throw Error("PREMUL_SUM has no factor: make it with torch.distributed._make_nccl_premul_sum()");
      return {ReduceOp::premul_sum,
              given->tensor_factor.defined() ? given->tensor_factor.item().toDouble() : given->double_factor};
    }
    default: throw Error(fmt::format("reduction {} is none that tessera knows", static_cast<int>(op.op_)));
  }
}

at::Tensor as_torch(const Tensor& tensor, at::ScalarType dtype) {
  const at::IntArrayRef shape(tensor.shape().data(), tensor.shape().size());
  const at::IntArrayRef strides(tensor.strides().data(), tensor.strides().size());
  return at::from_blob(
      tensor.data(), shape, strides, [owner = tensor](void*) mutable { owner = {}; }, at::TensorOptions().dtype(dtype));
}

namespace {

// One of tessera._errors. It is looked up when Python gets it, and may be thrown again.
class PythonError : public torch::PyTorchError {
 public:
  explicit PythonError(const Error& error) : PyTorchError(error.what()), name_(python::class_of(error)) {}
  PyObject* python_type() override {
    PyObject* const module = PyImport_ImportModule("tessera._errors");
    PyObject* const type = module == nullptr ? nullptr : PyObject_GetAttrString(module, name_);
    Py_XDECREF(module);
    Py_XDECREF(type);  // the module keeps it
    if (type == nullptr) PyErr_Clear();
    return type == nullptr ? PyExc_RuntimeError : type;
  }

 private:
  const char* name_;
};

}  // namespace

std::exception_ptr take_interrupt() {
  const pybind11::gil_scoped_acquire gil;
  PyObject* const core = PyImport_ImportModule("tessera._core");
  PyObject* const raised = core == nullptr ? nullptr : PyObject_CallMethod(core, "take_interrupt", nullptr);
  Py_XDECREF(core);
  std::exception_ptr result;
  if (raised != nullptr && raised != Py_None) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised)), raised);
    python_error error;
    error.persist();
    result = std::make_exception_ptr(std::move(error));
  }
  Py_XDECREF(raised);
  PyErr_Clear();
  return result;
}

std::exception_ptr as_torch(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return std::make_exception_ptr(PythonError(e));
  } catch (...) {
    return error;
  }
}

void rethrow_to_python() {
  const auto error = std::current_exception();
  if (const auto interrupt = take_interrupt()) std::rethrow_exception(interrupt);
  std::rethrow_exception(as_torch(error));
}

Flat::Flat(const Comm& comm, const std::vector<at::Tensor>& tensors, bool reduced) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    views_.push_back(view_of(tensor, reduced));
    sizes_.push_back(views_.back().elements());
    total += sizes_.back();
    if (tensor.scalar_type() != tensors[0].scalar_type()) {
      throw DTypeError(fmt::format("a list of tensors has {} and {}: they must be of one dtype",
                                   toString(tensors[0].scalar_type()), toString(tensor.scalar_type())));
    }
  }
  if (views_.empty()) throw ShapeError("a list of tensors is empty");
  const DType dtype = views_[0].dtype();
  is_view_ = in_one_piece(views_);
  flat_ = is_view_ ? Tensor::view(beginning(views_), dtype, {total}, {1}) : comm.allocate(dtype, {total});
}

// What torch has just got from the system is mapped page by page as it is written to, and that takes longer than the
// writing does: large pages take a third of the time.
const Tensor& Flat::target() const {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20, kSmallPage = uintptr_t{4} << 10;
  const auto data = reinterpret_cast<uintptr_t>(flat_.data());
  const uintptr_t begin = (data + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (data + static_cast<uintptr_t>(flat_.bytes())) / kHugePage * kHugePage;
  unsigned char mapped = 1;
  if (begin >= end || mincore(reinterpret_cast<void*>(begin), kSmallPage, &mapped) != 0 || (mapped & 1) != 0) {
    return flat_;
  }
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return flat_;
}

const Flat& Flat::filled() const {
  int64_t at = 0;
  for (const Tensor& view : views_) {
    if (is_view_) break;
    flat_.narrow(0, at, view.elements()).reshape(view.shape()).copy_from(view);
    at += view.elements();
  }
  return *this;
}

void Flat::spread() const {
  int64_t at = 0;
  for (const Tensor& view : views_) {
    if (is_view_) break;
    view.copy_from(flat_.narrow(0, at, view.elements()).reshape(view.shape()));
    at += view.elements();
  }
}

}  // namespace tessera::backend
