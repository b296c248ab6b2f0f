#include "comm/agreement.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include <tessera/detail/forward.hpp>

namespace tessera {
namespace {

bool uses_dim(OpCode op) {
  return op != OpCode::barrier && op != OpCode::split_comm && op != OpCode::all_gather_same &&
         op != OpCode::all_reduce && op != OpCode::broadcast && op != OpCode::reduce && op != OpCode::redistribute &&
         op != OpCode::scatter_parts;
}
bool uses_root(OpCode op) {
  return op == OpCode::broadcast || op == OpCode::scatter || op == OpCode::gather || op == OpCode::reduce ||
         op == OpCode::scatter_parts;
}
bool uses_reduction(OpCode op) {
  return op == OpCode::reduce_scatter || op == OpCode::all_reduce || op == OpCode::reduce;
}

// all_gather_same announces its tensors with a leading dimension of 1, along
// which they are stacked.
size_t added_dims(OpCode op) { return op == OpCode::all_gather_same ? 1 : 0; }

std::string parameters(const Statement& s) {
  std::vector<std::string> list;
  if (s.op == OpCode::all_to_all) {
    list.push_back(fmt::format("split_dim={}", s.split_dim));
    list.push_back(fmt::format("concat_dim={}", s.dim));
  } else if (uses_dim(s.op)) {
    list.push_back(fmt::format("dim={}", s.dim));
  }
  if (uses_root(s.op)) list.push_back(fmt::format("root={}", s.root));
  if (uses_reduction(s.op)) {
    list.push_back(s.reduction.op == ReduceOp::premul_sum ? fmt::format("premul_sum of {}", s.reduction.factor)
                                                          : std::string(name(s.reduction.op)));
  }
  if (!s.note.empty()) list.push_back(s.note);
  if (s.scale != 1) list.push_back(fmt::format("scale={}", s.scale));
  return fmt::format("({})", fmt::join(list, ", "));
}

// A rank that has no tensor could not normalize its dim: the other's tensor
// tells.
int64_t dim_from_front(const Statement& s, const Statement& other) {
  if (s.has_x || !other.has_x || s.dim >= 0) return s.dim;
  return s.dim + static_cast<int64_t>(other.x().shape.size());
}

std::string text_of(const detail::Forward& forward) {
  const std::string when = fmt::format("{} call{} ago", forward.calls_ago, forward.calls_ago == 1 ? "" : "s");
  return forward.place == 0 ? when : fmt::format("{}, tensor {} of its list", when, forward.place + 1);
}

bool of_other_forwards(const Statement& a, const Statement& b) {
  const auto mine = detail::Forward::in(a.flags), theirs = detail::Forward::in(b.flags);
  return mine.known() && theirs.known() && mine != theirs;
}

// The differences of b from a, which is rank `reference`'s; empty where they
// agree.
std::vector<std::string> differences(const Statement& a, const Statement& b, int reference) {
  std::vector<std::string> list;
  const auto differ = [&](std::string_view field, const auto& mine, const auto& theirs) {
    if (mine != theirs) list.push_back(fmt::format("{} is {}, rank {} has {}", field, mine, reference, theirs));
  };
  differ("the operation", name(b.op), name(a.op));
  if (a.op != b.op) return list;
  if (uses_dim(a.op))
    differ(a.op == OpCode::all_to_all ? "concat_dim" : "dim", dim_from_front(b, a), dim_from_front(a, b));
  if (a.op == OpCode::all_to_all) differ("split_dim", b.split_dim, a.split_dim);
  if (uses_root(a.op)) differ("root", b.root, a.root);
  if (uses_reduction(a.op)) {
    differ("the reduction", name(b.reduction.op), name(a.reduction.op));
    if (!same_bits(a.reduction.factor, b.reduction.factor)) {
      differ("the factor", b.reduction.factor, a.reduction.factor);
    }
  }
  if (of_other_forwards(a, b)) {
    differ("the call whose gradient it is", text_of(detail::Forward::in(b.flags)),
           text_of(detail::Forward::in(a.flags)));
  }
  if (a.note != b.note) list.push_back(fmt::format("that is not what rank {} says", reference));
  if (!same_bits(a.scale, b.scale)) differ("scale", b.scale, a.scale);
  if (!a.has_x || !b.has_x) return list;  // broadcast and scatter: only the root must have one
  differ("dtype", name(b.x().dtype), name(a.x().dtype));
  if (a.x().shape.size() != b.x().shape.size()) {
    differ("the number of dimensions", b.x().shape.size(), a.x().shape.size());
    return list;
  }
  for (size_t d = 0; d < a.x().shape.size(); ++d) {
    if (a.x().shape[d] == b.x().shape[d] || may_differ(a, d)) continue;
    differ(fmt::format("dim {}", d - added_dims(a.op)), b.x().shape[d], a.x().shape[d]);
  }
  return list;
}

// The ranks that agree with each other; the largest such group is the
// reference, at equal size the one of the lowest rank.
struct Party {
  std::vector<int> ranks;
  std::vector<std::string> notes;  // its differences from the reference
};

std::string shape_text(const std::vector<int>& ranks, const std::vector<Record>& records, size_t op) {
  const auto holder = std::find_if(ranks.begin(), ranks.end(),
                                   [&](int r) { return records[static_cast<size_t>(r)].statements[op].has_x; });
  if (holder == ranks.end()) return "no tensor";
  const Statement& first = records[static_cast<size_t>(*holder)].statements[op];
  std::vector<std::string> extents;
  for (size_t d = added_dims(first.op); d < first.x().shape.size(); ++d) {
    const bool same = std::all_of(ranks.begin(), ranks.end(), [&](int r) {
      const Statement& s = records[static_cast<size_t>(r)].statements[op];
      return !s.has_x || s.x().shape[d] == first.x().shape[d];
    });
    extents.push_back(same ? std::to_string(first.x().shape[d]) : "*");
  }
  return fmt::format("{} [{}]", first.x().dtype, fmt::join(extents, ", "));
}

// A line for each party, in columns.
std::string party_lines(const std::vector<Party>& parties, const std::vector<Record>& records, size_t op) {
  std::vector<std::string> who, what;
  size_t who_width = 0, what_width = 0;
  for (const Party& party : parties) {
    const Statement& s = records[static_cast<size_t>(party.ranks[0])].statements[op];
    who.push_back(fmt::format("{} {}:", party.ranks.size() == 1 ? "rank " : "ranks", rank_list(party.ranks)));
    what.push_back(fmt::format("{}{}", name(s.op), parameters(s)));
    if (s.has_x || uses_root(s.op)) what.back() += " " + shape_text(party.ranks, records, op);
    who_width = std::max(who_width, who.back().size());
    what_width = std::max(what_width, what.back().size());
  }
  std::string text;
  for (size_t i = 0; i < parties.size(); ++i) {
    const auto& notes = parties[i].notes;
    text += fmt::format("  {:<{}} {:<{}}   {}{}{}\n", who[i], who_width, what[i], what_width,
                        records[static_cast<size_t>(parties[i].ranks[0])].site(), notes.empty() ? "" : "   ",
                        fmt::join(notes, "; "));
  }
  return text;
}

std::vector<Party> parties(const std::vector<Record>& records, size_t op) {
  const auto said_by = [&](int r) -> const Statement& { return records[static_cast<size_t>(r)].statements[op]; };
  std::vector<int> order(records.size());
  std::iota(order.begin(), order.end(), 0);
  // The root first: who has no tensor belongs to it, and not to one whose
  // tensor does not fit the root's.
  const auto root = static_cast<uint64_t>(said_by(0).root);
  if (uses_root(said_by(0).op) && root < order.size()) {
    const auto at = order.begin() + static_cast<ptrdiff_t>(root);
    std::rotate(order.begin(), at, at + 1);
  }
  std::vector<Party> list;
  for (const int r : order) {
    const Statement& mine = said_by(r);
    auto fits = std::find_if(list.begin(), list.end(), [&](const Party& party) {
      return std::all_of(party.ranks.begin(), party.ranks.end(),
                         [&](int other) { return differences(said_by(other), mine, other).empty(); });
    });
    if (fits == list.end()) list.push_back({{r}, {}});
    else fits->ranks.push_back(r);
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Party& a, const Party& b) { return a.ranks.size() > b.ranks.size(); });
  for (Party& party : list) std::sort(party.ranks.begin(), party.ranks.end());
  // Of two parties some two ranks differ, though not all do: a rank without a
  // tensor fits many.
  for (size_t i = 1; i < list.size(); ++i) {
    for (const int reference : list[0].ranks) {
      for (const int r : list[i].ranks) {
        if (list[i].notes.empty()) list[i].notes = differences(said_by(reference), said_by(r), reference);
      }
    }
  }
  return list;
}

std::string remedy(const Statement& s, bool other_forwards) {
  if (other_forwards) {
    return "backward() must come to the same calls, in the same order, on every rank: have every result in every "
           "rank's loss.";
  }
  if (!s.note.empty()) return "Every rank must give the same layouts, meshes and shape.";
  std::vector<std::string> free;
  if (s.has_x) {
    for (size_t d = 0; d < s.x().shape.size(); ++d) {
      if (may_differ(s, d)) free.push_back(std::to_string(d));
    }
  }
  if (free.empty()) return "Every rank must make the same call, with the same dtype and shape.";
  return fmt::format("Only dim {} may differ.", fmt::join(free, " and dim "));
}

void check_batch_lengths(const CallName& call, const std::vector<Record>& records) {
  std::map<size_t, std::vector<int>> by_length;
  for (size_t r = 0; r < records.size(); ++r) by_length[records[r].statements.size()].push_back(static_cast<int>(r));
  if (by_length.size() == 1) return;
  std::string text = fmt::format("{}: the ranks do not agree\n", to_string(call));
  for (const auto& [length, ranks] : by_length) {
    text += fmt::format("  {} {}: {} operations   {}\n", ranks.size() == 1 ? "rank " : "ranks", rank_list(ranks),
                        length, records[static_cast<size_t>(ranks[0])].site());
  }
  throw_error(ErrorKind::mismatch, text + "Give lists of one length on every rank. Nothing was moved.");
}

void check_problems(const CallName& call, const std::vector<Record>& records) {
  std::map<std::string, std::vector<int>> by_text;
  ErrorKind kind = ErrorKind::none;
  for (size_t r = 0; r < records.size(); ++r) {
    if (records[r].problem == ErrorKind::none) continue;
    if (kind == ErrorKind::none) kind = records[r].problem;
    by_text[fmt::format("{}   {}", records[r].problem_text, records[r].site())].push_back(static_cast<int>(r));
  }
  if (kind == ErrorKind::none) return;
  std::string text = fmt::format("{}:\n", to_string(call));
  for (const auto& [problem, ranks] : by_text) {
    text += fmt::format("  {} {}: {}\n", ranks.size() == 1 ? "rank " : "ranks", rank_list(ranks), problem);
  }
  throw_error(kind, text + "Nothing was moved.");
}

}  // namespace

