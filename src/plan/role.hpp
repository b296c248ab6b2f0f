// What a plan is to one rank: its boxes, worked out once, so that a call that was made before only checks and moves.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include <tessera/detail/description.hpp>
#include <tessera/plan.hpp>

namespace tessera::detail {

struct Role {
  struct Stage {
    Stage(const Step& s, const std::shared_ptr<const Exchange>& e, const std::string& t, size_t n)
        : step(s), exchange(e), text(t), number(n) {}

    const Step& step;
    const std::shared_ptr<const Exchange>& exchange;
    const std::string& text;
    size_t number;                     // of the stages of all steps
    bool first = false, last = false;  // of the first step; the last of all
    bool halves = false;               // the first of the two of an all_reduce whose input is the caller's
    bool is_local = false;             // nothing leaves its rank
    // Where terms are added up, each is scaled first, on its way; other reductions are scaled at the end.
    bool scales = false;
    std::optional<Box> before = {}, after = {};  // the rank's parts
    bool embeds = false;                         // what it gets stands among the identity of what becomes pending
    std::vector<Overlap> stays = {};             // of an embed step: which boxes stay
    Description said = {};                       // what is the same in every call
  };

  Role(const Plan& plan, int of_rank);

  int rank;
  int highest_rank = 0;  // that a mesh names
  std::optional<Box> from, to;
  std::vector<Stage> stages;
  bool moves = false;  // some stage does
};

// The roles of the ranks of this process. Thread-safe.
class Roles {
 public:
  Roles() = default;
  ~Roles();
  Roles(const Roles&) = delete;
  Roles& operator=(const Roles&) = delete;

  const Role& of(const Plan& plan, int rank) {
    for (const Node* node = first_.load(std::memory_order_acquire); node != nullptr; node = node->next) {
      if (node->role.rank == rank) return node->role;
    }
    return add(plan, rank);
  }

 private:
  struct Node {
    Role role;
    const Node* next;
  };
  const Role& add(const Plan& plan, int rank);

  std::atomic<const Node*> first_{nullptr};
};

}  // namespace tessera::detail
