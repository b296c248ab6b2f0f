// What a rank says of a call: the record that ranks exchange before anything
// moves.
#pragma once

#include <bit>
#include <span>
#include <string>
#include <vector>

#include <tessera/detail/description.hpp>

#include "comm/transport.hpp"

namespace tessera {

using detail::OpCode;

enum class ErrorKind : uint32_t {
  none,
  mismatch,
  shape,
  dtype,
  argument,
  argument_type,
  peer_lost,
  timed_out,
  aborted,
  other,
};
[[noreturn]] void throw_error(ErrorKind kind, const std::string& text);

std::string_view name(OpCode op);
// Whether the operation works along a dimension of x, and whether `rank` must have an x.
bool cuts(OpCode op);
bool needs_x(OpCode op, int64_t root, int rank);

// Also of two NaNs.
inline bool same_bits(double a, double b) { return std::bit_cast<int64_t>(a) == std::bit_cast<int64_t>(b); }

// How an output lies to its input: apart, over it in a way that cannot be used, or that many elements behind it.
inline constexpr int64_t kApart = INT64_MIN;
inline constexpr int64_t kClash = INT64_MIN + 1;

// One operation of one rank. Dimensions are normalized. Tensor 0 of the
// operation is x, where there is one; the caller's (or early) outputs follow.
struct Statement {
  OpCode op = OpCode::none;
  int64_t dim = 0;
  int64_t split_dim = 0;
  int64_t root = 0;
  Reduction reduction;
  double scale = 1;
  int64_t extra[2] = {0, 0};
  int64_t flags = 0;
  bool has_x = false;
  std::vector<Announced> tensors;
  std::vector<int64_t> in_place;  // of each output: kApart, kClash, or where x and it share elements
  Sizes sizes;
  Sizes recv_sizes;
  std::string note;  // redistribute: the layouts

  const Announced& x() const { return tensors[0]; }
  // Back to nothing said, with the capacity of its lists kept.
  void reset();
  std::span<const Announced> outs() const { return std::span(tensors).subspan(has_x ? 1 : 0); }
};

// The handle of a tensor whose elements travel within the record: where they begin, and this.
inline constexpr uint64_t kInlined = uint64_t{1} << 61;

// All that a rank says in one exchange.
struct Record {
  int64_t call = 0;
  ErrorKind problem = ErrorKind::none;  // of this rank alone; all ranks throw it
  std::string problem_text;
  std::string file;  // the call site
  int64_t line = 0;
  std::vector<Statement> statements;
  // The elements of small tensors, which travel within the record: then one exchange is all there is to wait for.
  std::vector<std::byte> payload;

  std::string site() const { return fmt::format("{}:{}", file, line); }
};

// What all ranks said, by rank, as it came: where ranks share memory it lies in that, and a peer that is damaged may write
// over it at any time. So it is copied before it is checked.
using RawRecords = std::vector<std::span<const std::byte>>;

// As words: first what changes with every call (its number, where the tensors lie, the elements of small ones), then what
// calls that are alike have in common. All of these throw Error for what makes no sense.
void encode(const Record& record, std::vector<int64_t>& words);  // appends
void decode(std::span<const std::byte> bytes, Record& record);   // `bytes` must outlive what is inlined
// Where in a record that part ends, and where in it the elements are.
struct ChangedPart {
  size_t payload_at = 0, payload_bytes = 0, end = 0;
};
ChangedPart changed_part(std::span<const std::byte> bytes);
// The version that its rank gave it; 0: none.
uint64_t version_of(std::span<const std::byte> bytes);
// Only what changes; the rest of `record` was decoded from the same common part
// before.
void decode_changes(std::span<const std::byte> bytes, Record& record);

}  // namespace tessera
