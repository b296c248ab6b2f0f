#include "transport/mpi/share.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include <tessera/error.hpp>

namespace tessera::mpi {
namespace {

// Part `number` of `parts` of a box; empty where there is none left. Along the first dimension that has something for all.
Box part_of(const Dims& extent, size_t number, size_t parts) {
  Box part = Box::whole(extent);
  if (parts == 1 || extent.empty()) return part;
  const auto count = static_cast<int64_t>(parts), i = static_cast<int64_t>(number);
  const auto* wide = std::find_if(extent.begin(), extent.end(), [&](int64_t e) { return e >= count; });
  const auto* chosen = wide != extent.end() ? wide : std::max_element(extent.begin(), extent.end());
  const auto dim = static_cast<size_t>(chosen - extent.begin());
  const int64_t each = *chosen / count, more = *chosen % count;
  part.offset[dim] = each * i + std::min(i, more);
  part.extent[dim] = each + (i < more ? 1 : 0);
  return part;
}

// A single element has no dimension to cut: the first one takes it.
bool has_part(const Dims& extent, size_t number, const Box& part) {
  return extent.empty() ? number == 0 : !part.empty();
}

Box within(const Box& box, const Box& part) {
  Box result = part;
  for (size_t d = 0; d < part.offset.size(); ++d) result.offset[d] += box.offset[d];
  return result;
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : words_(bytes.size() / sizeof(int64_t)) {
    if (!words_.empty()) std::memcpy(words_.data(), bytes.data(), words_.size() * sizeof(int64_t));
  }
  int64_t next() { return span(1)[0]; }
  std::span<const int64_t> span(int64_t count) {
    if (count < 0 || static_cast<size_t>(count) > words_.size() - at_)
      throw Error("a wish makes no sense: it is damaged");
    at_ += static_cast<size_t>(count);
    return std::span(words_).subspan(at_ - static_cast<size_t>(count), static_cast<size_t>(count));
  }
  Dims dims() {
    const int64_t count = next();
    return count > kMaxDims ? throw Error("a wish makes no sense: it is damaged") : Dims(span(count));
  }
  bool at_end() const { return at_ == words_.size(); }

 private:
  std::vector<int64_t> words_;
  size_t at_ = 0;
};

void append(std::vector<int64_t>& words, const Dims& dims) {
  words.push_back(static_cast<int64_t>(dims.size()));
  words.insert(words.end(), dims.begin(), dims.end());
}

}  // namespace

int64_t bytes_from_others(const Move& move, std::span<const Tensor> tensors, int self) {
  int64_t bytes = 0;
  for (const Receive& receive : move.receives) {
    const int64_t each = receive.box.elements() * size_bytes(tensors[static_cast<size_t>(receive.tensor)].dtype());
    for (size_t t = 0; t < receive.terms; ++t) bytes += move.terms[receive.first_term + t].rank == self ? 0 : each;
  }
  return bytes;
}

Sharing::Sharing(const Hosts& hosts, int rank, const Move& move, std::span<const Tensor> mine, const PeerTensors& peers)
    : hosts_(hosts), rank_(rank), host_(hosts.host_of(rank)), move_(move), peers_(peers) {
  hold(mine);
  for (const int r : hosts_.ranks_on(host_)) near_peers_.push_back(peers[static_cast<size_t>(r)]);
  for (const Send& send : move.sends) {
    if (is_near(send.rank, rank_, send.tensor))
      near_.sends.push_back({hosts_.place_of(send.rank), send.tensor, send.box});
  }
  cut_sends();
  for (const Receive& receive : move.receives) {
    if (receive.box.elements() == 0) continue;
    if (is_remote(receive)) {
      const auto terms = std::span(move.terms).subspan(receive.first_term, receive.terms);
      const bool comes = std::any_of(terms.begin(), terms.end(), [&](const Term& term) {
        return !is_near(rank_, term.rank, term.tensor) && travels(term.rank, term.tensor);
      });
      if (comes && move.shares_wishes) wanted_.push_back(&receive);
      else take(receive, Box::whole(receive.box.extent));
      continue;
    }
    near_.receives.push_back(receive);
    near_.receives.back().first_term = near_.terms.size();
    for (size_t t = 0; t < receive.terms; ++t) {
      Term term = move.terms[receive.first_term + t];
      term.rank = hosts_.place_of(term.rank);
      near_.terms.push_back(std::move(term));
    }
  }
}

void Sharing::hold(std::span<const Tensor> mine) {
  tensors_.assign(mine.begin(), mine.end());
  for (const auto& [dtype, extent] : fetched_) tensors_.push_back(Tensor::empty(dtype, extent));
}

// What was said in the record itself is there already.
bool Sharing::travels(int rank, int tensor) const {
  const Announced* announced = peers_[static_cast<size_t>(rank)][static_cast<size_t>(tensor)];
  return announced == nullptr || announced->inlined == nullptr;
}

// Whether a reader finds its owner's tensor on this host, and was told where: of what a call keeps in between nobody is.
bool Sharing::is_near(int reader, int owner, int tensor) const {
  if (reader == owner) return true;
  return hosts_.together(reader, owner) && peers_[static_cast<size_t>(owner)][static_cast<size_t>(tensor)] != nullptr;
}

bool Sharing::is_remote(const Receive& receive) const {
  const auto terms = std::span(move_.terms).subspan(receive.first_term, receive.terms);
  return std::any_of(terms.begin(), terms.end(),
                     [&](const Term& term) { return !is_near(rank_, term.rank, term.tensor); });
}

void Sharing::cut_sends() {
  // By host, tensor and box, and how many times the same rank had wanted it before: all who get it, by place.
  std::map<std::vector<int64_t>, std::vector<const Send*>> groups;
  std::map<std::vector<int64_t>, int64_t> times;
  for (const Send& send : move_.sends) {
    if (is_near(send.rank, rank_, send.tensor) || send.box.elements() == 0) continue;
    if (move_.for_one_sum_each || !move_.shares_wishes) {
      across_.sends.push_back(send);
      continue;
    }
    std::vector<int64_t> key{hosts_.host_of(send.rank), send.tensor};
    append(key, send.box.offset);
    append(key, send.box.extent);
    std::vector<int64_t> of_rank = key;
    of_rank.push_back(send.rank);
    key.push_back(times[of_rank]++);
    groups[key].push_back(&send);
  }
  for (auto& [key, sends] : groups) {
    std::sort(sends.begin(), sends.end(),
              [&](const Send* a, const Send* b) { return hosts_.place_of(a->rank) < hosts_.place_of(b->rank); });
    for (size_t i = 0; i < sends.size(); ++i) {
      const Send& send = *sends[i];
      const Box part = part_of(send.box.extent, i, sends.size());
      if (has_part(send.box.extent, i, part)) across_.sends.push_back({send.rank, send.tensor, within(send.box, part)});
    }
  }
}

std::vector<int64_t> Sharing::key_of(const Receive& receive) const {
  std::vector<int64_t> key{static_cast<int64_t>(receive.reduction.op),
                           std::bit_cast<int64_t>(static_cast<double>(receive.reduction.factor)),
                           static_cast<int64_t>(receive.terms)};
  append(key, receive.axes);
  append(key, receive.box.extent);
  for (size_t t = 0; t < receive.terms; ++t) {
    const Term& term = move_.terms[receive.first_term + t];
    key.push_back(term.rank);
    key.push_back(term.tensor);
    append(key, term.box.offset);
  }
  if (move_.for_one_sum_each) key.push_back(rank_);
  return key;
}

std::span<const int64_t> Sharing::wishes(const std::function<Handle(const Tensor&)>& handle_of) {
  std::map<std::vector<int64_t>, int64_t> times;
  std::vector<bool> targets(tensors_.size(), false);
  said_ = {static_cast<int64_t>(wanted_.size())};
  for (const Receive* receive : wanted_) {
    std::vector<int64_t> key = key_of(*receive);
    key.push_back(times[key]++);
    said_.push_back(static_cast<int64_t>(key.size()));
    said_.insert(said_.end(), key.begin(), key.end());
    said_.push_back(receive->tensor);
    append(said_, receive->box.offset);
    append(said_, receive->box.extent);
    targets[static_cast<size_t>(receive->tensor)] = true;
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i]) continue;
    const Tensor& tensor = tensors_[i];
    const Handle handle = handle_of(tensor);
    said_.insert(said_.end(), {static_cast<int64_t>(i), static_cast<int64_t>(tensor.dtype())});
    append(said_, tensor.shape());
    append(said_, tensor.strides());
    for (const uint64_t word : handle.words) said_.push_back(std::bit_cast<int64_t>(word));
  }
  return said_;
}

