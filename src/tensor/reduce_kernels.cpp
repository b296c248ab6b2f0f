#include "tensor/reduce_kernels.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <tessera/error.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/reduce_kernels.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "tensor/short_float-inl.hpp"

// Every instruction set gives the same bits: only operations that are exact or
// rounded once, never a fused one (the build turns contraction off), and the
// last few elements go through the same vector code as the rest.
HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Operations on two vectors
// -------------------------------------------------------------------------------------------

struct Sum {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    return hn::Add(a, b);
  }
};

struct Prod {
  template <class D, class V>
  static HWY_INLINE V apply(D d, V a, V b) {
    if constexpr (sizeof(Lane<D>) == 1) {
      return bytes(d, a, b);
    } else {
      return hn::Mul(a, b);
    }
  }

 private:
  // No machine multiplies bytes: the even and the odd ones are multiplied as
  // halves of 16 bits.
  template <class D, class V>
  static HWY_INLINE V bytes(D d, V a, V b) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<uint8_t>(hn::GetLane(a) * hn::GetLane(b)));
#else
    const hn::Repartition<uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00ff));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
    return hn::BitCast(d, hn::Or(even, odd));
#endif
  }
};

// a where it is a NaN or no greater than b, else b (which may be a NaN).
// Machines differ in what their own minimum does with NaN and with zeros of
// both signs.
struct Min {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    if constexpr (hwy::IsFloat<Lane<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Le(a, b), hn::IsNaN(a)), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    if constexpr (hwy::IsFloat<Lane<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Ge(a, b), hn::IsNaN(a)), a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct BitAnd {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    return hn::And(a, b);
  }
};

struct BitOr {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    return hn::Or(a, b);
  }
};

struct BitXor {
  template <class D, class V>
  static HWY_INLINE V apply(D, V a, V b) {
    return hn::Xor(a, b);
  }
};

#if HWY_TARGET != HWY_SCALAR
// Lanes are re, im, re, im…: (a.re b.re - a.im b.im) + (a.re b.im + a.im b.re)
// i, each product rounded.
struct ComplexProd {
  template <class D, class V>
  static HWY_INLINE V apply(D d, V a, V b) {
    const V straight = hn::Mul(hn::DupEven(a), b);
    const V crossed = hn::Mul(hn::DupOdd(a), hn::Reverse2(d, b));
    return hn::OddEven(hn::Add(straight, crossed), hn::Sub(straight, crossed));
  }
};
#endif

// Loops over blocks
// ---------------------------------------------------------------------------------------------------

constexpr size_t kLineBytes = 64;
constexpr size_t kAhead = 1024;  // bytes to fetch ahead: over the end of a page
                                 // the machine does not do so itself

// Accumulators as they lie in memory.
template <class T>
struct Plain {
  using D = hn::ScalableTag<T>;
  static constexpr size_t kBytes = sizeof(T);
  static HWY_INLINE hn::Vec<D> get(const std::byte* from) { return load(D(), from); }
};

// Short floats, promoted on the way.
template <class Bits, class Decoder>
struct Promoted {
  using D = Floats;
  static constexpr size_t kBytes = sizeof(Bits);
  static HWY_INLINE hn::Vec<D> get(const std::byte* from) { return Decoder().apply(load(Short<Bits>(), from)); }
};

template <class Source, class Op, int kTerms, bool kStream = false>
HWY_INLINE void fold_vector(std::byte* out, const std::byte* const (&in)[kTerms], size_t at) {
  const typename Source::D d;
  auto result = Op::apply(d, Source::get(in[0] + at), Source::get(in[1] + at));
  if constexpr (kTerms == 3) result = Op::apply(d, result, Source::get(in[2] + at));
  if constexpr (kTerms == 4)
    result = Op::apply(d, result, Op::apply(d, Source::get(in[2] + at), Source::get(in[3] + at)));
  if constexpr (kStream) hn::Stream(result, d, reinterpret_cast<Lane<typename Source::D>*>(out));
  else store(d, result, out);
}

