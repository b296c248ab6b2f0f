// Counts the calls of MPI's that a call of tessera's makes, through the profiling interface (counting.hpp). Every rank is a
// host, and TESSERA_VOTE_FROM 2 where votes are counted.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <tessera/mpi.hpp>
#include <tessera/tessera.hpp>

#include "counting.hpp"

using namespace tessera;

namespace {

int rounds_of(int ranks) {
  int rounds = 0;
  for (int reach = 1; reach < ranks; reach *= 2) ++rounds;
  return rounds;
}

void gathers(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank();
  Sizes sizes;
  for (int64_t r = 0; r < n; ++r) sizes.push_back(r + 1);
  const Tensor x = Tensor::full(DType::f32, {me + 1, 1000}, me);
  for (const int64_t dim : {0, 1}) {  // along the inner one nothing lies in one piece
    const Tensor mine = dim == 0 ? x : x.transpose(0, 1);
    comm.barrier();
    calls = {};
    const auto [all, got] = all_gather(comm, mine, {.dim = dim, .sizes = sizes, .sizes_trusted = true});
    require_one_gather("that a trusted gather is one call of MPI's");
    require(got == sizes, "the sizes");
    for (int64_t r = 0, row = 0; r < n; row += r + 1, ++r) {
      require((dim == 0 ? all.at<float>(row, 999) : all.at<float>(999, row)) == static_cast<float>(r), "a row");
    }
  }
  comm.barrier();
  calls = {};
  all_gather(comm, x, {.dim = 0, .sizes = sizes});
  require(calls.gathers == 0 && calls.sends >= 2 * (n - 1), "that a gather is agreed on");
}

// Much along an inner dimension: to put in place what has come while more comes saves more than agreeing takes.
void gathers_much(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank(), columns = 1000;
  const Sizes sizes(static_cast<size_t>(n), columns);
  for (const int64_t rows : {int64_t{1}, int64_t{200}}) {
    const Tensor x = Tensor::generate(DType::i32, {rows, columns}, [&](auto at) { return 1000 * at[0] + at[1] + me; });
    comm.barrier();
    calls = {};
    const Tensor all = all_gather(comm, x, {.dim = 1, .sizes = sizes, .sizes_trusted = true}).tensor;
    if (rows == 1) require_one_gather("that one row, which lies in one piece, comes in one call of MPI's");
    else require(calls.gathers == 0 && calls.sends >= 2 * (n - 1), "that much along an inner dimension is agreed on");
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < n * columns; ++c) {
        require(all.at<int32_t>(row, c) == 1000 * row + c % columns + c / columns, "an element of much");
      }
    }
  }
}

// From one line: what was worked out for one call must not serve another that is not like it.
void repeats(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank(), columns = 50;
  for (int64_t i = 0; i < 24; ++i) {
    const int64_t rows = 2 + i / 6 % 2;
    const Tensor wide = Tensor::full(DType::i64, {n * rows, 2 * columns}, -1);
    Tensor out, x = Tensor::full(DType::i64, {rows, columns}, 100 * i + me);
    if (i % 3 == 1) out = Tensor::full(DType::i64, {n * rows, columns}, -1);
    if (i % 3 == 2) out = wide.narrow(1, 0, columns);  // not in one piece
    if (i % 6 == 4) {                                  // in place
      out.narrow(0, me * rows, rows).fill([&](auto) { return 100 * i + me; });
      x = out.narrow(0, me * rows, rows);
    }
    comm.barrier();
    calls = {};
    const Sizes sizes(static_cast<size_t>(n), rows);
    const Tensor all = all_gather(comm, x, {.sizes = sizes, .out = out, .sizes_trusted = true}).tensor;
    require_one_gather("that a repeated trusted gather is one call of MPI's");
    for (int64_t row = 0; row < n * rows; ++row) {
      require(all.at<int64_t>(row, columns - 1) == 100 * i + row / rows, "a row of a repeated gather");
    }
    require(wide.at<int64_t>(0, columns) == -1, "what lies beside it");
  }
}

