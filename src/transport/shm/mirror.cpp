#include "transport/shm/mirror.hpp"

#include <algorithm>
#include <new>

#include "tensor/copy.hpp"
#include "tensor/strided.hpp"
#include "transport/chunks.hpp"

namespace tessera::shm {
namespace {

// Readers find a piece in the cache that they share with the writer.
constexpr int64_t kPieceBytes = int64_t{256} << 10;

Chunks pieces_of(const Tensor& tensor) { return {tensor.shape(), kPieceBytes / size_bytes(tensor.dtype())}; }

}  // namespace

std::unique_ptr<Mirror> Mirror::make(Heap& heap, const Tensor& tensor) {
  auto block = heap.allocate(tensor.bytes() + static_cast<int64_t>(sizeof(MirrorHead)));
  if (block == nullptr) return nullptr;
  const int64_t offset = heap.offset_of(block.get()) + static_cast<int64_t>(sizeof(MirrorHead));
  return std::unique_ptr<Mirror>(new Mirror(std::move(block), offset, tensor));
}

Mirror::Mirror(std::shared_ptr<std::byte> block, int64_t offset, const Tensor& tensor)
    : block_(std::move(block)),
      head_(new (block_.get()) MirrorHead),
      offset_(offset),
      tensor_(tensor),
      pieces_(pieces_of(tensor).count()) {}

void Mirror::want(const Box& box) {
  if (std::find(wanted_.begin(), wanted_.end(), box) == wanted_.end()) wanted_.push_back(box);
}

void Mirror::fill_next() {
  const Box box = pieces_of(tensor_)[next_++];
  const View whole{block_.get() + sizeof(MirrorHead), tensor_.dtype(), tensor_.shape(), row_major(tensor_.shape())};
  const auto copy = [&](const Box& part) {
    if (part.elements() == 0) return;
    copy_box(whole.box(part), view_of(tensor_).box(part));
    copied_bytes_ += part.elements() * size_bytes(tensor_.dtype());
  };
  if (wanted_.empty()) copy(box);
  for (const Box& wanted : wanted_) copy(intersect(box, wanted));
  head_->filled.fetch_add(static_cast<uint64_t>(box.elements() * size_bytes(tensor_.dtype())),
                          std::memory_order_seq_cst);
  head_->count.fetch_add(1, std::memory_order_seq_cst);
  if (head_->sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(head_->count);
}

}  // namespace tessera::shm
