#include "layout/cutting.hpp"

#include <algorithm>

namespace tessera {
namespace {

// The smallest number in 0 to count for which fn holds, where it holds for all above it too.
template <class Fn>
int64_t first_where(int64_t count, Fn&& fn) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (fn(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

}  // namespace

Cutting::Cutting(int64_t extent, const Mesh& mesh, const Layout::Cut& cut) : extent_(extent), cut_(&cut) {
  for (const size_t axis : cut.axes) {
    levels_.push_back(mesh.size(axis));
    pieces_ *= mesh.size(axis);
  }
}

Interval Cutting::piece(int64_t number) const {
  if (cut_ != nullptr && !cut_->offsets.empty()) {
    return {cut_->offsets[static_cast<size_t>(number)], cut_->offsets[static_cast<size_t>(number) + 1]};
  }
  Interval left{0, extent_};
  int64_t below = pieces_;  // pieces that one step of this level has under it
  for (const int64_t size : levels_) {
    below /= size;
    const int64_t chunk = left.length() / size + (left.length() % size != 0);
    const int64_t begin = std::min(left.begin + number / below * chunk, left.end);
    left = {begin, std::min(begin + chunk, left.end)};
    number %= below;
  }
  return left;
}

Interval Cutting::meeting(Interval interval) const {
  if (pieces_ == 1) return {0, 1};
  const int64_t first = first_where(pieces_, [&](int64_t k) { return piece(k).end > interval.begin; });
  const int64_t behind = first_where(pieces_, [&](int64_t k) { return piece(k).begin >= interval.end; });
  return {first, behind};
}

int64_t Cutting::number_at(const Dims& coordinate) const {
  int64_t number = 0;
  for (size_t i = 0; i < levels_.size(); ++i) number = number * levels_[i] + coordinate[cut_->axes[i]];
  return number;
}

void Cutting::set_coordinate(int64_t number, Dims& coordinate) const {
  for (size_t i = levels_.size(); i-- > 0;) {
    coordinate[cut_->axes[i]] = number % levels_[i];
    number /= levels_[i];
  }
}

}  // namespace tessera