// What a call of fn adds to the statistics.
template <class Fn>
Stats counted(Comm& comm, Fn&& fn) {
  comm.reset_stats();
  fn();
  return comm.stats();
}

// A call like an earlier one goes a shorter way: it must count the same, and be recorded the same.
void again(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank(), bytes = 3 * 5 * 8;
  const Sizes sizes(static_cast<size_t>(n), 3);
  const Tensor out = Tensor::full(DType::i64, {3 * n, 5}, -1), whole = Tensor::full(DType::i64, {3 * n, 20}, -1);
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t columns = i < 10 ? 5 : i < 20 ? 1 + i % 2 : 1 + i % 15;  // the same, two in turns, more than are kept
    const Tensor x = Tensor::full(DType::i64, {3, columns}, 100 * i + me);
    const Tensor to = columns == 5 ? out : whole.narrow(1, 0, columns).clone();
    Gathered got;
    const int64_t before = comm.recent_calls().back().number;
    const Stats stats = counted(comm, [&] {
      calls = {};
      got = all_gather(comm, x, {.sizes = sizes, .out = to, .sizes_trusted = true});
      require_one_gather("that it is one call of MPI's");
    });
    require(got.tensor.data() == to.data() && got.sizes == sizes, "what it returns");
    for (int64_t r = 0; r < n; ++r) require(to.at<int64_t>(3 * r + 2, columns - 1) == 100 * i + r, "a row again");
    const int64_t part = bytes / 5 * columns;
    require(stats.calls == 1 && stats.exchanges == 0 && stats.moves == 1 && stats.messages == n - 1, "its counts");
    require(stats.bytes_received == part * (n - 1) && stats.bytes_sent == part * (n - 1), "its bytes");
    require(stats.copies == n && stats.bytes_copied == part * n && stats.allocations == 0, "its copies");
    require(stats.bytes_between_hosts == part * (n - 1) && stats.bytes_within_host == 0, "its bytes between hosts");
    const CallRecord last = comm.recent_calls().back();
    require(last.number == before + 1 && last.operation == "all_gather" && last.finished, "its record");
    require(last.bytes_received == part * (n - 1) && last.error.empty(), "what its record says");
  }
  const Tensor x = Tensor::full(DType::i64, {3, 5}, me);
  const Stats stats = counted(comm, [&] { all_gather(comm, x, {.sizes = sizes, .sizes_trusted = true}); });
  require(stats.allocations == 1 && stats.bytes_allocated == n * bytes, "what it allocates");
}

// Behind one that is still under way, too, and in place.
void again_in_order(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank();
  const Sizes sizes(static_cast<size_t>(n), 2);
  const Tensor first = Tensor::full(DType::i64, {2 * n, 9}, -1), second = first.clone();
  for (int64_t i = 0; i < 20; ++i) {
    const Tensor x = Tensor::full(DType::i64, {2, 9}, 10 * i + me);
    auto work = start(comm, AllGather{.x = x, .sizes = sizes, .out = first, .sizes_trusted = true});
    all_gather(comm, x, {.sizes = sizes, .out = second, .sizes_trusted = true});
    require(work.done(), "that the earlier one is over");
    work.get();
    const Tensor own = second.narrow(0, 2 * me, 2);
    own.fill([&](auto) { return 10 * i + me + 1; });
    all_gather(comm, own, {.sizes = sizes, .out = second, .sizes_trusted = true});
    for (int64_t r = 0; r < n; ++r) {
      require(first.at<int64_t>(2 * r, 8) == 10 * i + r && second.at<int64_t>(2 * r + 1, 0) == 10 * i + r + 1,
              "a row of two in order");
    }
  }
}

