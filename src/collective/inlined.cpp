#include "collective/inlined.hpp"

#include <algorithm>
#include <iterator>

#include "tensor/strided.hpp"

namespace tessera {

void InlinedMove::clear() {
  steps_.clear();
  own_ = 0;
  sources_.clear();
  terms_.clear();
}

void InlinedMove::work_out(const Move& move, int rank, std::span<const Tensor> mine, const PeerTensors& peers,
                           const RawRecords& said) {
  clear();
  std::vector<ConstView> views;
  for (const Receive& receive : move.receives) {
    const Tensor& out = mine[static_cast<size_t>(receive.tensor)];
    Step step{.tensor = receive.tensor, .first = sources_.size(), .count = receive.terms, .copy = {}, .sum = {}};
    const View target = view_of(out).box(receive.box);
    step.offset = target.data - out.data();
    views.clear();
    for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
      const Term& term = move.terms[t];
      const auto number = static_cast<size_t>(term.tensor);
      const bool own = term.rank == rank;
      const ConstView whole =
          own ? view_of(mine[number]) : peers[static_cast<size_t>(term.rank)][number]->inlined_view();
      views.push_back(whole.box(term.box));
      const std::byte* begin = own ? mine[number].data() : said[static_cast<size_t>(term.rank)].data();
      sources_.push_back({own ? kOwn : term.rank, term.tensor, views.back().data - begin});
    }
    if (receive.is_copy()) step.copy.emplace(target, views.back());
    else step.sum.emplace(target, views, receive.reduction, receive.axes);
    steps_.push_back(std::move(step));
  }
  terms_.resize(sources_.size());
  const auto is_own = [&](const Step& step) { return step.copy && sources_[step.first].rank == kOwn; };
  own_ = static_cast<size_t>(std::partition(steps_.begin(), steps_.end(), is_own) - steps_.begin());
}

const std::byte* InlinedMove::at(const Source& source, std::span<std::byte* const> memory, const RawRecords& said) {
  const std::byte* begin =
      source.rank == kOwn ? memory[static_cast<size_t>(source.tensor)] : said[static_cast<size_t>(source.rank)].data();
  return begin + source.offset;
}

void InlinedMove::run_own(std::span<std::byte* const> memory) {
  for (size_t i = 0; i < own_; ++i) {
    const Step& step = steps_[i];
    const Source& source = sources_[step.first];
    step.copy->run(memory[static_cast<size_t>(step.tensor)] + step.offset,
                   memory[static_cast<size_t>(source.tensor)] + source.offset);
  }
}

void InlinedMove::run_rest(std::span<std::byte* const> memory, const RawRecords& said) {
  for (size_t i = own_; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    std::byte* const to = memory[static_cast<size_t>(step.tensor)] + step.offset;
    if (step.copy) {
      step.copy->run(to, at(sources_[step.first], memory, said));
      continue;
    }
    const std::byte** const terms = terms_.data() + step.first;
    for (size_t t = 0; t < step.count; ++t) terms[t] = at(sources_[step.first + t], memory, said);
    step.sum->run(to, terms);
  }
}

int64_t inlined_from_afar(const PeerTensors& peers, const Transport& transport) {
  int64_t bytes = 0;
  for (size_t r = 0; r < peers.size(); ++r) {
    if (!transport.hears_from_afar(static_cast<int>(r))) continue;
    for (const Announced* tensor : peers[r]) {
      if (tensor != nullptr && tensor->inlined != nullptr) bytes += volume(tensor->shape) * size_bytes(tensor->dtype);
    }
  }
  return bytes;
}

}  // namespace tessera
