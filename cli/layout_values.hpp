// A distributed tensor whose every element is a function of its place in the whole: a rank fills its part of any layout
// alone, and can tell of any part it gets whether each element is the right one.
#pragma once

#include <cstring>
#include <optional>
#include <string>

#include <tessera/layout.hpp>
#include <tessera/tensor.hpp>

namespace tessera::cli {

// Scrambled, so that an element which lands in another place, a power of two away too, is noticed.
inline uint64_t scrambled(std::span<const int64_t> coordinate) {
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (const int64_t c : coordinate) {
    h = (h ^ static_cast<uint64_t>(c)) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
  }
  return h;
}

// A whole number that the dtype holds exactly, one more and one less too: so sums are exact in any order.
inline int64_t value_at(std::span<const int64_t> coordinate, DType dtype) {
  const uint64_t h = scrambled(coordinate);
  switch (dtype) {
    case DType::boolean: return static_cast<int64_t>(h & 1);
    case DType::f8e4m3:
    case DType::f8e5m2: return static_cast<int64_t>(1 + h % 6);
    case DType::i8:
    case DType::u8:
    case DType::bf16: return static_cast<int64_t>(1 + h % 100);
    default: return static_cast<int64_t>(1 + h % 1000);
  }
}

// Term number `index` of so many, which reduce to the value. Who has the value itself changes from element to element.
inline int64_t term_at(std::span<const int64_t> coordinate, DType dtype, ReduceOp op, int64_t index, int64_t terms) {
  const int64_t value = value_at(coordinate, dtype);
  if (terms == 1) return value;
  const int64_t owner = static_cast<int64_t>((scrambled(coordinate) >> 32) % static_cast<uint64_t>(terms));
  const int64_t place = (index - owner + terms) % terms;  // 0: the owner
  const bool flags = dtype == DType::boolean;
  switch (op) {
    case ReduceOp::avg: return value;
    case ReduceOp::prod: return place == 0 ? value : 1;
    case ReduceOp::min: return place == 0 ? value : flags ? 1 : value + 1;
    case ReduceOp::max: return place == 0 ? value : flags ? 0 : value - 1;
    case ReduceOp::bit_and: return place == 0 ? value : flags ? 1 : -1;
    case ReduceOp::bit_or: return place == 0 ? value : 0;
    case ReduceOp::bit_xor: return place == 0 ? value ^ 1 : place == 1 ? 1 : 0;
    default: break;
  }
  if (flags) return place == 0 ? value : 0;  // a sum of bools is "or"
  if (terms == 2) return place == 0 ? value - 1 : 1;
  return place == 0 ? value : place == 1 ? 1 : place == 2 ? -1 : 0;
}

// What the rank holds of the layout; undefined: nothing.
inline Tensor part_of(const Layout& layout, const Dims& shape, DType dtype, int rank) {
  const auto box = layout.box(shape, rank);
  if (!box) return {};
  const auto place = *layout.mesh().coordinate(rank);
  int64_t index = 0, terms = 1;
  for (const size_t axis : layout.axes(Placement::Kind::partial)) {
    index = index * layout.mesh().size(axis) + place[axis];
    terms *= layout.mesh().size(axis);
  }
  const ReduceOp op = layout.pending().value_or(ReduceOp::sum);
  return Tensor::generate(
      dtype, box->extent, [&](auto at) { return term_at(at, dtype, op, index, terms); }, box->offset);
}

// Of the first element, in the order of the part, that is not as it should be; none: all are. Nothing may be pending.
inline std::optional<std::string> first_wrong(const Tensor& part, const Layout& layout, const Dims& shape, DType dtype,
                                              int rank) {
  const auto box = layout.box(shape, rank);
  if (!box) return part.defined() ? std::optional("there is a part where none should be") : std::nullopt;
  if (!part.defined()) return "there is no part";
  if (part.dtype() != dtype || !(part.shape() == box->extent)) {
    return fmt::format("the part is {} {}, and should be {} {}", part.dtype(), part.shape(), dtype, box->extent);
  }
  const Tensor right = part_of(layout, shape, dtype, rank);
  if (part.equals(right)) return {};
  Box one{Dims::filled(shape.size(), 0), Dims::filled(shape.size(), 1)};
  while (part.box(one).equals(right.box(one))) {
    for (size_t d = shape.size(); d-- > 0 && ++one.offset[d] == box->extent[d];) one.offset[d] = 0;
  }
  Dims global = one.offset;
  for (size_t d = 0; d < shape.size(); ++d) global[d] += box->offset[d];
  return fmt::format("element {} (local {}) is {}, and should be {}", global, one.offset,
                     part.box(one).clone().reshape({}), right.box(one).clone().reshape({}));
}

}  // namespace tessera::cli