std::string to_string(const CallName& call) {
  return fmt::format("call #{} of communicator \"{}\" ({} rank{})", call.number, call.comm, call.ranks,
                     call.ranks == 1 ? "" : "s");
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    if (!text.empty()) text += ',';
    if (j - i < 2) j = i;  // "0,1" reads better than "0-1"
    text += j == i ? std::to_string(ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[j]);
    i = j + 1;
  }
  return text;
}

bool may_differ(const Statement& s, size_t dim) {
  if (s.op == OpCode::redistribute) return true;  // each has its own part, which was checked where it is
  const bool ragged = s.op == OpCode::all_gather || s.op == OpCode::all_gather_parts || s.op == OpCode::gather ||
                      s.op == OpCode::gather_sizes || s.op == OpCode::all_to_all || s.op == OpCode::all_to_all_v;
  return ragged && dim == static_cast<size_t>(s.dim);
}

void check_agreement(const CallName& call, const std::vector<Record>& records) {
  check_problems(call, records);
  check_batch_lengths(call, records);
  for (size_t op = 0; op < records[0].statements.size(); ++op) {
    // Rank 0 first, the common case; then each against the first that has a
    // tensor, and the first that knows its forward, since rank 0 may have none.
    const Statement* with_tensor = &records[0].statements[op];
    const Statement* with_forward = with_tensor;
    bool other_forwards = false;
    bool same = true;
    for (size_t r = 1; r < records.size() && same; ++r) {
      const Statement& mine = records[r].statements[op];
      other_forwards = of_other_forwards(*with_forward, mine);
      same = !other_forwards && differences(records[0].statements[op], mine, 0).empty() &&
             differences(*with_tensor, mine, 0).empty();
      if (!with_tensor->has_x) with_tensor = &mine;
      if (!detail::Forward::in(with_forward->flags).known()) with_forward = &mine;
    }
    if (same) continue;
    std::string text = fmt::format("{}: the ranks do not agree\n", to_string(call));
    if (records[0].statements.size() > 1)
      text += fmt::format("  operation {} of {}:\n", op + 1, records[0].statements.size());
    const auto groups = parties(records, op);
    text += party_lines(groups, records, op);
    const Statement& reference = records[static_cast<size_t>(groups[0].ranks[0])].statements[op];
    throw_error(ErrorKind::mismatch, text + remedy(reference, other_forwards) + " Nothing was moved.");
  }
}

}  // namespace tessera
