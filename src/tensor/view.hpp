// A strided window on memory that somebody else keeps alive: what the hot loops
// work on.
#pragma once

#include <cstddef>

#include <tessera/dims.hpp>
#include <tessera/dtype.hpp>

namespace tessera {

template <class Byte>
struct BasicView {
  Byte* data = nullptr;  // of element [0, 0, …]
  DType dtype = DType::f32;
  Dims shape;
  Dims strides;  // in elements; any sign, zero included

  int64_t elements() const { return volume(shape); }
  BasicView box(const Box& b) const {
    BasicView view{data, dtype, b.extent, strides};
    int64_t at = 0;
    for (size_t d = 0; d < shape.size(); ++d) at += b.offset[d] * strides[d];
    view.data += at * size_bytes(dtype);
    return view;
  }
  operator BasicView<const Byte>() const { return {data, dtype, shape, strides}; }
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

}  // namespace tessera