// kLanes lanes make one element.
template <class Source, int kLanes, class Op, int kTerms, bool kStream = false>
void fold(std::byte* out, const std::byte* const* terms, int64_t count, bool near) {
  using D = typename Source::D;
  constexpr size_t kIn = Source::kBytes, kOut = sizeof(Lane<D>);
  const size_t lanes = static_cast<size_t>(count) * kLanes, step = hn::Lanes(D());
  const std::byte* in[kTerms];
  std::copy(terms, terms + kTerms, in);
  size_t i = 0;
  for (; i + 2 * step <= lanes; i += 2 * step) {
    // Out of a cache a line now and then is best. Out of memory that is 1.4 times slower than none, as the machine's own
    // looking ahead is upset by it; there it must be all, or with stores into a cache none.
    if (kStream || near) {
      for (const std::byte* term : in) {
        const size_t bytes = 2 * step * kIn;
        for (size_t at = 0; at < bytes; at += kStream ? kLineBytes : bytes) hwy::Prefetch(term + i * kIn + at + kAhead);
      }
    }
    fold_vector<Source, Op, kTerms, kStream>(out + i * kOut, in, i * kIn);
    fold_vector<Source, Op, kTerms, kStream>(out + (i + step) * kOut, in, (i + step) * kIn);
  }
  for (; i + step <= lanes; i += step) fold_vector<Source, Op, kTerms>(out + i * kOut, in, i * kIn);
  if (i == lanes) return;
  HWY_ALIGN std::byte last[kTerms][hn::MaxLanes(D()) * kIn] = {};
  HWY_ALIGN std::byte last_out[hn::MaxLanes(D()) * kOut];
  const std::byte* last_in[kTerms];
  for (int k = 0; k < kTerms; ++k) {
    std::memcpy(last[k], in[k] + i * kIn, (lanes - i) * kIn);
    last_in[k] = last[k];
  }
  fold_vector<Source, Op, kTerms>(last_out, last_in, 0);
  std::memcpy(out + i * kOut, last_out, (lanes - i) * kOut);
}

#if HWY_TARGET == HWY_SCALAR
// A vector of one lane holds half a complex number, so here the loop is over
// elements.
template <class T>
struct Complex {
  T re, im;
  friend Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
};

template <class T, int kTerms>
void fold_complex_prod(std::byte* out, const std::byte* const* in, int64_t count, bool) {
  for (size_t at = 0; at < static_cast<size_t>(count) * sizeof(Complex<T>); at += sizeof(Complex<T>)) {
    Complex<T> x[kTerms];
    for (int k = 0; k < kTerms; ++k) std::memcpy(&x[k], in[k] + at, sizeof(x[k]));
    Complex<T> product = x[0] * x[1];
    if constexpr (kTerms == 3) product = product * x[2];
    if constexpr (kTerms == 4) product = product * (x[2] * x[3]);
    std::memcpy(out + at, &product, sizeof(product));
  }
}

template <class T>
void use_complex_prod(ReduceKernels& kernels) {
  kernels.fold[0] = fold_complex_prod<T, 2>;
  kernels.fold[1] = fold_complex_prod<T, 3>;
  kernels.fold[2] = fold_complex_prod<T, 4>;
}
#endif

// Calls Map::apply on vectors of DIn, count lanes in all.
template <class DIn, class DOut, class Map>
HWY_INLINE void map_lanes(std::byte* out, const std::byte* in, int64_t count, const Map& map) {
  const DIn d_in;
  const DOut d_out;
  const size_t step = hn::Lanes(d_in), lanes = static_cast<size_t>(count);
  constexpr size_t kIn = sizeof(Lane<DIn>), kOut = sizeof(Lane<DOut>);
  size_t i = 0;
  for (; i + step <= lanes; i += step) store(d_out, map.apply(load(d_in, in + i * kIn)), out + i * kOut);
  if (i == lanes) return;
  HWY_ALIGN std::byte last_in[hn::MaxLanes(d_in) * kIn] = {};
  HWY_ALIGN std::byte last_out[hn::MaxLanes(d_out) * kOut];
  std::memcpy(last_in, in + i * kIn, (lanes - i) * kIn);
  store(d_out, map.apply(load(d_in, last_in)), last_out);
  std::memcpy(out + i * kOut, last_out, (lanes - i) * kOut);
}