// From one line, what lies in one piece and what does not in turns: where elements lie is kept from one call to the next.
void other_strides(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank(), rows = 3, columns = 3000;
  for (int64_t i = 0; i < 18; ++i) {
    const Tensor wide = Tensor::full(DType::i32, {n * rows, columns + 7}, -1);
    const Tensor turned = Tensor::full(DType::i32, {columns, n * rows}, -1);
    Tensor x = Tensor::empty(DType::i32, {rows, columns});
    if (i >= 9 && i % 2 == 1) x = Tensor::empty(DType::i32, {columns, rows}).transpose(0, 1);
    x.fill([&](auto at) { return 1'000'000 * i + 100'000 * me + 10 * at[1] + at[0]; });
    Tensor out = Tensor::full(DType::i32, {n * rows, columns}, -1);
    if (i % 3 == 1) out = wide.narrow(1, 4, columns);
    if (i % 3 == 2) out = turned.transpose(0, 1);
    all_gather(comm, x, {.out = out});
    for (int64_t row = 0; row < n * rows; ++row) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t expected = 1'000'000 * i + 100'000 * (row / rows) + 10 * c + row % rows;
        require(out.at<int32_t>(row, c) == expected, "an element of a gather with other strides");
      }
      require(wide.at<int32_t>(row, 3) == -1 && wide.at<int32_t>(row, columns + 4) == -1, "what lies beside an output");
    }
  }
}

template <class E, class Fn>
std::string thrown(Fn&& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "nothing";
}

// What is wrong with an output or the sizes is found, though calls before were right; and what has ended stays so.
void again_wrong(Comm& comm) {
  const int64_t n = comm.size();
  const Sizes sizes(static_cast<size_t>(n), 2), other(static_cast<size_t>(n), 3);
  const Tensor x = Tensor::full(DType::f32, {2, 4}, 1), out = Tensor::full(DType::f32, {2 * n, 4}, 0);
  const std::vector<float> constant(static_cast<size_t>(2 * n * 4));
  const std::vector<AllGather> wrong = {
      {.sizes = sizes, .out = Tensor::full(DType::f32, {2 * n + 1, 4}, 0), .sizes_trusted = true},
      {.sizes = sizes, .out = Tensor::full(DType::i32, {2 * n, 4}, 0), .sizes_trusted = true},
      {.sizes = sizes, .out = Tensor::view(std::span(constant), {2 * n, 4}), .sizes_trusted = true},
      {.sizes = other, .out = out, .sizes_trusted = true}};
  for (const AllGather& op : wrong) {
    Comm part = comm.split(0);
    const auto right = [&] { all_gather(part, x, {.sizes = sizes, .out = out, .sizes_trusted = true}); };
    for (int i = 0; i < 3; ++i) right();
    comm.barrier();  // nobody hears of the end of `part` before it gets there
    const std::string text = thrown<ShapeError>([&] { all_gather(part, x, op); });
    require(text.find(" failed: ") != std::string::npos, text.c_str());
    const std::string dead = thrown<AbortedError>(right);
    require(dead.find("is dead") != std::string::npos, dead.c_str());
  }
}

void votes(Comm& comm) {
  for (int i = 0; i < 3; ++i) {
    calls = {};
    comm.barrier();
    // The first one is said in full, in as many rounds again.
    const int rounds = rounds_of(comm.size());
    require(calls.sends == (i == 0 ? 2 * rounds : rounds), "the number of messages of a barrier");
  }
}

// How long a message may be that MPI takes at once; 0: not known.
int64_t taken_at_once(const Comm& comm) {
  const std::string text = comm.transport();
  const size_t end = text.find(" bytes are taken at once");
  if (end == std::string::npos) return 0;
  return std::atoll(text.c_str() + text.rfind(' ', end - 1) + 1);
}

// From 8 ranks on all is said in as many rounds as the logarithm of their number, also what is long.
void rounds(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank();
  const int64_t most = taken_at_once(comm) > 15360 ? 15360 / 4 : 6144 / 4;  // columns that travel with what is said
  for (int i = 0; i < 3; ++i) {
    calls = {};
    comm.barrier();
    require(calls.sends == rounds_of(comm.size()), "the number of messages of a barrier in rounds");
  }
  int64_t before = 0;
  for (const int64_t columns : {int64_t{0}, int64_t{1}, int64_t{100}, most, most, most - 9, int64_t{7}, most, most}) {
    calls = {};
    const Tensor all = all_gather(comm, Tensor::full(DType::f32, {1, columns}, me)).tensor;
    // What is longer than the last time may be more than one message holds.
    const int64_t messages = rounds_of(comm.size()) * (columns > before ? 2 : 1);
    require(calls.sends <= messages, "the number of messages of a short gather");
    before = columns;
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < columns; ++c) require(all.at<float>(r, c) == static_cast<float>(r), "a short row");
    }
  }
}

