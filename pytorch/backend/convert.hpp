// Between torch's words and tessera's: tensors, which are viewed in place, reductions and errors.
#pragma once

#include <exception>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <tessera/collective.hpp>

namespace tessera::backend {

// The elements where they lie. `reduced`: they are to be computed with, and not only moved, so that the dtype must be one
// of tessera's. Throws ShapeError, DTypeError.
Tensor view_of(const at::Tensor& tensor, bool reduced = false);

// As above. Throws DTypeError.
DType dtype_of(at::ScalarType dtype, bool reduced = false);

// Throws Error for what tessera has not.
Reduction reduction_of(const c10d::ReduceOp& op);

// The result of a call, which torch owns from now on.
at::Tensor as_torch(const Tensor& tensor, at::ScalarType dtype);

// The same error as Python is to see it: of the class of that name in the Python package.
std::exception_ptr as_torch(const std::exception_ptr& error);

// What a signal's handler raised while this thread waited, once, as Python is to see it; null: nothing. Takes Python's lock.
std::exception_ptr take_interrupt();

// Of the exception that is being handled, on its way to the thread's caller: that, or as_torch().
[[noreturn]] void rethrow_to_python();

// Several tensors as one flat tensor, in their order: a view where they lie one behind the other, else memory of its own,
// that peers read fastest.
class Flat {
 public:
  Flat(const Comm& comm, const std::vector<at::Tensor>& tensors, bool reduced = false);

  const Tensor& tensor() const { return flat_; }
  // The same, about to be written to.
  const Tensor& target() const;
  const Sizes& sizes() const { return sizes_; }  // elements of each
  // From the tensors, before a call that reads them; and back, after one that has written.
  const Flat& filled() const;
  void spread() const;

 private:
  std::vector<Tensor> views_;
  Sizes sizes_;
  Tensor flat_;
  bool is_view_ = true;
};

}  // namespace tessera::backend
