#pragma once

#include <tessera/plan.hpp>

namespace tessera {

// A step is run by its boxes; but of one in which nothing leaves its rank only that is taken, and an all_reduce is cut in
// two. So what it is called must be what it is: throws Error else. `number`: the step's in the plan. Takes as long as
// listing the boxes of all ranks.
void check_kind(const Step& step, const Dims& shape, size_t number);

}  // namespace tessera