// In how many messages so many bytes go, where no more come back.
int64_t parts_of(const Comm& comm, int64_t bytes) {
  const int64_t eager = taken_at_once(comm);
  return bytes > eager && bytes <= 2 * eager ? 2 : 1;
}
// The same of what is said, with so many bytes of elements.
int64_t parts_of_said(const Comm& comm, int64_t bytes) {
  constexpr int64_t kRest = 300;
  const int64_t eager = taken_at_once(comm);
  return bytes + kRest > eager && bytes + kRest <= 2 * eager ? 2 : 1;
}

// What is somewhat longer than MPI takes at once goes in parts, wherever it lies at either end.
void in_parts(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank(), last = n - 1, eager = taken_at_once(comm);
  if (eager == 0) return;
  for (const int64_t bytes : {eager, eager + 1, 2 * eager - 5, 2 * eager, 2 * eager + 1}) {
    if (bytes <= 6144) continue;  // that travels with what is said
    const Tensor wide = Tensor::full(DType::u8, {n, bytes + 3}, 0), turned = Tensor::full(DType::u8, {bytes, n}, 0);
    for (const Tensor& out : {Tensor(), wide.narrow(1, 2, bytes), turned.transpose(0, 1)}) {
      const Tensor mine = Tensor::generate(DType::u8, {1, bytes}, [&](auto at) { return (at[1] * 7 + me) % 251; });
      comm.barrier();
      calls = {};
      const Tensor all = all_gather(comm, mine, {.out = out}).tensor;
      require(calls.sends == last * (1 + parts_of(comm, bytes)), "the number of messages of a gather in parts");
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t c = 0; c < bytes; ++c) require(all.at<uint8_t>(r, c) == (c * 7 + r) % 251, "what came in parts");
      }
    }
  }
  for (const int64_t rows : {eager / 12, eager / 12 + 1, eager / 6, eager / 6 + 1}) {  // of 12 bytes
    const Tensor x = Tensor::generate(DType::i32, {n * rows, 3}, [&](auto at) { return at[0] * 10 + at[1] + me; });
    const Tensor sum = reduce_scatter(comm, x, 0);
    const Tensor columns = all_gather(comm, x.narrow(0, 0, rows).transpose(0, 1), {.dim = 1}).tensor;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < 3; ++c) {
        require(sum.at<int32_t>(row, c) == n * ((me * rows + row) * 10 + c) + n * last / 2, "a sum in parts");
        for (int64_t r = 0; r < n; ++r) {
          require(columns.at<int32_t>(c, r * rows + row) == row * 10 + c + r, "a column in parts");
        }
      }
    }
  }
}