std::vector<Sharing::Wish> Sharing::parse(int place, std::span<const std::byte> said) {
  Reader reader(said);
  std::vector<Wish> list;
  for (int64_t left = reader.next(); left > 0; --left) {
    Wish wish;
    const auto key = reader.span(reader.next());
    wish.key.assign(key.begin(), key.end());
    wish.place = place;
    wish.tensor = static_cast<int>(reader.next());
    wish.box.offset = reader.dims();
    wish.box.extent = reader.dims();
    list.push_back(std::move(wish));
  }
  auto& announced = announced_[static_cast<size_t>(place)];
  auto& known = relay_peers_[static_cast<size_t>(place)];
  std::vector<size_t> numbers;
  while (!reader.at_end()) {
    const auto number = static_cast<size_t>(reader.next());
    if (number >= tensors_.size()) throw Error("a wish makes no sense: it is damaged");
    Announced tensor;
    tensor.dtype = static_cast<DType>(reader.next());
    tensor.shape = reader.dims();
    tensor.strides = reader.dims();
    for (uint64_t& word : tensor.where.words) word = std::bit_cast<uint64_t>(reader.next());
    numbers.push_back(number);
    announced.push_back(tensor);
  }
  known.assign(tensors_.size(), nullptr);
  for (size_t i = 0; i < numbers.size(); ++i) known[numbers[i]] = &announced[i];
  return list;
}

