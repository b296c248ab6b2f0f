// A call like the one before it from the same line. Where nothing but the elements of small tensors is new, the record is
// the old one with new elements, and what all ranks said needs only to be compared: that is most of the time of a small
// call saved.
#pragma once

#include <tessera/detail/description.hpp>

#include "comm/statement.hpp"

namespace tessera {

class Replay {
 public:
  // Notes what this rank said of the call, and what all said. An output of the caller's must lie apart from x.
  void note(int64_t call, const detail::Description& description, const Site& site, int rank, const RawRecords& said);
  void forget() { noted_ = false; }
  bool noted() const { return noted_; }

  // Whether the record of this call is the noted one, but for its number and the elements.
  bool fits(const detail::Description& description, const Site& site) const;
  // That record. Its version, by which the others know it again without comparing, is the call in which it was noted.
  Saying record(int64_t call, const Tensor& x);
  // Whether all ranks said the same as when it was noted, but for that.
  bool same(const RawRecords& said);

 private:
  struct Heard {
    std::vector<std::byte> bytes;
    ChangedPart changed;
    int64_t version = 0;  // which was compared and found to be the same
  };
  static bool compare(const Heard& before, std::span<const std::byte> now);

  bool noted_ = false;
  detail::Description like_;  // without memory
  struct Form {
    bool defined = false;
    DType dtype = DType::f32;
    Dims shape, strides;
    int64_t begin = 0, end = 0;  // of its memory, in bytes from its first element
    static Form of(const Tensor& tensor);
    bool fits(const Tensor& tensor) const;
  };
  bool apart(const Tensor& x, const Tensor& out) const;
  Form x_, out_;
  size_t flat_bytes_ = 0;  // of x, where it is contiguous
  const char* file_ = nullptr;
  uint32_t line_ = 0;
  int64_t version_ = 0;
  std::vector<int64_t> words_;
  ChangedPart changed_;
  std::vector<Heard> heard_;  // by rank
};

}  // namespace tessera
