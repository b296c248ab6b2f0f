#include "transport/threads/threads.hpp"

#include <algorithm>

#include <tessera/collective.hpp>

#include "tensor/copy.hpp"
#include "tensor/reduce.hpp"
#include "tensor/strided.hpp"

namespace tessera {
namespace {

class PostedTicket : public Ticket {
 public:
  PostedTicket(std::shared_ptr<Group> group, Posted posted)
      : group_(std::move(group)), target_(posted.peer), posted_(group_->post(std::move(posted))) {}

  bool done() override { return group_->is_done(posted_); }
  bool await(Deadline deadline) override { return group_->await(posted_, deadline); }
  void wait(Deadline deadline) override {
    bool gone = false;
    if (!group_->wait(posted_, deadline, gone)) {
      throw PeerTrouble{gone ? PeerTrouble::closed : PeerTrouble::timed_out, target_};
    }
    if (posted_->state == Posted::failed) throw_error(posted_->kind, posted_->error);
  }
  Tensor tensor() const override { return posted_->tensor; }
  int peer() const override { return posted_->peer; }

 private:
  std::shared_ptr<Group> group_;
  int target_;
  std::shared_ptr<Posted> posted_;
};

}  // namespace

ThreadsTransport::ThreadsTransport(std::shared_ptr<Group> group, int rank)
    : BoardTransport(group->board(rank), group->probe()), group_(std::move(group)) {}

void ThreadsTransport::receive_all(const Move& move, std::span<const Tensor> mine, const PeerTensors& peers, Deadline) {
  const int64_t total_bytes = move.received_bytes(mine);
  for (const Receive& receive : move.receives) {
    const View target = view_of(mine[static_cast<size_t>(receive.tensor)]).box(receive.box);
    terms_.clear();
    for (size_t t = receive.first_term; t < receive.first_term + receive.terms; ++t) {
      const Term& term = move.terms[t];
      const auto tensor = static_cast<size_t>(term.tensor);
      if (term.rank == rank()) {
        terms_.push_back(view_of(mine[tensor]).box(term.box));
      } else {
        const Announced& there = *peers[static_cast<size_t>(term.rank)][tensor];
        const auto* data = reinterpret_cast<const std::byte*>(there.where.words[0]);
        const ConstView whole{data, there.dtype, there.shape, there.strides};
        terms_.push_back((there.inlined != nullptr ? there.inlined_view() : whole).box(term.box));
      }
    }
    if (receive.is_copy()) copy_box(target, terms_[0], total_bytes);
    else reduce_boxes(target, terms_, receive.reduction, total_bytes, receive.axes, receive.read_next);
  }
}

std::unique_ptr<Ticket> ThreadsTransport::post_send(const Tensor& tensor, int to, int64_t tag,
                                                    const std::string& site) {
  return std::make_unique<PostedTicket>(
      group_, Posted{.is_send = true, .owner = rank(), .peer = to, .tag = tag, .tensor = tensor, .site = site});
}

std::unique_ptr<Ticket> ThreadsTransport::post_receive(const Tensor& out, int from, int64_t tag,
                                                       const std::string& site, bool) {
  return std::make_unique<PostedTicket>(
      group_, Posted{.is_send = false, .owner = rank(), .peer = from, .tag = tag, .tensor = out, .site = site});
}

void ThreadsTransport::leave(const std::string& farewell) noexcept {
  board().leave(farewell);
  group_->left(rank());
}

Verdict ThreadsTransport::abort(const Verdict& verdict) noexcept {
  board().abort(verdict.kind, verdict.text);
  group_->aborted();
  Verdict first;
  board().verdict(first.kind, first.text);
  return first;
}

std::unique_ptr<Transport> ThreadsTransport::subgroup(uint64_t id, std::span<const int> members, Deadline) {
  if (members.empty()) return nullptr;
  const auto me = std::find(members.begin(), members.end(), rank()) - members.begin();
  auto group = group_->child(id, members, rank());
  return std::make_unique<ThreadsTransport>(std::move(group), static_cast<int>(me));
}

std::unique_ptr<Transport> ThreadsTransport::survivors(Deadline deadline) {
  uint64_t unused = 0;
  const std::vector<int> members = board().survivors(
      deadline, [](int) { return uint64_t{0}; }, unused);
  return subgroup(0, members, deadline);
}

}  // namespace tessera
