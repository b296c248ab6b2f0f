// Random cases on random ranks. TESSERA_SOAK=1 in the environment runs twenty times as many.
#pragma once

#include <cstdlib>
#include <stdexcept>

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>  // which needs the one before

#include "support/global.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {

// RapidCheck reads RC_PARAMS when its first property runs; what the caller set stays.
inline const bool kSoak = [] {
  const char* soak = std::getenv("TESSERA_SOAK");
  const bool wanted = soak != nullptr && *soak != '\0' && *soak != '0';
  if (wanted) setenv("RC_PARAMS", "max_success=2000", 0);
  return wanted;
}();

// For bodies of properties: what a rank throws fails the case, and RapidCheck looks for a smaller one.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// On threads, and on one of the others, which take turns: processes take longer to start than a case takes. Under a
// sanitizer only now and then.
inline void property_on_ranks(int ranks, const Body& body) {
  static size_t turn = 0;
  for (const size_t number : {size_t{0}, 1 + turn++ % (transports().size() - 1)}) {
    if (number > 0 && kSanitized && turn % 9 != 0) continue;
    const TransportUnderTest& transport = transports()[number];
    try {
      transport.run(ranks, body);
    } catch (const std::exception& e) {
      RC_FAIL(transport.name + ": " + e.what());
    }
  }
}

// lowest to highest, both included and alike: RapidCheck by itself would begin with the lowest and come to the highest late.
inline int64_t pick(int64_t lowest, int64_t highest) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(lowest, highest + 1));
}

inline Sizes pick_sizes(int count, int64_t highest) {
  Sizes sizes;
  for (int r = 0; r < count; ++r) sizes.push_back(pick(0, highest));
  return sizes;
}

// A tensor of a random shape, cut along a random dimension for a random number of ranks.
struct Cut {
  int ranks;
  Dims shape;   // of the whole
  int64_t dim;  // negative ones too
  Sizes sizes;
  int root;
  uint64_t seed;

  Box box(int rank) const { return cut(shape, dim, sizes, rank); }
};

inline Cut pick_cut(int ranks, int64_t least_dims = 1, int64_t longest = 4) {
  Cut c;
  c.ranks = ranks;
  const int64_t ndim = pick(least_dims, 4);
  for (int64_t d = 0; d < ndim; ++d) c.shape.push_back(pick(d == 0 ? 0 : 1, longest));
  c.dim = pick(-ndim, ndim - 1);
  c.sizes = pick_sizes(c.ranks, longest);
  c.shape = with_extent(c.shape, c.dim, sum_of(c.sizes));
  c.root = static_cast<int>(pick(0, c.ranks - 1));
  c.seed = static_cast<uint64_t>(pick(0, 1 << 30));
  RC_LOG() << fmt::format("{} ranks, shape {}, dim {}, sizes [{}], root {}, seed {}\n", c.ranks, c.shape, c.dim,
                          fmt::join(c.sizes, ", "), c.root, c.seed);
  return c;
}
inline Cut pick_cut() { return pick_cut(static_cast<int>(pick(1, 7))); }

}  // namespace tessera::testing_support
