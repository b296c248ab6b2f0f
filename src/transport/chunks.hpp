// A box cut into pieces that follow one another in row-major order.
#pragma once

#include <algorithm>

#include <tessera/dims.hpp>

namespace tessera {

class Chunks {
 public:
  // Pieces of at most `most` elements, but at least one.
  Chunks(const Dims& shape, int64_t most) : shape_(shape) {
    for (const int64_t extent : shape) empty_ = empty_ || extent <= 0;
    if (empty_) return;
    // The first dimension of which one step is small enough; a piece is some steps of it.
    int64_t step = volume(shape);
    while (cut_ < shape.size()) {
      step /= shape[cut_];
      if (step <= most) break;
      before_ *= shape[cut_++];
    }
    if (cut_ == shape.size()) return;
    steps_ = std::clamp<int64_t>(most / std::max<int64_t>(step, 1), 1, shape[cut_]);
    along_ = (shape[cut_] + steps_ - 1) / steps_;
  }

  int64_t count() const { return empty_ ? 0 : before_ * along_; }

  Box operator[](int64_t number) const {
    Box box = Box::whole(shape_);
    if (cut_ < shape_.size()) {
      box.offset[cut_] = number % along_ * steps_;
      box.extent[cut_] = std::min(steps_, shape_[cut_] - box.offset[cut_]);
    }
    int64_t rest = number / along_;
    for (size_t d = cut_; d-- > 0;) {
      box.offset[d] = rest % shape_[d];
      box.extent[d] = 1;
      rest /= shape_[d];
    }
    return box;
  }

 private:
  Dims shape_;
  bool empty_ = false;
  size_t cut_ = 0;
  int64_t before_ = 1;  // pieces of the dimensions before the cut one
  int64_t along_ = 1;   // and along it
  int64_t steps_ = 1;
};

}  // namespace tessera
