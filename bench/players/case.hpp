// What the players of a benchmark are asked to do, as lines of text, and the values that tell right results from wrong.
//
// Shared by the coordinator (`tessera bench`) and every player that is written in C++. It knows nothing of tessera and
// nothing of MPI, so that each player has only its own library in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::bench {

enum class Op { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, redistribute };
inline constexpr const char* kOpNames[] = {"all_gather", "reduce_scatter", "all_reduce",
                                           "all_to_all", "broadcast",      "redistribute"};

inline const char* name_of(Op op) { return kOpNames[static_cast<size_t>(op)]; }

inline Op op_named(const std::string& name) {
  for (size_t i = 0; i < std::size(kOpNames); ++i) {
    if (name == kOpNames[i]) return static_cast<Op>(i);
  }
  throw std::invalid_argument("unknown operation " + name);
}

// One line: a verb and key=value words.
struct Line {
  std::string verb;
  std::map<std::string, std::string> words;

  const std::string& word(const std::string& key) const {
    const auto found = words.find(key);
    if (found == words.end()) throw std::invalid_argument("no " + key + " in a line that says " + verb);
    return found->second;
  }
  int64_t number(const std::string& key) const { return std::stoll(word(key)); }
};

inline Line parse_line(const std::string& text) {
  std::istringstream in(text);
  Line line;
  in >> line.verb;
  for (std::string word; in >> word;) {
    const size_t equals = word.find('=');
    line.words[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
  }
  return line;
}

template <class T>
std::string join(const std::vector<T>& list) {
  std::string text;
  for (const T& item : list) text += (text.empty() ? "" : ",") + std::to_string(item);
  return text;
}

inline std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> list;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) list.push_back(std::stoll(item));
  return list;
}

// A matrix of float32 that is cut along `dim`: all_gather joins the cuts, reduce_scatter makes them, all_reduce and
// broadcast have the whole on both sides. all_to_all has rank r's own rows there, and sends counts[r * ranks + q] of
// them to rank q. redistribute turns cuts of the rows into cuts of the columns, both as torch.chunk makes them.
struct Case {
  Op op = Op::all_gather;
  int64_t dim = 0;
  int64_t across = 0;                 // the extent of the other dimension
  std::vector<int64_t> extents = {};  // along dim, by rank
  std::vector<int64_t> counts = {};   // all_to_all only
  int64_t sets = 1;                   // of buffers, which the calls take in turn
  std::string memory = {};            // of tessera's input and output; the others do not look at it
  std::string output = {};
  bool rewrite = false;  // every rank writes to its input before each call, as part of it
  bool read = false;     // and reads its output after it

  int ranks() const { return static_cast<int>(extents.size()); }
  int64_t extent(int rank) const { return extents[static_cast<size_t>(rank)]; }
  int64_t offset(int rank) const { return std::accumulate(extents.begin(), extents.begin() + rank, int64_t{0}); }
  int64_t total() const { return offset(ranks()); }
  int64_t count(int from, int to) const { return counts[static_cast<size_t>(from * ranks() + to)]; }
  bool reduces() const { return op == Op::reduce_scatter || op == Op::all_reduce; }
};

inline std::string to_line(const Case& c) {
  return std::string("case op=") + name_of(c.op) + " dim=" + std::to_string(c.dim) +
         " across=" + std::to_string(c.across) + " extents=" + join(c.extents) + " counts=" + join(c.counts) +
         " sets=" + std::to_string(c.sets) + " memory=" + c.memory + " output=" + c.output +
         " rewrite=" + (c.rewrite ? "1" : "0") + " read=" + (c.read ? "1" : "0");
}

inline Case to_case(const Line& line) {
  return {.op = op_named(line.word("op")),
          .dim = line.number("dim"),
          .across = line.number("across"),
          .extents = numbers(line.word("extents")),
          .counts = numbers(line.word("counts")),
          .sets = line.number("sets"),
          .memory = line.word("memory"),
          .output = line.word("output"),
          .rewrite = line.number("rewrite") != 0,
          .read = line.number("read") != 0};
}