template <class T>
struct MultiplyBy {
  hn::Vec<hn::ScalableTag<T>> factor;
  template <class V>
  HWY_INLINE V apply(V v) const {
    return hn::Mul(v, factor);
  }
};

template <class T>
struct DivideBy {
  hn::Vec<hn::ScalableTag<T>> divisor;
  template <class V>
  HWY_INLINE V apply(V v) const {
    return hn::Div(v, divisor);
  }
};

template <class T, int kLanes, template <class> class Map>
void scale(std::byte* out, const std::byte* in, int64_t count, double factor) {
  using D = hn::ScalableTag<T>;
  map_lanes<D, D>(out, in, count * kLanes, Map<T>{hn::Set(D(), static_cast<T>(factor))});
}

struct Truth {
  template <class V>
  HWY_INLINE V apply(V bytes) const {
    const hn::ScalableTag<uint8_t> d;
    return hn::IfThenElse(hn::Eq(bytes, hn::Zero(d)), hn::Zero(d), hn::Set(d, 1));
  }
};

template <class DIn, class DOut, class Map>
void convert(std::byte* out, const std::byte* in, int64_t count) {
  map_lanes<DIn, DOut>(out, in, count, Map());
}

// The tables
// ----------------------------------------------------------------------------------------------------------

template <class T, int kLanes, class Op>
void use(ReduceKernels& kernels) {
  kernels.fold[0] = fold<Plain<T>, kLanes, Op, 2>;
  kernels.fold[1] = fold<Plain<T>, kLanes, Op, 3>;
  kernels.fold[2] = fold<Plain<T>, kLanes, Op, 4>;
  if constexpr (std::is_same_v<Op, Sum>) {  // the rest is too rare to be compiled twice
    kernels.stream_fold[0] = fold<Plain<T>, kLanes, Op, 2, true>;
    kernels.stream_fold[1] = fold<Plain<T>, kLanes, Op, 3, true>;
    kernels.stream_fold[2] = fold<Plain<T>, kLanes, Op, 4, true>;
  }
}

#if HWY_TARGET != HWY_SCALAR
template <class T>
void use_complex_prod(ReduceKernels& kernels) {
  use<T, 2, ComplexProd>(kernels);
}
#endif

template <class T>
void use_float(ReduceKernels& kernels, ReduceOp op) {
  kernels.accumulator_bytes = sizeof(T);
  kernels.multiply = scale<T, 1, MultiplyBy>;
  kernels.divide = scale<T, 1, DivideBy>;
  if (op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum) use<T, 1, Sum>(kernels);
  if (op == ReduceOp::prod) use<T, 1, Prod>(kernels);
  if (op == ReduceOp::min) use<T, 1, Min>(kernels);
  if (op == ReduceOp::max) use<T, 1, Max>(kernels);
}

template <class T>
void use_complex(ReduceKernels& kernels, ReduceOp op) {
  kernels.accumulator_bytes = 2 * sizeof(T);
  kernels.multiply = scale<T, 2, MultiplyBy>;
  kernels.divide = scale<T, 2, DivideBy>;
  if (op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum) use<T, 2, Sum>(kernels);
  if (op == ReduceOp::prod) use_complex_prod<T>(kernels);
}

void use_bits(ReduceKernels& kernels, ReduceOp op, int64_t bytes) {
  kernels.accumulator_bytes = bytes;
  const auto pick = [&]<class Op>(Op) {
    if (bytes == 1) use<uint8_t, 1, Op>(kernels);
    if (bytes == 2) use<uint8_t, 2, Op>(kernels);
    if (bytes == 4) use<uint8_t, 4, Op>(kernels);
    if (bytes == 8) use<uint8_t, 8, Op>(kernels);
  };
  if (op == ReduceOp::bit_and) pick(BitAnd());
  if (op == ReduceOp::bit_or) pick(BitOr());
  if (op == ReduceOp::bit_xor) pick(BitXor());
}

