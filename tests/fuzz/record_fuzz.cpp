// A peer's announcement, whatever it says: it is refused, or all that follows from it stays within bounds. What is read in
// the end is really read, so that AddressSanitizer sees a wild pointer.
//
// An input is the record of the last of two or three ranks; the others are sound and call something like it, so that much
// of what agrees by chance is worked out.
#include <cstring>

#include "collective/arrange.hpp"
#include "collective/moves.hpp"
#include "seeds.hpp"
#include "tensor/runs.hpp"
#include "transport/shm/source.hpp"

namespace tessera {
namespace {

constexpr size_t kArenaBytes = 1 << 16;

Tensor own_tensor(const Announced& announced) {
  if (volume(announced.shape) > (1 << 16)) throw Error("too large to try");
  return Tensor::zeros(announced.dtype, announced.shape);
}

// This rank's tensors: what it said, and outputs as the engine makes them.
std::vector<Tensor> own_tensors(const Statement& s, const Arranged& a, int ranks) {
  std::vector<Tensor> mine;
  mine.push_back(s.has_x ? own_tensor(s.x()) : Tensor());
  const int outputs = a.op == OpCode::all_gather_parts ? ranks : 1;
  for (int i = 0; i < outputs; ++i) {
    if (!has_output(a, 0)) {
      mine.emplace_back();
      continue;
    }
    mine.push_back(own_tensor({a.dtype, output_shape(a, 0, i), {}, {}, nullptr}));
  }
  return mine;
}

// Reads all that the move has of the last rank.
void read_all(const Move& move, const std::vector<Record>& records, std::span<const std::byte> arena) {
  for (const Term& term : move.terms) {
    if (term.rank + 1 != static_cast<int>(records.size())) continue;
    const Statement& s = records.back().statements[0];
    const Announced& there = term.tensor == 0 ? s.x() : s.outs()[static_cast<size_t>(term.tensor) - 1];
    const shm::Source source = shm::locate(arena, term.rank, there, term.box);
    if (source.kind == shm::Source::attached || source.view.elements() > 1 << 16) continue;
    std::vector<std::byte> here(static_cast<size_t>(source.view.elements() * size_bytes(there.dtype)));
    const View target{here.data(), there.dtype, source.view.shape, row_major(source.view.shape)};
    for_each_run(target, source.view, [](std::byte* to, const std::byte* from, int64_t bytes) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
      return true;
    });
  }
}

void try_record(std::span<const std::byte> bytes, int ranks, size_t sound, std::span<const std::byte> arena) {
  std::vector<Record> records(static_cast<size_t>(ranks));
  std::vector<std::vector<int64_t>> said(static_cast<size_t>(ranks));
  for (int r = 0; r + 1 < ranks; ++r) {
    encode(fuzz::sound_record(sound, r, ranks), said[static_cast<size_t>(r)]);
    decode(std::as_bytes(std::span(said[static_cast<size_t>(r)])), records[static_cast<size_t>(r)]);
  }
  changed_part(bytes);
  decode(bytes, records.back());
  const std::string name = "fuzz";
  check_sense(records);
  check_agreement({1, name, ranks}, records);
  for (size_t op = 0; op < records[0].statements.size(); ++op) {
    const Arranged a = arrange({1, name, ranks}, records, op, {}, 0);
    if (!a.moves || op > 0) continue;
    const std::vector<Tensor> mine = own_tensors(records[0].statements[0], a, ranks);
    Rounds rounds;
    append_moves(a, choose(a, 0, nullptr), nullptr, 0, {}, mine, rounds);
    for (const Move& move : rounds.all()) read_all(move, records, arena);
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  if (size <= 2) return 0;
  // Of malloc, so that each byte outside of it is a finding.
  static const auto arena = std::make_unique<std::byte[]>(kArenaBytes);
  // As it lies in a board's copy: at the beginning of a block, and no longer than it says.
  std::vector<std::byte> record(size - 2);
  std::memcpy(record.data(), data + 2, size - 2);
  try {
    try_record(record, 2 + data[0] % 2, data[1], {arena.get(), kArenaBytes});
  } catch (const Error&) {}
  return 0;
}
