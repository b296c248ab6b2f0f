// What all ranks said in earlier calls, by where those stood.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/statement.hpp"

namespace tessera::detail {

// What all ranks said in a call. Kept, so that of a call like an earlier one
// (in all that any rank said, but for where its tensors lie) nothing has to be
// worked out again: whether all bytes are the same is the whole check.
struct Agreement {
  std::vector<Record> records;
  bool repeated = false;  // like the call that was settled here before
  bool settled = false;   // the caller has worked out what follows from the
                          // records, and put it into `plan`
  int64_t number = 0;     // of the last call in which all said this in full
  std::shared_ptr<void> plan;
  std::vector<std::vector<std::byte>> said;  // the common part of each record
  uint64_t used = 0;                         // when it was last
  Agreement* next = nullptr;                 // what was used after it
};

// Where to look for an earlier call like this one. Two that are alike by chance cost time, nothing else.
struct Place {
  uint64_t line;  // and what is called there: alike on all ranks, so that they forget the same
  uint64_t form;  // of the tensor, and the file: this process's own

  static uint64_t mix(uint64_t seed, uint64_t word) { return (seed ^ word) * 0x9e3779b97f4a7c15U; }
};

// Each line has four places, which it shares with few others: so that lines of one loop, and tensors of several shapes at
// one line, do not drive each other out, while one whose shape is ever another does not drive out those of all others.
class Agreements {
 public:
  explicit Agreements(int ranks) : ways_(ranks <= kManyRanks ? kWays : 1) {}
  Agreements(const Agreements&) = delete;
  Agreements& operator=(const Agreements&) = delete;

  // Of the call that is made now.
  Agreement& at(const Place& place) {
    Set& set = sets_[place.line >> kShift];
    const uint64_t key = Place::mix(place.line, place.form);
    for (size_t way = 0; way < ways_; ++way) {
      if (set.keys[way] == key) return set.ways[way];
    }
    const auto older = [](const Agreement& a, const Agreement& b) { return a.used < b.used; };
    const auto ways = set.ways.begin();
    const auto oldest = std::min_element(ways, ways + static_cast<ptrdiff_t>(ways_), older);
    set.keys[static_cast<size_t>(oldest - ways)] = key;
    oldest->settled = false;  // what is left there is of another call, and its memory is worth keeping
    return *oldest;
  }

  // What came after the last one when that was used before: a loop makes the same calls again. Null: nothing did.
  Agreement* likely() const { return last_->next; }
  // This is the one, once for each call.
  void use(Agreement& agreement) {
    agreement.used = ++uses_;
    last_->next = &agreement;
    last_ = &agreement;
  }

 private:
  static constexpr size_t kWays = 4, kSets = 16;
  static constexpr int kShift = 64 - 4;
  static constexpr int kManyRanks = 1024;  // what each of so many says takes memory

  struct Set {
    std::array<uint64_t, kWays> keys{};
    std::array<Agreement, kWays> ways;
  };

  size_t ways_;
  uint64_t uses_ = 0;
  std::array<Set, kSets> sets_;
  Agreement* last_ = &sets_[0].ways[0];
};

}  // namespace tessera::detail