// Sums and products wrap, so they are those of the unsigned type.
template <class T>
void use_integer(ReduceKernels& kernels, ReduceOp op) {
  use_bits(kernels, op, sizeof(T));
  if (op == ReduceOp::sum) use<std::make_unsigned_t<T>, 1, Sum>(kernels);
  if (op == ReduceOp::prod) use<std::make_unsigned_t<T>, 1, Prod>(kernels);
  if (op == ReduceOp::min) use<T, 1, Min>(kernels);
  if (op == ReduceOp::max) use<T, 1, Max>(kernels);
}

void use_bool(ReduceKernels& kernels, ReduceOp op) {
  using Bytes = hn::ScalableTag<uint8_t>;
  if (op == ReduceOp::sum || op == ReduceOp::max) op = ReduceOp::bit_or;
  if (op == ReduceOp::prod || op == ReduceOp::min) op = ReduceOp::bit_and;
  use_bits(kernels, op, 1);
  kernels.promote = convert<Bytes, Bytes, Truth>;
}

template <class Bits, class Decoder, class Encoder>
void use_short_float(ReduceKernels& kernels, ReduceOp op) {
  use_float<float>(kernels, op);
  kernels.promote = convert<Short<Bits>, Floats, Decoder>;
  kernels.demote = convert<Floats, Short<Bits>, Encoder>;
  if (op != ReduceOp::sum && op != ReduceOp::avg) return;  // the rest is too rare to be compiled twice
  kernels.fold_elements[0] = fold<Promoted<Bits, Decoder>, 1, Sum, 2>;
  kernels.fold_elements[1] = fold<Promoted<Bits, Decoder>, 1, Sum, 3>;
  kernels.fold_elements[2] = fold<Promoted<Bits, Decoder>, 1, Sum, 4>;
}

ReduceKernels kernels_for(DType dtype, ReduceOp op) {
  ReduceKernels kernels;
  switch (dtype) {
    case DType::f64: use_float<double>(kernels, op); break;
    case DType::f32: use_float<float>(kernels, op); break;
    case DType::f16: use_short_float<uint16_t, DecodeHalf, EncodeHalf>(kernels, op); break;
    case DType::bf16: use_short_float<uint16_t, DecodeBFloat16, EncodeBFloat16>(kernels, op); break;
    case DType::f8e4m3:
      use_short_float<uint8_t, Decode<Float8E4M3Format>, Encode<Float8E4M3Format, uint8_t>>(kernels, op);
      break;
    case DType::f8e5m2:
      use_short_float<uint8_t, Decode<Float8E5M2Format>, Encode<Float8E5M2Format, uint8_t>>(kernels, op);
      break;
    case DType::i64: use_integer<int64_t>(kernels, op); break;
    case DType::i32: use_integer<int32_t>(kernels, op); break;
    case DType::i16: use_integer<int16_t>(kernels, op); break;
    case DType::i8: use_integer<int8_t>(kernels, op); break;
    case DType::u8: use_integer<uint8_t>(kernels, op); break;
    case DType::boolean: use_bool(kernels, op); break;
    case DType::c64: use_complex<float>(kernels, op); break;
    case DType::c128: use_complex<double>(kernels, op); break;
  }
  return kernels;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {
namespace {
HWY_EXPORT(kernels_for);
}

ReduceKernels reduce_kernels(DType dtype, ReduceOp op) {
  const ReduceKernels kernels = HWY_DYNAMIC_DISPATCH(kernels_for)(dtype, op);
  if (kernels.fold[0] == nullptr) throw DTypeError(fmt::format("{} of {} is not defined", name(op), dtype));
  return kernels;
}

}  // namespace tessera
#endif
