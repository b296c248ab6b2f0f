#include "tensor/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/cache.hpp"
#include "tensor/copy.hpp"
#include "tensor/copy_kernels.hpp"
#include "tensor/loop_nest.hpp"
#include "tensor/reduce_kernels.hpp"

namespace tessera {
namespace {

// Accumulators of one block: small enough that a few of them stay in the first
// cache.
constexpr int64_t kBlockBytes = 8192;
// What is worked on where it is goes in smaller steps: reading the terms and
// streaming the result out take turns, and with long turns the memory waits for
// the one or the other.
constexpr int64_t kStepBytes = 2048;
// Runs of at least this many bytes are worked on where they are; shorter ones
// are gathered into a block first.
constexpr int64_t kDirectRun = 1024;
constexpr size_t kFold = 4;  // the terms a kernel takes at most

// Memory for blocks, kept by each thread for its next reduction.
std::byte* scratch(size_t bytes) {
  struct Aligned {
    alignas(64) std::byte line[64];
  };
  thread_local std::unique_ptr<Aligned[]> memory;
  thread_local size_t lines = 0;
  if (lines * sizeof(Aligned) < bytes) {
    memory.reset();
    lines = (bytes + sizeof(Aligned) - 1) / sizeof(Aligned);
    memory.reset(new Aligned[lines]);
  }
  return memory[0].line;
}

// One kernel does it all, and no block is needed.
bool is_one_fold(Reduction reduction, DType dtype, size_t terms) {
  const bool at_ends = reduction.op == ReduceOp::avg || reduction.op == ReduceOp::premul_sum;
  return terms > 1 && terms <= kFold && !at_ends && reduce_kernels(dtype, reduction.op).promote == nullptr;
}

// Combines blocks of all terms: the tree of Reduction, evaluated depth first.
class BlockTree {
 public:
  BlockTree(DType dtype, Reduction reduction, size_t terms, const Dims& axes, int64_t job_bytes)
      : axes_(axes),
        kernels_(reduce_kernels(dtype, reduction.op)),
        reduction_(reduction),
        terms_(terms),
        element_bytes_(size_bytes(dtype)),
        one_fold_(is_one_fold(reduction, dtype, terms)),
        near_(job_bytes < kNearBytes),
        memory_(scratch((kFirstLevel + 2 * (static_cast<size_t>(std::bit_width(terms)) + axes.size())) * kBlockBytes)) {
  }

  int64_t max_elements() const { return kBlockBytes / std::max(element_bytes_, kernels_.accumulator_bytes); }
  int64_t step_elements() const { return max_elements() * kStepBytes / kBlockBytes; }
  bool one_fold() const { return one_fold_; }

  // Where a term, and the result, can be put that does not lie together in
  // memory.
  std::byte* pack_slot(size_t term) const { return slot(kPacked + term % kFold); }
  std::byte* result_slot() const { return slot(kResult); }

  // dst = `count` elements of all terms combined. fetch(i) returns those of
  // term i, contiguous; they must stay there until fetch(i + kFold).
  template <class Fetch>
  void evaluate(std::byte* dst, int64_t count, bool stream, Fetch fetch) const {
    const bool divide = reduction_.op == ReduceOp::avg;
    // Out of the last fold, where nothing follows it; else by way of a block.
    const bool at_once = stream && !divide && kernels_.demote == nullptr && kernels_.stream_fold[0] != nullptr &&
                         reinterpret_cast<uintptr_t>(dst) % kLine == 0;
    std::byte* const target = stream && !at_once ? result_slot() : dst;
    std::byte* const unfinished = divide || kernels_.demote ? slot(kUnfinished) : target;
    const std::byte* result = subtree(0, terms_, kFirstLevel, unfinished, count, fetch, at_once);
    if (divide) {
      std::byte* const quotient = kernels_.demote ? unfinished : target;
      kernels_.divide(quotient, result, count,
                      reduction_.factor != 1 ? reduction_.factor : static_cast<double>(terms_));
      result = quotient;
    }
    if (kernels_.demote) {
      kernels_.demote(target, result, count);
      result = target;
    }
    if (result == dst) return;
    if (stream) {
      stream_bytes(dst, result, count * element_bytes_);
    } else {
      std::memcpy(dst, result, static_cast<size_t>(count * element_bytes_));
    }
  }

 private:
  // The blocks of scratch memory: the leaves of one fold, packed and then
  // promoted; the last steps; and from kFirstLevel on up to two for each level
  // of the tree.
  static constexpr size_t kPacked = 0, kPromoted = kFold, kResult = 2 * kFold, kUnfinished = kResult + 1,
                          kFirstLevel = kResult + 2;
  std::byte* slot(size_t i) const { return memory_ + i * kBlockBytes; }