// The last rank has more than travels with what is said. So the others send theirs by itself too, where that is faster; but
// not at first, when they do not know, nor when that one has little again.
void ragged(Comm& comm, int64_t few) {
#ifdef OPEN_MPI
  const bool rides = few * 4 <= 3072;
#else
  const bool rides = true;
#endif
  const int64_t n = comm.size(), me = comm.rank(), last = n - 1;
  const auto length_of = [&](int64_t r, int call) { return r == last && call < 4 ? 20'000 : few; };
  for (int call = 0; call < 8; ++call) {
    const Tensor mine = Tensor::full(DType::i32, {length_of(me, call)}, 10 * call + me);
    comm.barrier();
    calls = {};
    const Tensor all = all_gather(comm, mine).tensor;
    const bool inlined = me != last ? rides || call == 0 || call > 4 : call >= 4;
    const int64_t bytes = mine.bytes(), parts = parts_of(comm, bytes);
    int64_t expected = last * parts_of_said(comm, bytes);
    const bool comes_more = me != last && call < 4;  // from the last one: then what goes there is not cut
    if (!inlined) expected = last + last * parts - (comes_more ? parts - 1 : 0);
    require(calls.sends == expected, "the number of messages of a ragged gather");
    for (int64_t r = 0, at = 0; r < n; at += length_of(r, call), ++r) {
      require(all.at<int32_t>(at) == 10 * call + r && all.at<int32_t>(at + length_of(r, call) - 1) == 10 * call + r,
              "a part of a ragged gather");
    }
  }
}

// Rank 0 has more than travels with what is said, and the others next to nothing: from the second call on it goes so
// nevertheless, as nothing else has to be sent then. `most`: so many bytes.
void alone(Comm& comm, int64_t most) {
  const int64_t last = comm.size() - 1;
  for (const int64_t bytes : {int64_t{6145}, most, most + 1}) {
    for (int call = 0; call < 4; ++call) {
      const Tensor mine = Tensor::full(DType::u8, {comm.rank() == 0 ? bytes : 7}, call + comm.rank());
      comm.barrier();
      calls = {};
      const Tensor all = all_gather(comm, mine).tensor;
      const bool by_itself = comm.rank() == 0 && (bytes > most || call == 0);
      const int64_t expected = by_itself ? 1 + parts_of(comm, bytes) : parts_of_said(comm, mine.bytes());
      require(calls.sends == expected * last, "the number of messages of what one has alone");
      require(all.at<uint8_t>(bytes - 1) == call && all.at<uint8_t>(bytes + 7 * last - 1) == call + last,
              "what one has alone");
    }
  }
}

// The last rank agrees to a split and then stands still: the others do not wait for longer than the timeout, and name it.
void stands_still(Comm& comm, MPI_Comm others, int part) {
  const int last = comm.size() - 1;
  const Tensor pids = all_gather(comm, Tensor::full(DType::i64, {1}, static_cast<int64_t>(getpid()))).tensor;
  comm.set_timeout(std::chrono::seconds(2));
  stops_in_split = comm.rank() == last;
  std::string text;
  try {
    comm.split(part).barrier();
    require(false, "that a split ends at the timeout");
  } catch (const Error& error) {
    text = error.what();
  }
  stops_in_split = false;
  if (comm.rank() != last) MPI_Barrier(others);  // they have said it, too
  if (comm.rank() == 0) kill(static_cast<pid_t>(pids.at<int64_t>(last)), SIGCONT);
  MPI_Barrier(MPI_COMM_WORLD);
  // No thread may be in MPI at its end.
  while (in_split > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::string who = "rank " + std::to_string(last) + " did not";
  require(comm.rank() == last || text.find(who) != std::string::npos, text.c_str());
}

// `whole`: a split into one part, which is a duplicate.
void splits(Comm& comm, bool whole) {
  const int last = comm.size() - 1, part = whole ? 0 : comm.rank() % 2, before = duplicates;
  comm.split(part).barrier();
  require(duplicates == before + (whole ? 1 : 0), "that a split into one part is a duplicate");
  comm.split(0, -comm.rank()).barrier();
  require(duplicates == before + (whole ? 1 : 0), "that another order is no duplicate");
  MPI_Comm others = MPI_COMM_NULL;
  PMPI_Comm_split(MPI_COMM_WORLD, comm.rank() == last ? MPI_UNDEFINED : 0, 0, &others);
  stands_still(comm, others, part);
}

// Where messages are dear: as many to agree as there are rounds, and as many again.
void sums(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank();
  const Tensor x = Tensor::full(DType::f32, {5000}, 1.0f + static_cast<float>(me));
  for (int i = 0; i < 3; ++i) {
    calls = {};
    const Tensor sum = all_reduce(comm, x);
    const int64_t rounds = rounds_of(comm.size()), moved = rounds * parts_of(comm, x.bytes());
    require(calls.sends == (i == 0 ? 2 * rounds : rounds) + moved, "the number of messages of a sum");
    require(sum.at<float>(4999) == static_cast<float>(n * (n + 1) / 2), "a sum");
  }
}

// All ranks on the first core that this one may use. On one machine they may all use it.
void share_a_core() {
  cpu_set_t cores, one;
  CPU_ZERO(&one);
  require(sched_getaffinity(0, sizeof(cores), &cores) == 0, "the list of cores");
  size_t first = 0;
  while (!CPU_ISSET(first, &cores)) ++first;
  MPI_Bcast(&first, sizeof(first), MPI_BYTE, 0, MPI_COMM_WORLD);
  CPU_SET(first, &one);
  require(sched_setaffinity(0, sizeof(one), &one) == 0, "that all share a core");
}

void trusted(Comm& comm) {
  gathers(comm);
  gathers_much(comm);
  repeats(comm);
  again(comm);
  again_in_order(comm);
}

// In a trusted gather too, which all make alike.
void gather_that_fails(Comm& comm) {
  const Sizes sizes(static_cast<size_t>(comm.size()), 2);
  const Tensor x = Tensor::full(DType::f32, {2}, 1), out = Tensor::full(DType::f32, {2 * comm.size()}, 0);
  for (const int before : {0, 3}) {
    Comm part = comm.split(0);
    const auto gather = [&] { all_gather(part, x, {.sizes = sizes, .out = out, .sizes_trusted = true}); };
    for (int i = 0; i < before; ++i) gather();
    comm.barrier();  // nobody hears of the end of `part` before it gets there
    gather_fails = true;
    const std::string text = thrown<Error>(gather);
    gather_fails = false;
    const std::string end = "rank " + std::to_string(comm.rank()) + " failed: MPI_";
    const bool named = text.find("llgatherv failed: ") != std::string::npos;  // Allgatherv, Iallgatherv
    const std::string begin = "call #" + std::to_string(before + 1) + " of communicator ";
    require(text.starts_with(begin) && text.find(end) != std::string::npos && named, text.c_str());
    const CallRecord last = part.recent_calls().back();
    require(last.finished && last.error == text && part.stats().moves == before, "the record of one that failed");
    require(thrown<AbortedError>(gather).find("is dead") != std::string::npos, "that the communicator is dead");
  }
}

// An error of MPI's: the rank that has it and all others get the same text, with the call and the rank.
void fails(Comm& comm) {
  comm.barrier();
  if (comm.rank() == 1) sends_to_failure = 0;
  std::string text;
  try {
    all_gather(comm, Tensor::full(DType::f32, {5000}, 1));
  } catch (const Error& error) {
    text = error.what();
  }
  const std::string start = "call #2 of communicator \"world\" (4 ranks): rank 1 failed: MPI_Isend failed: ";
  if (text.find(start) == std::string::npos) std::printf("%s\n", text.c_str());
  require(text.find(start) != std::string::npos, "the text of an error of MPI's");
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "crowded") {
    share_a_core();
    polls = Polls::always;
  } else if (what == "apart") {
    polls = std::thread::hardware_concurrency() < 2 ? Polls::maybe : Polls::never;
  }
  {
    Comm comm = from_mpi(MPI_COMM_WORLD);
    if (what == "crowded" || what == "apart") {
      trusted(comm);
    } else if (what == "fails") {
      fails(comm);
    } else if (what == "ragged") {
      ragged(comm, 1000);
      ragged(comm, 700);
      alone(comm, 15360);
      in_parts(comm);
    } else if (what == "sums") {
      sums(comm);
    } else if (what == "rounds") {
      rounds(comm);
    } else if (what == "splits" || what == "splits_whole") {
      splits(comm, what == "splits_whole");
    } else {
      votes(comm);
      trusted(comm);
      other_strides(comm);
      again_wrong(comm);
      gather_that_fails(comm);
    }
  }
  MPI_Finalize();
  std::printf("rank %d of %d is right\n", rank, size);
  return 0;
}