// A box of the global matrix, stored row by row.
struct Box {
  int64_t row = 0, column = 0, rows = 0, columns = 0;
  int64_t elements() const { return rows * columns; }
};

inline Box whole_of(const Case& c) {
  return c.dim == 0 ? Box{0, 0, c.total(), c.across} : Box{0, 0, c.across, c.total()};
}
inline Box cut_of(const Case& c, int rank) {
  return c.dim == 0 ? Box{c.offset(rank), 0, c.extent(rank), c.across}
                    : Box{0, c.offset(rank), c.across, c.extent(rank)};
}

// Of `extent` what torch.chunk gives a rank: where it begins, and how much.
inline std::pair<int64_t, int64_t> chunk_of(int64_t extent, int ranks, int rank) {
  const int64_t chunk = (extent + ranks - 1) / ranks;
  const int64_t begin = std::min(extent, chunk * rank);
  return {begin, std::min(extent, begin + chunk) - begin};
}
inline Box columns_of(const Case& c, int rank) {
  const auto [begin, count] = chunk_of(c.across, c.ranks(), rank);
  return {0, begin, c.total(), count};
}

inline Box input_of(const Case& c, int rank) {
  if (c.reduces()) return whole_of(c);
  if (c.op == Op::broadcast) return rank == 0 ? whole_of(c) : Box{};
  return cut_of(c, rank);
}

// The boxes that lie behind one another in a rank's output.
inline std::vector<Box> output_of(const Case& c, int rank) {
  if (c.op == Op::reduce_scatter) return {cut_of(c, rank)};
  if (c.op == Op::redistribute) return {columns_of(c, rank)};
  if (c.op != Op::all_to_all) return {whole_of(c)};
  std::vector<Box> boxes;
  for (int from = 0; from < c.ranks(); ++from) {
    int64_t row = c.offset(from);
    for (int to = 0; to < rank; ++to) row += c.count(from, to);
    boxes.push_back({row, 0, c.count(from, rank), c.across});
  }
  return boxes;
}

inline int64_t output_elements(const Case& c, int rank) {
  int64_t elements = 0;
  for (const Box& box : output_of(c, rank)) elements += box.elements();
  return elements;
}

// Whole numbers below 2¹⁶, so that float32 sums over 64 ranks are exact in any order. Rows and columns are scrambled, so
// that a piece which lands in another place, by a power of two too, is noticed.
inline float value_at(int64_t row, int64_t column, int64_t set) {
  const auto mixed = static_cast<uint32_t>(row) * 2654435761u + static_cast<uint32_t>(column) * 2246822507u +
                     static_cast<uint32_t>(set) * 668265263u;
  return static_cast<float>(mixed >> 16);
}

// Where ranks' terms are added up, rank r's are greater by r + 1.
inline void fill_input(const Case& c, int rank, int64_t set, float* data) {
  const Box box = input_of(c, rank);
  const float more = c.reduces() ? static_cast<float>(rank + 1) : 0.0f;
  for (int64_t i = 0; i < box.rows; ++i) {
    for (int64_t j = 0; j < box.columns; ++j) *data++ = value_at(box.row + i, box.column + j, set) + more;
  }
}

inline int64_t count_wrong(const Case& c, int rank, int64_t set, const float* data) {
  const auto n = static_cast<float>(c.ranks());
  const float times = c.reduces() ? n : 1.0f;
  const float more = c.reduces() ? n * (n + 1) / 2 : 0.0f;
  int64_t wrong = 0;
  for (const Box& box : output_of(c, rank)) {
    for (int64_t i = 0; i < box.rows; ++i) {
      for (int64_t j = 0; j < box.columns; ++j) {
        wrong += *data++ == value_at(box.row + i, box.column + j, set) * times + more ? 0 : 1;
      }
    }
  }
  return wrong;
}

}  // namespace tessera::bench
