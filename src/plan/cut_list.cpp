#include "plan/cut_list.hpp"

#include <algorithm>

namespace tessera {
namespace {

// Keeps those that no other beats in both.
void keep_slowest(std::pmr::vector<CutList::Group>& all) {
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.whole != b.whole ? a.whole > b.whole : a.least < b.least; });
  size_t kept = 0;
  for (const auto& group : all) {
    if (kept == 0 || group.least < all[kept - 1].least) all[kept++] = group;
  }
  all.resize(kept);
}

}  // namespace

CutLists::CutLists(const Dims& shape, std::vector<int64_t> axis_sizes, std::pmr::memory_resource* memory)
    : sizes_(std::move(axis_sizes)), lists_(memory) {
  lists_.reserve(32);
  for (size_t d = 0; d < shape.size(); ++d) {
    CutList& list = add();
    list.dim = d;
    list.offsets = {0, shape[d]};
    list.largest = static_cast<double>(shape[d]);
  }
}

CutList& CutLists::add() {
  std::pmr::polymorphic_allocator<> memory = lists_.get_allocator();
  lists_.push_back(memory.new_object<CutList>(memory.resource()));
  return *lists_.back();
}

void CutLists::finish(CutList& list) const {
  list.largest = 0;
  list.even = true;
  for (size_t i = 0; i < list.pieces(); ++i) {
    if (list.piece(i) > list.largest) {
      list.largest = list.piece(i);
      list.fullest = i;
    }
    list.even = list.even && list.piece(i) == list.piece(0);
  }
  list.places.resize(list.pieces() * list.depth());
  size_t repeats = list.pieces();  // how many pieces in a row have the same coordinate
  for (size_t k = 0; k < list.depth(); ++k) {
    const auto n = static_cast<size_t>(sizes_[list.axes[k]]);
    repeats /= n;
    int32_t* place = list.places.data() + k;
    for (size_t i = 0, at = 0; i < list.pieces(); at = at + 1 == n ? 0 : at + 1) {
      for (const size_t end = i + repeats; i < end; ++i, place += list.depth()) *place = static_cast<int32_t>(at);
    }
  }
}

int CutLists::add_ragged(size_t dim, int which, std::span<const uint8_t> axes, std::span<const int64_t> offsets) {
  CutList& list = add();
  list.dim = dim;
  list.ragged = which;
  list.parent = uncut(dim);
  list.axes.assign(axes.begin(), axes.end());
  list.offsets.assign(offsets.begin(), offsets.end());
  finish(list);
  return last();
}

int CutLists::chunked(size_t dim, std::span<const uint8_t> axes) {
  int list = uncut(dim);
  for (const uint8_t axis : axes) list = extended(list, axis);
  return list;
}

int CutLists::extended(int list, uint8_t axis) {
  if (const int known = lists_[static_cast<size_t>(list)]->child[axis]; known != 0) return known;
  const CutList& outer = *lists_[static_cast<size_t>(list)];
  CutList& inner = add();
  inner.dim = outer.dim;
  inner.axes.reserve(outer.depth() + 1);
  inner.axes = outer.axes;
  inner.axes.push_back(axis);
  inner.parent = list;
  const int64_t n = sizes_[axis];
  inner.offsets.reserve(outer.pieces() * static_cast<size_t>(n) + 1);
  for (size_t i = 0; i < outer.pieces(); ++i) {
    const int64_t begin = outer.offsets[i], end = outer.offsets[i + 1];
    const int64_t chunk = (end - begin) / n + ((end - begin) % n != 0);
    for (int64_t k = 0; k < n; ++k) inner.offsets.push_back(std::min(begin + k * chunk, end));
  }
  inner.offsets.push_back(outer.offsets.back());
  finish(inner);
  return lists_[static_cast<size_t>(list)]->child[axis] = last();
}

int CutLists::without(int list, size_t tail) const {
  if (lists_[static_cast<size_t>(list)]->ragged != 0 && tail > 0) return lists_[static_cast<size_t>(list)]->parent;
  for (; tail > 0; --tail) list = lists_[static_cast<size_t>(list)]->parent;
  return list;
}

size_t CutLists::width(int list, size_t tail) const {
  const auto& axes = lists_[static_cast<size_t>(list)]->axes;
  size_t width = 1;
  for (size_t i = axes.size() - tail; i < axes.size(); ++i) width *= static_cast<size_t>(sizes_[axes[i]]);
  return width;
}

const std::pmr::vector<CutList::Group>& CutLists::groups(int number, size_t tail) {
  CutList& list = *lists_[static_cast<size_t>(number)];
  list.groups.resize(list.depth() + 1);
  auto& known = list.groups[tail];
  if (!known.empty()) return known;
  const size_t w = width(number, tail);
  known.reserve(list.pieces() / w);
  for (size_t p = 0; p < list.pieces(); p += w) {
    double least = list.piece(p);
    for (size_t k = 1; k < w; ++k) least = std::min(least, list.piece(p + k));
    known.push_back({static_cast<double>(list.offsets[p + w] - list.offsets[p]), least});
  }
  keep_slowest(known);
  return known;
}

const std::pmr::vector<size_t>& CutLists::distinct(int number, size_t tail) {
  CutList& list = *lists_[static_cast<size_t>(number)];
  list.distinct.resize(list.depth() + 1);
  auto& known = list.distinct[tail];
  if (!known.empty()) return known;
  const size_t w = width(number, tail);
  const auto length = [&](size_t p) { return list.offsets[p + w] - list.offsets[p]; };
  for (size_t p = 0; p < list.pieces(); p += w) {
    if (std::ranges::none_of(known, [&](size_t other) { return length(other) == length(p); })) known.push_back(p);
  }
  return known;
}

}  // namespace tessera
