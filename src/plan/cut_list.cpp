#include "plan/cut_list.hpp"

#include <algorithm>

namespace tessera {
namespace {

// Keeps those that no other beats in both.
std::vector<CutList::Group> slowest(std::vector<CutList::Group> all) {
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.whole != b.whole ? a.whole > b.whole : a.least < b.least; });
  std::vector<CutList::Group> kept;
  for (const auto& group : all) {
    if (kept.empty() || group.least < kept.back().least) kept.push_back(group);
  }
  return kept;
}

}  // namespace

CutLists::CutLists(const Dims& shape, std::vector<int64_t> axis_sizes) : sizes_(std::move(axis_sizes)) {
  for (size_t d = 0; d < shape.size(); ++d) {
    CutList list;
    list.dim = d;
    list.offsets = {0, shape[d]};
    list.largest = static_cast<double>(shape[d]);
    lists_.push_back(std::move(list));
  }
}

void CutLists::finish(CutList& list) const {
  list.largest = 0;
  list.even = true;
  list.places.resize(list.pieces() * list.depth());
  for (size_t i = 0; i < list.pieces(); ++i) {
    list.largest = std::max(list.largest, list.piece(i));
    list.even = list.even && list.piece(i) == list.piece(0);
    size_t number = i;
    for (size_t k = list.depth(); k-- > 0;) {
      const auto n = static_cast<size_t>(sizes_[list.axes[k]]);
      list.places[i * list.depth() + k] = static_cast<int32_t>(number % n);
      number /= n;
    }
  }
}

int CutLists::add_ragged(size_t dim, int which, std::vector<uint8_t> axes, std::vector<int64_t> offsets) {
  CutList list;
  list.dim = dim;
  list.ragged = which;
  list.parent = uncut(dim);
  list.axes = std::move(axes);
  list.offsets = std::move(offsets);
  finish(list);
  lists_.push_back(std::move(list));
  return static_cast<int>(lists_.size()) - 1;
}

int CutLists::chunked(size_t dim, const std::vector<uint8_t>& axes) {
  int list = uncut(dim);
  for (const uint8_t axis : axes) list = extended(list, axis);
  return list;
}

int CutLists::extended(int list, uint8_t axis) {
  if (const int known = lists_[static_cast<size_t>(list)].child[axis]; known != 0) return known;
  const CutList& outer = lists_[static_cast<size_t>(list)];
  CutList inner;
  inner.dim = outer.dim;
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
  const int number = static_cast<int>(lists_.size());
  lists_.push_back(std::move(inner));
  lists_[static_cast<size_t>(list)].child[axis] = number;
  return number;
}

int CutLists::without(int list, size_t tail) const {
  if (lists_[static_cast<size_t>(list)].ragged != 0 && tail > 0) return lists_[static_cast<size_t>(list)].parent;
  for (; tail > 0; --tail) list = lists_[static_cast<size_t>(list)].parent;
  return list;
}

size_t CutLists::width(int list, size_t tail) const {
  const auto& axes = lists_[static_cast<size_t>(list)].axes;
  size_t width = 1;
  for (size_t i = axes.size() - tail; i < axes.size(); ++i) width *= static_cast<size_t>(sizes_[axes[i]]);
  return width;
}

const std::vector<CutList::Group>& CutLists::groups(int number, size_t tail) {
  CutList& list = lists_[static_cast<size_t>(number)];
  list.groups.resize(list.depth() + 1);
  auto& known = list.groups[tail];
  if (!known.empty()) return known;
  const size_t w = width(number, tail);
  std::vector<CutList::Group> all;
  for (size_t p = 0; p < list.pieces(); p += w) {
    double least = list.piece(p);
    for (size_t k = 1; k < w; ++k) least = std::min(least, list.piece(p + k));
    all.push_back({static_cast<double>(list.offsets[p + w] - list.offsets[p]), least});
  }
  return known = slowest(std::move(all));
}

const std::vector<size_t>& CutLists::distinct(int number, size_t tail) {
  CutList& list = lists_[static_cast<size_t>(number)];
  list.distinct.resize(list.depth() + 1);
  auto& known = list.distinct[tail];
  if (!known.empty()) return known;
  const size_t w = width(number, tail);
  std::vector<int64_t> seen;
  for (size_t p = 0; p < list.pieces(); p += w) {
    const int64_t length = list.offsets[p + w] - list.offsets[p];
    if (std::find(seen.begin(), seen.end(), length) != seen.end()) continue;
    seen.push_back(length);
    known.push_back(p);
  }
  return known;
}

}  // namespace tessera