void Sharing::hear(std::span<const std::span<const std::byte>> said) {
  announced_.resize(said.size());
  relay_peers_.resize(said.size());
  std::map<std::vector<int64_t>, std::vector<Wish>> groups;
  std::vector<std::vector<int64_t>> own;  // in the order of wanted_
  for (size_t place = 0; place < said.size(); ++place) {
    for (Wish& wish : parse(static_cast<int>(place), said[place])) {
      if (static_cast<int>(place) == hosts_.place_of(rank_)) own.push_back(wish.key);
      groups[wish.key].push_back(std::move(wish));
    }
  }
  for (const auto& [key, group] : groups) relays_ = relays_ || group.size() > 1;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto& group = groups[own[i]];
    const auto me = std::find_if(group.begin(), group.end(),
                                 [&](const Wish& wish) { return wish.place == hosts_.place_of(rank_); });
    const auto number = static_cast<size_t>(me - group.begin());
    const Dims& extent = wanted_[i]->box.extent;
    const Box part = part_of(extent, number, group.size());
    if (has_part(extent, number, part)) take(*wanted_[i], part);
    share(group);
  }
}

// This rank's part of a result, of which something comes from another host.
void Sharing::take(const Receive& receive, const Box& part) {
  Receive own = receive;
  own.box = within(receive.box, part);
  own.first_term = across_.terms.size();
  for (size_t t = 0; t < receive.terms; ++t) {
    Term term = move_.terms[receive.first_term + t];
    term.box = within(term.box, part);
    across_.terms.push_back(fetched(term, receive));
  }
  across_.receives.push_back(std::move(own));
}

// A term of another rank of this host is read first, into memory of this rank's own.
Term Sharing::fetched(const Term& term, const Receive& receive) {
  const bool near = term.rank != rank_ && is_near(rank_, term.rank, term.tensor) && travels(term.rank, term.tensor);
  if (!near) return term;
  const auto number = static_cast<int>(tensors_.size());
  const Box whole = Box::whole(term.box.extent);
  fetched_.emplace_back(tensors_[static_cast<size_t>(receive.tensor)].dtype(), term.box.extent);
  tensors_.push_back(Tensor::empty(fetched_.back().first, fetched_.back().second));
  near_.receives.push_back({number, whole, near_.terms.size(), 1, {}, {}});
  near_.terms.push_back({hosts_.place_of(term.rank), term.tensor, term.box});
  return {rank_, number, whole};
}

// What the others of the group took is read from them, and what this rank took by them.
void Sharing::share(std::span<const Wish> group) {
  const int place = hosts_.place_of(rank_);
  const auto& me = *std::find_if(group.begin(), group.end(), [&](const Wish& wish) { return wish.place == place; });
  for (size_t i = 0; i < group.size(); ++i) {
    const Wish& wish = group[i];
    const Box part = part_of(wish.box.extent, i, group.size());
    if (!has_part(wish.box.extent, i, part)) continue;
    if (wish.place != place) {
      relay_.receives.push_back({me.tensor, within(me.box, part), relay_.terms.size(), 1, {}, {}});
      relay_.terms.push_back({wish.place, wish.tensor, within(wish.box, part)});
      continue;
    }
    for (const Wish& other : group) {
      if (other.place != place) relay_.sends.push_back({other.place, me.tensor, within(me.box, part)});
    }
  }
}

int64_t Sharing::bytes_within() const {
  const int place = hosts_.place_of(rank_);
  return bytes_from_others(near_, tensors_, place) + bytes_from_others(relay_, tensors_, place);
}

}  // namespace tessera::mpi
