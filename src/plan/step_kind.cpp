#include "plan/step_kind.hpp"

#include <tessera/error.hpp>
#include <tessera/overlap.hpp>

#include "layout/text.hpp"

namespace tessera {

void check_kind(const Step& step, const Dims& shape, size_t number) {
  const auto wrong = [&](const std::string& why) {
    throw Error(fmt::format("the plan's steps[{}] is called {}, but {}", number, name(step.kind), why));
  };
  if (step.kind == StepKind::all_reduce) {
    for (const size_t a : step.axes) {
      const Placement &before = step.before.placements()[a], &after = step.after.placements()[a];
      if (before.kind == Placement::Kind::partial && after.kind == Placement::Kind::replicate) continue;
      wrong(fmt::format("goes from {} to {} along {}", to_string(before), to_string(after),
                        step.before.mesh().axes()[a].name));
    }
  }
  if (step.kind != StepKind::slice && step.kind != StepKind::embed) return;
  const Exchange exchange(step.before, step.after, shape);
  if (exchange.terms() > 1) wrong(fmt::format("sums {} terms", exchange.terms()));
  for (const int rank : step.after.mesh().ranks()) {
    for (const Overlap& part : exchange.receives(rank)) {
      if (part.rank != rank) wrong(fmt::format("rank {} gets elements from rank {}", rank, part.rank));
    }
    if (step.kind == StepKind::embed || !step.after.box(shape, rank)) continue;
    if (!step.before.box(shape, rank)) wrong(fmt::format("rank {} has nothing to cut", rank));
    if (step.after.pending() && exchange.embeds(rank)) {
      wrong(fmt::format("rank {}'s part is one of a sum that becomes pending", rank));
    }
  }
}

}  // namespace tessera
