// A call like the one before it from the same line. Where nothing but the elements is new, and where the tensors lie, the
// record is the old one with those, and what all ranks said needs only to be compared: that is most of the time of a
// small call saved.
#pragma once

#include <tessera/detail/description.hpp>

#include "comm/statement.hpp"

namespace tessera {

// Of a tensor all but where it lies.
struct TensorForm {
  bool defined = false;
  DType dtype = DType::f32;
  Dims shape, strides;
  int64_t begin = 0, end = 0;  // of its memory, in bytes from its first element
  static TensorForm of(const Tensor& tensor);
  bool fits(const Tensor& tensor) const;
};
// Of tensors that fit these: whether they share no memory. Those that lie within each other's gaps count as not apart.
bool lie_apart(const Tensor& a, const TensorForm& form_a, const Tensor& b, const TensorForm& form_b);

class Replay {
 public:
  // Notes what this rank said of the call, and what all said. An output of the caller's must lie apart from x.
  // `inlined`: all elements that move are in the records. `mine`: this rank's, and `sends` what others read of it.
  void note(int64_t call, const detail::Description& description, const Site& site, int rank, const RawRecords& said,
            const Statement& mine, bool inlined, std::span<const Send> sends);
  void forget() { noted_ = false; }
  // All ranks have said the same in full again, in that call: so they are of one mind on when it was, whoever forgot it.
  void renew(int64_t call) { version_ = call; }
  bool inlined() const { return inlined_; }
  // Whether what all said may differ from what was noted: in elements, or in where tensors lie.
  bool has_news(const Transport& transport) const { return has_elements_ || transport.tells_places(); }
  // Whether others are told where the result is, before there is one.
  bool announces_result() const { return out_at_ != 0; }

  // Whether the record of this call is the noted one, but for its number and the elements.
  bool fits(const detail::Asked& asked, const Site& site) const;
  // That record. Its version, by which the others know it again without comparing, is the call in which it was noted.
  void record(int64_t call, const Tensor& x, const Tensor& out, Transport& transport, Saying& saying);
  // Whether all ranks said the same as when it was noted, but for that.
  bool same(const RawRecords& said);

  // Makes `result` that of an earlier call, which nobody has any more, to be written again. False: there is none.
  bool recycle(Tensor& result);
  // Such a result, for later.
  void keep(const Tensor& result);

 private:
  struct Heard {
    std::vector<std::byte> bytes;
    ChangedPart changed;
    int64_t version = 0;  // which was compared and found to be the same
  };
  static bool compare(const Heard& before, std::span<const std::byte> now);

  bool fits_rest(const detail::Description& description) const;
  void note_handles(const Statement& mine);
  void note_parts(const Tensor& x, std::span<const Send> sends);
  void put_handle(size_t at, const Handle& handle);

  bool noted_ = false;
  bool inlined_ = false;
  bool has_elements_ = false;                 // any record
  size_t x_at_ = 0, out_at_ = 0;              // the words that say where they lie; 0: nobody reads them there
  detail::Description like_;                  // without memory
  bool plain_ = false;                        // an Asked says all of it
  std::shared_ptr<const Exchange> exchange_;  // kept, so that no other one can lie in its place
  std::string note_;                          // where there is no exchange
  TensorForm x_, out_;
  size_t flat_bytes_ = 0;  // of x, where it is contiguous
  std::vector<PayloadPart> parts_;
  const char* file_ = nullptr;
  uint32_t line_ = 0;
  int64_t version_ = 0;
  std::vector<int64_t> words_;
  ChangedPart changed_;
  std::vector<Heard> heard_;  // by rank
  size_t own_ = 0;            // which of them is this one
  // The oldest is the likeliest to be free: most programs let go of results in the order in which they came.
  std::vector<Tensor> results_;
  size_t oldest_ = 0;
};

}  // namespace tessera
