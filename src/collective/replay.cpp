#include "collective/replay.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "collective/state_call.hpp"
#include "tensor/copy.hpp"
#include "tensor/strided.hpp"

namespace tessera {

using detail::Asked;
using detail::Description;

namespace {

constexpr size_t kHandleCount = 2;    // the word of a record that says how many handles follow
constexpr size_t kPartsBytes = 4096;  // below it, all of a tensor is copied faster than parts of it

}  // namespace

TensorForm TensorForm::of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  TensorForm form{true, tensor.dtype(), tensor.shape(), tensor.strides()};
  if (tensor.elements() == 0) return form;
  const Extent extent = extent_of(tensor);
  const auto at = reinterpret_cast<uintptr_t>(tensor.data());
  form.begin = static_cast<int64_t>(extent.begin - at);
  form.end = static_cast<int64_t>(extent.end - at);
  return form;
}

bool TensorForm::fits(const Tensor& tensor) const {
  if (!defined || !tensor.defined()) return defined == tensor.defined();
  return tensor.dtype() == dtype && tensor.shape() == shape && tensor.strides() == strides;
}

bool lie_apart(const Tensor& a, const TensorForm& form_a, const Tensor& b, const TensorForm& form_b) {
  if (!form_a.defined || !form_b.defined) return true;
  const auto ends_before = [](const Tensor& x, const TensorForm& first, const Tensor& y, const TensorForm& second) {
    return reinterpret_cast<intptr_t>(x.data()) + first.end <= reinterpret_cast<intptr_t>(y.data()) + second.begin;
  };
  return ends_before(a, form_a, b, form_b) || ends_before(b, form_b, a, form_a);
}

void Replay::note(int64_t call, const Description& d, const Site& site, int rank, const RawRecords& said,
                  const Statement& mine, bool inlined, std::span<const Send> sends) {
  version_ = call;
  inlined_ = inlined;
  like_ = d;
  like_.x = like_.out = {};
  like_.exchange = nullptr;
  like_.note = nullptr;
  exchange_ = d.exchange == nullptr ? nullptr : *d.exchange;
  note_ = d.note == nullptr || d.exchange != nullptr ? "" : *d.note;
  plain_ = fits_rest({});
  x_ = TensorForm::of(d.x);
  out_ = TensorForm::of(d.out);
  flat_bytes_ = d.x.defined() && d.x.is_contiguous() ? static_cast<size_t>(d.x.bytes()) : 0;
  file_ = site.file_name();
  line_ = site.line();
  results_.clear();
  oldest_ = 0;
  heard_.resize(said.size());
  has_elements_ = false;
  for (size_t r = 0; r < said.size(); ++r) {
    heard_[r].bytes.assign(said[r].begin(), said[r].end());
    heard_[r].changed = changed_part(said[r]);
    heard_[r].version = 0;
    has_elements_ = has_elements_ || heard_[r].changed.payload_bytes > 0;
  }
  own_ = static_cast<size_t>(rank);
  const Heard& own = heard_[own_];
  changed_ = own.changed;
  words_.resize(own.bytes.size() / sizeof(int64_t));
  std::memcpy(words_.data(), own.bytes.data(), own.bytes.size());
  note_handles(mine);
  parts_.clear();
  if (flat_bytes_ >= kPartsBytes && cuts_alone(d)) note_parts(d.x, sends);
  noted_ = true;
}

// Where others read most of x, all of it is copied faster.
void Replay::note_parts(const Tensor& x, std::span<const Send> sends) {
  std::vector<Box> boxes;
  size_t bytes = 0;
  for (const Send& send : sends) {
    if (std::find(boxes.begin(), boxes.end(), send.box) != boxes.end()) continue;
    boxes.push_back(send.box);
    bytes += static_cast<size_t>(send.box.elements() * size_bytes(x.dtype()));
  }
  if (bytes > flat_bytes_ / 4 * 3) return;
  const View whole{x.data(), x.dtype(), x.shape(), row_major(x.shape())};
  for (const Box& box : boxes) {
    const View part = whole.box(box);
    parts_.push_back({PreparedCopy(part, part), static_cast<size_t>(part.data - whole.data)});
  }
}

// Where encode() has put them.
void Replay::note_handles(const Statement& mine) {
  const bool read = mine.has_x && mine.x().inlined == nullptr && volume(mine.x().shape) > 0;
  x_at_ = read ? kHandleCount + 1 : 0;
  out_at_ = read && mine.op == OpCode::all_reduce ? x_at_ + 2 : 0;
}

void Replay::put_handle(size_t at, const Handle& handle) {
  std::memcpy(&words_[at], handle.words, sizeof(handle.words));
}

