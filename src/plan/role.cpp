#include "plan/role.hpp"

#include <algorithm>
#include <utility>

namespace tessera::detail {
namespace {

bool is_local(const Step& step) { return step.kind == StepKind::slice || step.kind == StepKind::embed; }

}  // namespace

Role::Role(const Plan& plan, int of_rank)
    : rank(of_rank), from(plan.from().box(plan.shape(), rank)), to(plan.to().box(plan.shape(), rank)) {
  for (const Layout* layout : {&plan.from(), &plan.to()}) {
    for (const int named : layout->mesh().ranks()) highest_rank = std::max(highest_rank, named);
  }
  const auto& steps = plan.steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& list = plan.stages(i);
    for (size_t k = 0; k < list.size(); ++k) {
      const Exchange& exchange = *list[k].exchange;
      Stage& stage = stages.emplace_back(steps[i], list[k].exchange, list[k].text, stages.size());
      stage.first = i == 0;
      stage.last = i + 1 == steps.size() && k + 1 == list.size();
      stage.halves = i == 0 && k == 0 && list.size() == 2;
      stage.is_local = is_local(steps[i]);
      stage.scales = stage.last && (exchange.terms() == 1 || *exchange.from().pending() == ReduceOp::sum);
      stage.before = exchange.from().box(plan.shape(), rank);
      stage.after = exchange.to().box(plan.shape(), rank);
      stage.embeds = stage.after && exchange.to().pending() && exchange.embeds(rank);
      if (steps[i].kind == StepKind::embed) stage.stays = exchange.receives(rank);
      stage.said = {.op = OpCode::redistribute,
                    .stage = static_cast<int64_t>(stage.number),
                    .exchange = &stage.exchange,
                    .note = &stage.text,
                    .dtype = plan.dtype()};
      moves = moves || !stage.is_local;
    }
  }
}

Roles::~Roles() {
  for (const Node* node = first_.load(std::memory_order_relaxed); node != nullptr;) {
    delete std::exchange(node, node->next);
  }
}

// Two threads may add the same role at once: then it is there twice, and both are right.
const Role& Roles::add(const Plan& plan, int rank) {
  auto* node = new Node{Role(plan, rank), first_.load(std::memory_order_relaxed)};
  while (!first_.compare_exchange_weak(node->next, node, std::memory_order_acq_rel, std::memory_order_relaxed)) {}
  return node->role;
}

}  // namespace tessera::detail
