#include "collective/folding.hpp"

#include <algorithm>

#include "layout/axis_layout.hpp"

namespace tessera {
namespace {

// Terms of several blocks of a host come one after the other; of a longer piece all of one would have to wait for the other.
constexpr int64_t kBesideBytes = int64_t{4} << 20;

}  // namespace

Folding::Folding(const Hosts& hosts, const Blocks& blocks, For whom, const Sizes& sizes, int64_t row_bytes)
    : hosts_(hosts), blocks_(blocks), whom_(whom), by_class_(static_cast<size_t>(hosts.most_together())) {
  const bool beside = blocks.count() > hosts.count();
  const int64_t most = beside ? std::max<int64_t>(kBesideBytes / std::max<int64_t>(row_bytes, 1), 1) : INT64_MAX;
  int taker = 0;
  for (Stretch left : behind_one_another(sizes)) {
    const int number = whom == every_host ? taker : hosts.place_of(taker);
    while (!left.empty()) {
      const int64_t end = left.begin + std::min(most, left.length());
      by_class_[static_cast<size_t>(number)].push_back(pieces_.size());
      pieces_.push_back({left.begin, end});
      takers_.push_back(taker);
      left.begin = end;
    }
    ++taker;
  }
}

int Folding::keeper(int host, int number) const {
  const auto& ranks = hosts_.ranks_on(host);
  return ranks[static_cast<size_t>(number) % ranks.size()];
}

int Folding::wanted_on(int host, size_t piece) const {
  const int taker = takers_[piece];
  if (whom_ == every_host) return keeper(host, taker);
  return hosts_.host_of(taker) == host ? taker : -1;
}

std::vector<int> Folding::takers(size_t piece) const {
  if (whom_ == each_rank) return {takers_[piece]};
  std::vector<int> list;
  for (int h = 0; h < hosts_.count(); ++h) list.push_back(keeper(h, takers_[piece]));
  return list;
}

const Folding::Table& Folding::table(int host) const {
  const size_t ranks = hosts_.ranks_on(host).size(), blocks = blocks_.on(host).size();
  const auto [found, is_new] = tables_.try_emplace({ranks, blocks});
  Table& table = found->second;
  if (!is_new) return table;
  table.pieces.resize(pieces_.size());
  table.classes.resize(by_class_.size());
  table.rows.assign(ranks, 0);
  for (size_t c = 0; c < by_class_.size(); ++c) {
    int64_t& end = table.rows[c % ranks];
    table.classes[c].begin = end;
    for (const size_t piece : by_class_[c]) {
      table.pieces[piece] = end;
      end += pieces_[piece].length() * static_cast<int64_t>(blocks);
    }
    table.classes[c].end = end;
  }
  return table;
}

int64_t Folding::rows_kept(int rank) const {
  return table(hosts_.host_of(rank)).rows[static_cast<size_t>(hosts_.place_of(rank))];
}

Stretch Folding::place(size_t piece, int block) const {
  const int host = blocks_.host_of(block);
  const auto& beside = blocks_.on(host);
  const auto number = std::find(beside.begin(), beside.end(), block) - beside.begin();
  const int64_t begin = table(host).pieces[piece] + number * pieces_[piece].length();
  return {begin, begin + pieces_[piece].length()};
}

Stretch Folding::place_of_class(int number, int host) const { return table(host).classes[static_cast<size_t>(number)]; }

}  // namespace tessera