bool Replay::fits(const Asked& asked, const Site& site) const {
  if (!noted_ || asked.op != like_.op || site.line() != line_ || site.file_name() != file_) return false;
  if (!x_.fits(*asked.x) || asked.has_out() != out_.defined) return false;
  if (asked.has_out() &&
      (!out_.fits(*asked.out) || !lie_apart(*asked.x, x_, *asked.out, out_) || asked.out->read_only()))
    return false;
  const auto same_sizes = [](const Sizes* now, const Sizes& before) {
    return now == nullptr ? before.empty() : *now == before;
  };
  return asked.dim == like_.dim && asked.split_dim == like_.split_dim && asked.root == like_.root &&
         same_bits(asked.scale, like_.scale) && asked.reduction.op == like_.reduction.op &&
         same_bits(asked.reduction.factor, like_.reduction.factor) && same_sizes(asked.sizes, like_.sizes) &&
         same_sizes(asked.recv_sizes, like_.recv_sizes) && (asked.whole == nullptr ? plain_ : fits_rest(*asked.whole));
}

bool Replay::fits_rest(const Description& d) const {
  if (!d.parts.empty() || d.problem != nullptr) return false;
  // An exchange is the same only if it has the same name.
  if (d.exchange != nullptr ? *d.exchange != exchange_ : exchange_ != nullptr) return false;
  if (d.exchange == nullptr && (d.note == nullptr ? !note_.empty() : *d.note != note_)) return false;
  return d.dtype == like_.dtype && d.extra[0] == like_.extra[0] && d.extra[1] == like_.extra[1] &&
         d.flags == like_.flags && d.stage == like_.stage;
}

void Replay::record(int64_t call, const Tensor& x, const Tensor& out, Transport& transport, Saying& saying) {
  words_[0] = call;
  words_[1] = version_;
  if (x_at_ != 0) put_handle(x_at_, transport.handle_of(x, use_of(like_.op)));
  if (out_at_ != 0) put_handle(out_at_, transport.handle_of(out, Use::written));
  const auto bytes = std::as_writable_bytes(std::span(words_));
  saying.bytes = bytes;
  saying.changed = changed_.end;
  saying.version = static_cast<uint64_t>(version_);
  saying.elements = changed_.payload_bytes > 0;
  if (!saying.elements) return;
  if (flat_bytes_ > 0 && transport.takes_payload(bytes.size())) {
    saying.payload = {x.data(), flat_bytes_};
    saying.payload_at = changed_.payload_at;
    saying.parts = parts_;
    return;
  }
  std::byte* payload = bytes.data() + changed_.payload_at;
  if (flat_bytes_ > 0) std::memcpy(payload, x.data(), flat_bytes_);
  else copy_box({payload, x_.dtype, x_.shape, row_major(x_.shape)}, view_of(x));
}

bool Replay::recycle(Tensor& result) {
  if (oldest_ == results_.size()) oldest_ = 0;
  if (results_.empty() || results_[oldest_].owner().use_count() != 1) return false;
  const Tensor& kept = results_[oldest_++];
  // What its last owner did with it comes before what is done now: use_count() does not say so.
#if defined(__SANITIZE_THREAD__)                // GCC's
  std::shared_ptr<void>(kept.owner()).reset();  // letting go of one does; it does not know fences
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  result = kept;
  return true;
}

void Replay::keep(const Tensor& result) {
  constexpr int64_t kMostBytes = 64 << 10;
  constexpr size_t kMost = 64;
  if (results_.size() == kMost || static_cast<int64_t>(results_.size() + 1) * result.bytes() > kMostBytes) return;
  results_.insert(results_.begin() + static_cast<ptrdiff_t>(oldest_), result);
  ++oldest_;
}

// All but the number, the version, where tensors lie, and the elements: so how many of both there are, and the rest.
bool Replay::compare(const Heard& before, std::span<const std::byte> now) {
  const auto same = [&](size_t at, size_t bytes) {
    return std::memcmp(now.data() + at, before.bytes.data() + at, bytes) == 0;
  };
  constexpr size_t kWord = sizeof(int64_t);
  const auto& [payload_at, payload_bytes, end] = before.changed;
  return same(kHandleCount * kWord, kWord) && same(payload_at - kWord, kWord) && same(end, now.size() - end);
}

bool Replay::same(const RawRecords& said) {
  for (size_t r = 0; r < heard_.size(); ++r) {
    Heard& before = heard_[r];
    if (r == own_ || said[r].empty()) continue;  // or they have voted
    if (said[r].size() != before.bytes.size()) return false;
    int64_t version = 0;
    std::memcpy(&version, said[r].data() + sizeof(int64_t), sizeof(version));
    if (version != 0 && version == before.version) continue;
    if (!compare(before, said[r])) return false;
    before.version = version;
  }
  return true;
}

}  // namespace tessera
