// The loops over several strided views of one shape, made as few and as long as
// the strides of all of them allow.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tensor/view.hpp"

namespace tessera {

// One view in a nest: where its first element lies, seen from the view's data,
// and its strides, all in bytes.
struct NestOperand {
  int64_t offset = 0;
  std::array<int64_t, kMaxDims> stride;
};

template <class Byte>
NestOperand operand_of(const BasicView<Byte>& view) {
  NestOperand operand;
  const int64_t size = size_bytes(view.dtype);
  // The stride of an extent of 1 says nothing, and may be any number.
  for (size_t d = 0; d < view.shape.size(); ++d) operand.stride[d] = view.shape[d] > 1 ? view.strides[d] * size : 0;
  return operand;
}

template <class Byte>
bool is_row_major(const BasicView<Byte>& view) {
  int64_t stride = 1;
  for (size_t d = view.shape.size(); d-- > 0;) {
    if (view.shape[d] != 1 && view.strides[d] != stride) return false;
    stride *= view.shape[d];
  }
  return true;
}

// Loop 0 is the innermost. Operand 0 is the destination: it decides the order
// and runs forwards in every loop. `Operands` is a std::array or a std::vector
// of NestOperand.
template <class Operands>
class LoopNest {
 public:
  // The operands come with the strides of `shape`, dimension by dimension, in
  // bytes.
  LoopNest(const Dims& shape, Operands operands) : operands_(operands) {
    for (size_t d = shape.size(); d-- > 0;) {
      if (shape[d] == 0) empty_ = true;
      if (shape[d] == 1) continue;
      for (size_t k = 0; k < operands.size(); ++k) operands_[k].stride[loops_] = operands[k].stride[d];
      extent_[loops_++] = shape[d];
    }
    if (empty_) return;
    for (size_t loop = 0; loop < loops_; ++loop) run_forwards(loop);
    sort();
    merge();
  }

  bool empty() const { return empty_; }
  size_t loops() const { return loops_; }
  int64_t extent(size_t loop) const { return extent_[loop]; }
  int64_t stride(size_t operand, size_t loop) const { return operands_[operand].stride[loop]; }
  int64_t offset(size_t operand) const { return operands_[operand].offset; }
  size_t operands() const { return operands_.size(); }

  // Takes the innermost loop out; the caller does it in another way.
  void drop_innermost() { erase(0); }

  void swap(size_t a, size_t b) {
    std::swap(extent_[a], extent_[b]);
    for (NestOperand& operand : operands_) std::swap(operand.stride[a], operand.stride[b]);
  }

 private:
  void run_forwards(size_t loop) {
    if (operands_[0].stride[loop] >= 0) return;
    for (NestOperand& operand : operands_) {
      operand.offset += operand.stride[loop] * (extent_[loop] - 1);
      operand.stride[loop] = -operand.stride[loop];
    }
  }

  void sort() {
    for (size_t i = 1; i < loops_; ++i) {
      for (size_t j = i; j > 0 && operands_[0].stride[j] < operands_[0].stride[j - 1]; --j) swap(j, j - 1);
    }
  }

  void merge() {
    for (size_t loop = loops_; loop-- > 1;) {
      const bool dense = std::all_of(operands_.begin(), operands_.end(), [&](const NestOperand& operand) {
        return operand.stride[loop] == operand.stride[loop - 1] * extent_[loop - 1];
      });
      if (!dense) continue;
      extent_[loop - 1] *= extent_[loop];
      erase(loop);
    }
  }

  void erase(size_t at) {
    --loops_;
    for (size_t loop = at; loop < loops_; ++loop) {
      extent_[loop] = extent_[loop + 1];
      for (NestOperand& operand : operands_) operand.stride[loop] = operand.stride[loop + 1];
    }
  }

  bool empty_ = false;
  size_t loops_ = 0;
  std::array<int64_t, kMaxDims> extent_;
  Operands operands_;
};

}  // namespace tessera