  // The accumulators of terms first to first + n - 1 combined, in `out` or,
  // where nothing had to be done, elsewhere. Uses the slots from `free` on.
  template <class Fetch>
  const std::byte* subtree(size_t first, size_t n, size_t free, std::byte* out, int64_t count, Fetch& fetch,
                           bool stream = false) const {
    const std::byte* in[kFold];
    const auto& fold = stream ? kernels_.stream_fold : kernels_.fold;
    if (n <= kFold) {
      const bool fused = n > 1 && kernels_.fold_elements[0] != nullptr;
      for (size_t k = 0; k < n; ++k) in[k] = fused ? fetch(first + k) : leaf(fetch(first + k), k, count);
      if (n == 1) return in[0];
      (fused ? kernels_.fold_elements : fold)[n - 2](out, in, count, near_);
    } else {
      const size_t left = left_of(n);
      in[0] = subtree(first, left, free + 1, slot(free), count, fetch);
      in[1] = subtree(first + left, n - left, free + 2, slot(free + 1), count, fetch);
      fold[0](out, in, count, true);  // of blocks
    }
    return out;
  }

  // How many of n terms the left branch has: whole rows of the last axis, as long as there are several.
  size_t left_of(size_t n) const {
    size_t row = 1;
    for (size_t a = axes_.size(); a-- > 0;) {
      const auto next = row * static_cast<size_t>(axes_[a]);
      if (next >= n) break;
      row = next;
    }
    return std::bit_floor(n / row - 1) * row;
  }

  const std::byte* leaf(const std::byte* elements, size_t k, int64_t count) const {
    std::byte* const promoted = slot(kPromoted + k);
    if (kernels_.promote) {
      kernels_.promote(promoted, elements, count);
      elements = promoted;
    }
    if (reduction_.op == ReduceOp::premul_sum) {
      kernels_.multiply(promoted, elements, count, reduction_.factor);
      elements = promoted;
    }
    return elements;
  }

  Dims axes_;
  ReduceKernels kernels_;
  Reduction reduction_;
  size_t terms_;
  int64_t element_bytes_;
  bool one_fold_, near_;
  std::byte* memory_;
};

void reduce_contiguous(const View& dst, std::span<const ConstView> terms, const BlockTree& tree, bool stream) {
  const int64_t size = size_bytes(dst.dtype), elements = dst.elements();
  const int64_t step = tree.one_fold() && !stream ? std::max<int64_t>(elements, 1) : tree.step_elements();
  // The first step ends with a line, so that the others begin with one.
  const auto before_line = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst.data) % kLine) / size;
  int64_t count = before_line > 0 ? before_line : step;
  for (int64_t at = 0; at < elements; at += std::exchange(count, step)) {
    const auto fetch = [&](size_t i) { return terms[i].data + at * size; };
    tree.evaluate(dst.data + at * size, std::min(count, elements - at), stream, fetch);
  }
}

bool lie_together(const View& dst, std::span<const ConstView> terms) {
  return is_row_major(dst) && std::all_of(terms.begin(), terms.end(), is_row_major<const std::byte>);
}

// Operands that are not all contiguous: the loops are cut into boxes of at most
// a block, and what does not lie together in its box is packed.
class BoxedReduce {
 public:
  BoxedReduce(const View& dst, std::span<const ConstView> terms, const BlockTree& tree, int64_t total_bytes,
              bool streams)
      : dst_(dst),
        terms_(terms),
        tree_(tree),
        total_bytes_(total_bytes),
        streams_(streams),
        nest_(dst.shape, operands()) {}

  void run() const {
    if (nest_.empty()) return;
    const Loops step = box_extents();
    Loops at{};
    while (true) {
      Loops extent;
      for (size_t l = 0; l < nest_.loops(); ++l) extent[l] = std::min(step[l], nest_.extent(l) - at[l]);
      reduce_box(at, extent);
      size_t l = 0;
      for (; l < nest_.loops(); ++l) {
        at[l] += step[l];
        if (at[l] < nest_.extent(l)) break;
        at[l] = 0;
      }
      if (l == nest_.loops()) return;
    }
  }

 private:
  using Loops = std::array<int64_t, kMaxDims>;

  std::vector<NestOperand> operands() const {
    std::vector<NestOperand> all(terms_.size() + 1);
    all[0] = operand_of(dst_);
    for (size_t i = 0; i < terms_.size(); ++i) all[i + 1] = operand_of(terms_[i]);
    return all;
  }

  // Long runs alone; else a line of whatever dimension lies along some
  // operand's memory, so that each line is read once, and the rest from the
  // innermost loop outwards.
  Loops box_extents() const {
    Loops box;
    box.fill(1);
    int64_t count = 1;
    const auto grow = [&](size_t l, int64_t limit) {
      const int64_t others = count / box[l];
      box[l] = std::max(box[l], std::min({nest_.extent(l), limit, tree_.max_elements() / others}));
      count = others * box[l];
    };
    bool runs = nest_.extent(0) * element_bytes_ >= kDirectRun;
    for (size_t k = 0; k < nest_.operands(); ++k) runs &= nest_.stride(k, 0) == element_bytes_;
    if (runs) {
      grow(0, tree_.step_elements());
      return box;
    }
    for (size_t k = 0; k < nest_.operands(); ++k) {
      for (size_t l = 0; l < nest_.loops(); ++l) {
        if (nest_.stride(k, l) == element_bytes_) grow(l, kLine / element_bytes_);
      }
    }
    for (size_t l = 0; l < nest_.loops(); ++l) grow(l, nest_.extent(l));
    return box;
  }

