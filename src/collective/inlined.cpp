#include "collective/inlined.hpp"

#include <cstring>

#include "tensor/copy.hpp"
#include "tensor/loop_nest.hpp"
#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"

namespace tessera {

void InlinedMove::clear() {
  steps_.clear();
  sources_.clear();
  views_.clear();
}

void InlinedMove::work_out(const Move& move, int rank, std::span<const Tensor> mine, const PeerTensors& peers,
                           const RawRecords& said) {
  clear();
  for (const Receive& receive : move.receives) {
    const Tensor& out = mine[static_cast<size_t>(receive.tensor)];
    Step step{receive.tensor,    0,           0, view_of(out).box(receive.box), sources_.size(), receive.terms,
              receive.reduction, receive.axes};
    step.offset = step.target.data - out.data();
    for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
      const Term& term = move.terms[t];
      const auto number = static_cast<size_t>(term.tensor);
      const bool own = term.rank == rank;
      const ConstView whole =
          own ? view_of(mine[number]) : peers[static_cast<size_t>(term.rank)][number]->inlined_view();
      views_.push_back(whole.box(term.box));
      const std::byte* begin = own ? mine[number].data() : said[static_cast<size_t>(term.rank)].data();
      sources_.push_back({own ? kOwn : term.rank, term.tensor, views_.back().data - begin});
    }
    if (receive.is_copy() && is_row_major(step.target) && is_row_major(views_.back())) {
      step.flat_bytes = step.target.elements() * size_bytes(step.target.dtype);
    }
    steps_.push_back(step);
  }
}

void InlinedMove::run(std::span<const Tensor> mine, const RawRecords& said) {
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    const std::byte* begin = source.rank == kOwn ? mine[static_cast<size_t>(source.tensor)].data()
                                                 : said[static_cast<size_t>(source.rank)].data();
    views_[i].data = begin + source.offset;
  }
  for (Step& step : steps_) {
    step.target.data = mine[static_cast<size_t>(step.tensor)].data() + step.offset;
    const std::span terms(views_.data() + step.first, step.count);
    if (step.flat_bytes > 0) {
      std::memcpy(step.target.data, terms[0].data, static_cast<size_t>(step.flat_bytes));
    } else if (step.count == 1 && step.reduction.op != ReduceOp::premul_sum) {
      copy_box(step.target, terms[0]);
    } else {
      reduce_boxes(step.target, terms, step.reduction, 0, step.axes);
    }
  }
}

}  // namespace tessera