  void reduce_box(const Loops& at, const Loops& extent) const {
    int64_t count = 1;
    for (size_t l = 0; l < nest_.loops(); ++l) count *= extent[l];
    const auto fetch = [&](size_t i) -> const std::byte* {
      const std::byte* const data = terms_[i].data + offset(i + 1, at);
      if (is_dense(i + 1, extent)) return data;
      copy_box(packed(tree_.pack_slot(i), extent), strided<const std::byte>(data, i + 1, extent));
      return tree_.pack_slot(i);
    };
    std::byte* const dst = dst_.data + offset(0, at);
    if (is_dense(0, extent)) {
      tree_.evaluate(dst, count, streams_, fetch);
    } else {
      tree_.evaluate(tree_.result_slot(), count, false, fetch);
      copy_box(strided(dst, 0, extent), packed(tree_.result_slot(), extent), total_bytes_);
    }
  }

  int64_t offset(size_t operand, const Loops& at) const {
    int64_t bytes = nest_.offset(operand);
    for (size_t l = 0; l < nest_.loops(); ++l) bytes += at[l] * nest_.stride(operand, l);
    return bytes;
  }

  bool is_dense(size_t operand, const Loops& extent) const {
    int64_t stride = element_bytes_;
    for (size_t l = 0; l < nest_.loops(); ++l) {
      if (extent[l] != 1 && nest_.stride(operand, l) != stride) return false;
      stride *= extent[l];
    }
    return true;
  }

  // A box of an operand as a view, loops from the outermost to the innermost.
  template <class Byte>
  BasicView<Byte> strided(Byte* data, size_t operand, const Loops& extent) const {
    BasicView<Byte> view{data, dst_.dtype, {}, {}};
    for (size_t l = nest_.loops(); l-- > 0;) {
      view.shape.push_back(extent[l]);
      view.strides.push_back(nest_.stride(operand, l) / element_bytes_);
    }
    return view;
  }

  View packed(std::byte* data, const Loops& extent) const {
    View view = strided(data, 0, extent);
    view.strides = row_major(view.shape);
    return view;
  }

  const View& dst_;
  std::span<const ConstView> terms_;
  const BlockTree& tree_;
  int64_t total_bytes_;
  bool streams_;
  LoopNest<std::vector<NestOperand>> nest_;
  int64_t element_bytes_ = size_bytes(dst_.dtype);
};

}  // namespace

// Not where what is in between is of another type, or something is done with every term at the beginning.
std::optional<InParts> in_parts(Reduction reduction, DType dtype, int terms) {
  if (reduction.op == ReduceOp::premul_sum || reduce_kernels(dtype, reduction.op).promote != nullptr)
    return std::nullopt;
  InParts parts{reduction, reduction};
  if (reduction.op == ReduceOp::avg) {
    parts.first = ReduceOp::sum;
    parts.last.factor = terms;
  }
  return parts;
}

PreparedSum::PreparedSum(const View& dst, std::span<const ConstView> terms, Reduction reduction, const Dims& axes)
    : elements_(dst.elements()), dst_(dst), terms_(terms.begin(), terms.end()), reduction_(reduction), axes_(axes) {
  const bool near = elements_ * size_bytes(dst.dtype) < kNearBytes;
  if (near && is_one_fold(reduction, dst.dtype, terms.size()) && lie_together(dst, terms))
    fold_ = reduce_kernels(dst.dtype, reduction.op).fold[terms.size() - 2];
}

void PreparedSum::run(std::byte* dst, const std::byte* const* terms) {
  if (fold_ != nullptr) return fold_(dst, terms, elements_, true);
  dst_.data = dst;
  for (size_t i = 0; i < terms_.size(); ++i) terms_[i].data = terms[i];
  reduce_boxes(dst_, terms_, reduction_, 0, axes_);
}

void reduce_boxes(const View& dst, std::span<const ConstView> terms, Reduction reduction, int64_t total_bytes,
                  const Dims& axes, bool read_next) {
  const int64_t job_bytes = std::max(total_bytes, dst.elements() * size_bytes(dst.dtype));
  const bool streams = job_bytes >= (read_next ? copy_stream_bytes() : sum_stream_bytes());
  const BlockTree tree(dst.dtype, reduction, terms.size(), axes, job_bytes);
  if (lie_together(dst, terms)) {
    reduce_contiguous(dst, terms, tree, streams);
  } else {
    BoxedReduce(dst, terms, tree, job_bytes, streams).run();
  }
  if (streams) flush_stream();
}

}  // namespace tessera
