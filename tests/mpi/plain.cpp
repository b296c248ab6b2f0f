// A program that never mentions MPI, for `tests/mpi/launch`: what it does is its first argument. Under whichever launcher
// started it, each rank checks what it gets and says so.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <locale>
#include <map>
#include <string>

#include "plain.hpp"

using namespace tessera;

namespace {

void gather(Comm& comm, int64_t columns) {
  const int64_t me = comm.rank(), rows = first_row(comm.size());
  Tensor mine = Tensor::empty(DType::i64, {me + 1, columns});
  mine.fill([&](auto index) { return value(first_row(me) + index[0], index[1]); });
  const Tensor all = all_gather(comm, mine, 0).tensor;
  require(all.shape() == Dims{rows, columns}, "the shape");
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; c += 17) require(all.at<int64_t>(row, c) == value(row, c), "a gathered row");
  }
  // Along the inner dimension of a transposed view: nothing lies in one piece.
  const Tensor wide = all_gather(comm, mine.transpose(0, 1), 1).tensor;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; c += 17) require(wide.at<int64_t>(c, row) == value(row, c), "a gathered column");
  }
}

void reduce(Comm& comm, int64_t columns) {
  const int64_t n = comm.size(), me = comm.rank();
  Tensor x = Tensor::empty(DType::f32, {n, columns});
  x.fill([&](auto index) { return static_cast<float>(index[0] + me); });
  const Tensor sum = reduce_scatter(comm, x, 0);
  for (int64_t c = 0; c < columns; c += 17) {
    require(sum.at<float>(0, c) == static_cast<float>(n * me + n * (n - 1) / 2), "a sum");
  }
  all_reduce(comm, x, ReduceOp::max, x);  // in place
  for (int64_t c = 0; c < columns; c += 17) {
    require(x.at<float>(n - 1, c) == static_cast<float>(2 * (n - 1)), "a maximum");
  }
}

// One rank has nearly all: where ranks are hosts it is spread over all first, and its rows do not come back to it.
void one_has_all(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank(), most = 4000, has = n / 2;
  const auto rows_of = [&](int64_t r) { return r == has ? most : r % 2; };
  int64_t first = 0, rows = 0;
  for (int64_t r = 0; r < n; ++r) {
    if (r < me) first += rows_of(r);
    rows += rows_of(r);
  }
  for (const int64_t dim : {0, 1}) {
    Tensor mine = Tensor::empty(DType::i64, dim == 0 ? Dims{rows_of(me), 100} : Dims{100, rows_of(me)});
    mine.fill([&](auto index) {
      return value(first + index[static_cast<size_t>(dim)], index[static_cast<size_t>(1 - dim)]);
    });
    comm.reset_stats();
    const Tensor all = all_gather(comm, mine, dim).tensor;
    require(comm.stats().bytes_received == (rows - rows_of(me)) * 800, "the number of bytes that came");
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < 100; c += 7) {
        require((dim == 0 ? all.at<int64_t>(row, c) : all.at<int64_t>(c, row)) == value(row, c), "a spread row");
      }
    }
  }
}

void in_groups(Comm& comm) {
  Comm half = comm.split(comm.rank() % 2, -comm.rank());
  const Tensor ranks = all_gather(half, Tensor::full(DType::i64, {1}, comm.rank()), 0).tensor;
  for (int64_t i = 1; i < half.size(); ++i) {
    require(ranks.at<int64_t>(i) == ranks.at<int64_t>(i - 1) - 2, "the order of a group");
  }
}

// What is received on one communicator goes on while another one is waited for.
void messages(Comm& comm) {
  if (comm.size() == 1) return;
  Comm other = comm.split(0);
  const int n = comm.size(), me = comm.rank();
  const Dims shape{300, 1000};
  auto coming = start_recv(other, (me + n - 1) % n, 7, Tensor::empty(DType::i32, shape).transpose(0, 1));
  if (me != 0) comm.barrier();
  send(other, Tensor::full(DType::i32, {1000, 300}, me), (me + 1) % n, 7);
  if (me == 0) comm.barrier();
  const Received got = coming.get();
  require(got.tensor.at<int32_t>(999, 299) == (me + n - 1) % n, "a message");
  const Stats stats = other.stats();
  const char* hosts = std::getenv("TESSERA_HOSTS");
  if (hosts == nullptr || std::atoi(hosts) == 1) return;  // and so through shared memory alone
  require(stats.bytes_between_hosts + stats.bytes_within_host == got.tensor.bytes(), "the bytes of a message");
}

void mismatch(Comm& comm) {
  if (comm.size() == 1) return;
  try {
    all_gather(comm, Tensor::full(DType::f32, {2, comm.rank() == 1 ? 3 : 4}, 1), 0);
  } catch (const MismatchError& error) {
    require(std::string(error.what()).find("dim 1 is 3, rank 0 has 4") != std::string::npos, error.what());
    return;
  }
  throw Error("a mismatch was not noticed");
}

// The same call again and again, which ranks may agree on by a vote; but for one rank, sometimes.
void repeats(Comm& comm) {
  const int64_t n = comm.size(), me = comm.rank(), last = n - 1;
  for (int64_t i = 0; i < 24; ++i) {
    const int64_t rows = me == last && i % 5 == 4 ? 3 : 2, columns = me == last && i % 7 == 6 ? 300 : 400;
    const Tensor mine = Tensor::full(DType::i64, {rows, columns}, i * 100 + me);
    try {
      const auto [all, sizes] = all_gather(comm, mine, 0);
      require(n == 1 || columns == 400, "that a mismatch goes unnoticed");
      require(sizes.back() == (i % 5 == 4 ? 3 : 2) && all.shape(0) == 2 * last + sizes.back(), "the sizes");
      for (int64_t r = 0; r < n; ++r) require(all.at<int64_t>(2 * r + 1, 0) == i * 100 + r, "a row of a repeated call");
    } catch (const MismatchError&) {
      require(i % 7 == 6, "that ranks agree");
    }
    comm.barrier();
    require(all_reduce(comm, Tensor::full(DType::i64, {2}, i)).at<int64_t>(1) == n * i, "a short sum");
  }
}

// Records of more than one message, of different lengths.
void long_records(Comm& comm) {
  std::vector<AllGather> ops(60);
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].x = Tensor::full(DType::i64, {comm.rank() + 1}, static_cast<int64_t>(i) * 10 + comm.rank());
    if (comm.rank() != 1) ops[i].out = Tensor::empty(DType::i64, {first_row(comm.size())});
  }
  const auto results = run(comm, ops);
  for (size_t i = 0; i < ops.size(); ++i) {
    for (int64_t r = 0; r < comm.size(); ++r) {
      require(results[i].tensor.at<int64_t>(first_row(r)) == static_cast<int64_t>(i) * 10 + r, "a batch");
    }
  }
}

// What was measured counts, and not what is taken for it where nobody says.
void measured(const Comm& comm) {
  const char* network = std::getenv("TESSERA_NETWORK");
  if (network == nullptr || std::string(network) != "measure") return;
  const std::string text = comm.transport();
  require(text.find("GB/s") != std::string::npos, text.c_str());
  require(text.find("20 us a round, 1 us a message, 10 GB/s") == std::string::npos, text.c_str());
}

void works(Comm& comm) {
  measured(comm);
  const bool many = comm.size() > 7;  // all that they gather would not fit into the memory of a small machine
  for (const int64_t columns : {1, 100, many ? 2'000 : 100'000}) {
    gather(comm, columns);
    reduce(comm, columns);
  }
  if (!many) gather(comm, 2'000'000);  // 16 MB a row
  one_has_all(comm);
  in_groups(comm);
  messages(comm);
  for (int i = 0; i < 3; ++i) mismatch(comm);
  for (int i = 0; i < 3; ++i) long_records(comm);
  repeats(comm);
  auto later = start(comm, AllReduce{.x = Tensor::full(DType::i64, {3}, 1)});
  require(later.get().at<int64_t>(0) == comm.size(), "an asynchronous sum");
}

// Rows of a page, of which all but the last have their memory in common with those kPeriod rows away: a test of more than a
// machine may have. Kept until the process ends.
constexpr int64_t kPage = 4096, kPeriod = 16'381;  // a prime, so that what is a power of two away is another row
Tensor repeated_rows(int64_t rows) {
  const int file = memfd_create("rows", 0);
  void* const all = mmap(nullptr, static_cast<size_t>(rows * kPage), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(file >= 0 && ftruncate(file, kPeriod * kPage) == 0 && all != MAP_FAILED, "memory for a huge tensor");
  for (int64_t row = 0; row < rows - 1; row += kPeriod) {
    const int64_t count = std::min(kPeriod, rows - 1 - row);
    require(mmap(static_cast<char*>(all) + row * kPage, static_cast<size_t>(count * kPage), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED,
            "memory for a row of a huge tensor");
  }
  close(file);
  return Tensor::view(all, DType::u8, {rows, kPage}, {kPage, 1});
}

// More elements than an int counts, all in one piece of one rank; `trusted`: and again, in one call of MPI's. The last row is
// another rank's.
void huge(Comm& comm, bool trusted) {
  const int64_t rows = (int64_t{1} << 31) / kPage + 3, me = comm.rank();
  const Sizes sizes{rows, 1};
  const auto value_of = [](int64_t row) { return static_cast<uint8_t>(row % kPeriod % 251); };
  const Tensor all = me == 0 ? repeated_rows(rows + 1) : Tensor::empty(DType::u8, {rows + 1, kPage});
  const Tensor mine = me == 0 ? repeated_rows(rows + 1).narrow(0, 0, rows) : Tensor::full(DType::u8, {1, kPage}, 252);
  require(all.elements() > INT32_MAX && comm.size() == 2, "the size");
  for (int64_t row = 0; row < kPeriod && me == 0; ++row) std::memset(mine.data() + row * kPage, value_of(row), kPage);
  for (const bool trusts : {false, true}) {
    if (trusts && !trusted) continue;
    for (int64_t row = 0; row <= rows; row += 7) all.data()[row * kPage + row % kPage] = std::byte{255};
    all_gather(comm, mine, {.sizes = sizes, .out = all, .sizes_trusted = trusts});
    for (int64_t row = 0; row < rows; row += 7) {
      require(all.at<uint8_t>(row, row % kPage) == value_of(row), "a row of a huge tensor");
    }
    require(all.at<uint8_t>(rows, kPage - 1) == 252, "the row behind it");
  }
}

// The last rank does not come, and later ends by itself if nobody ends it. "absent_late": the others come one after the other;
// "absent_mixed": one of them much later, to another call than theirs. On a new communicator, where nobody has said anything yet.
void absent(Comm& world, const std::string& what) {
  Comm comm = world.split(0);
  const int last = comm.size() - 1;
  if (comm.rank() == last) {
    sleep(60);
    return;
  }
  comm.set_timeout(std::chrono::seconds(2));
  if (what == "absent_late") usleep(400'000u * static_cast<unsigned>(comm.rank()));
  if (what != "absent_mixed" || comm.rank() == last - 1) {
    if (what == "absent_mixed") usleep(1'500'000);
    comm.barrier();
  } else {
    all_gather(comm, Tensor::full(DType::i64, {1}, 1));
  }
}

// Older than MPI, so its end comes late: that a process tells by its exit code must not cut it off.
struct Journal {
  ~Journal() {
    if (!line.empty()) fmt::print("{}\n", line);
  }
  std::string line;
} journal;

// As above, but one of those that miss it has more to save then than the others, whose communicators are gone before.
// "exits": it then ends without its communicator's end, and those that wait for it must be told. "journal": of two.
int saves(const std::string& what) {
  Comm comm = Comm::from_env();
  const std::string who = fmt::format("rank {} of {}", comm.rank(), comm.size());
  if (comm.rank() == comm.size() - 1) sleep(60);
  comm.set_timeout(std::chrono::seconds(2));
  try {
    comm.barrier();
  } catch (const TimeoutError&) {
    if (comm.rank() == 1) sleep(4);
    if (what == "journal") journal.line = who + " has saved";
    else fmt::print("{} has saved\n", who);
    if (what == "exits" && comm.rank() == 1) std::exit(0);
  }
  return 0;  // that not all is well the launcher tells, though no rank does
}

// One rank's environment makes no sense: all get the same error.
int odd_host() {
  const auto number = [](const char* open_mpis, const char* mpichs) {
    const char* text = std::getenv(open_mpis) != nullptr ? std::getenv(open_mpis) : std::getenv(mpichs);
    return std::atoi(text == nullptr ? "-1" : text);
  };
  const int rank = number("OMPI_COMM_WORLD_RANK", "PMI_RANK"), size = number("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
  if (rank == 1) setenv("TESSERA_HOSTS", "a\nfew", 1);
  try {
    Comm::from_env();
  } catch (const Error& error) {
    if (std::string(error.what()) != "rank 1: TESSERA_HOSTS is \"a few\", not a number of hosts from 1 on") throw;
    fmt::print("rank {} of {} is right\n", rank, size);
  }
  return 0;
}

// The last rank is killed, and the launcher ends the others.
void killed(Comm& comm) {
  comm.barrier();
  if (comm.rank() == comm.size() - 1) raise(SIGKILL);
  comm.barrier();
}

// The last rank leaves its communicator and lives on. The others keep theirs until they have told of it: behind
// MPI_Finalize() the first that ends badly ends them all.
void leaves(Comm& comm) {
  if (comm.rank() == comm.size() - 1) comm = Comm();
  else comm.barrier();
}

}  // namespace

// As a program has it whose user writes 1.000,5: nothing that ranks tell each other may depend on it.
struct Comma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "works";
  std::locale::global(std::locale(std::locale(), new Comma));
  if (what == "saves" || what == "exits" || what == "journal") return saves(what);
  if (what == "odd_host") return odd_host();
  Comm comm = Comm::from_env(options_of(what));
  const std::string who = fmt::format("rank {} of {}", comm.rank(), comm.size());
  if (const char* hosts = std::getenv("TESSERA_TEST_HOSTS")) {  // that are really apart
    const std::string carrier = comm.transport();
    require(carrier.find(fmt::format(" on {} hosts", hosts)) != std::string::npos, carrier.c_str());
  }
  const std::map<std::string, std::function<void(Comm&)>> programs{
      {"works", works},
      {"hosts", hosts},
      {"long_rows", long_rows},
      {"schedules", [&](Comm& c) { schedules(c, argc > 3 ? argv[2] : "", argc > 4 ? argv[3] : ""); }},
      {"huge", [](Comm& c) { huge(c, false); }},
      {"huge_trusted", [](Comm& c) { huge(c, true); }},
      {"absent", [&](Comm& c) { absent(c, what); }},
      {"absent_late", [&](Comm& c) { absent(c, what); }},
      {"absent_mixed", [&](Comm& c) { absent(c, what); }},
      {"joins", joins},
      {"comes_late", comes_late},
      {"stands_still", stands_still},
      {"gives_up", gives_up},
      {"late_term", late_term},
      {"many_messages", many_messages},
      {"killed", killed},
      {"leaves", leaves}};
  std::string end = "is right";
  int code = 0;
  const auto failed = [&](const char* kind, const Error& error) {
    const std::string text = error.what();
    end = fmt::format("{}: {}", kind, text.substr(0, text.find('\n')));
    code = 3;
  };
  try {
    if (!programs.contains(what)) throw Error("there is no program " + what);
    programs.at(what)(comm);
  } catch (const TimeoutError& error) {
    failed("TimeoutError", error);
  } catch (const PeerLostError& error) {
    failed("PeerLostError", error);
  } catch (const Error& error) {
    failed("Error", error);
  }
  fmt::print("{} {}\n", who, end);
  std::fflush(stdout);
  return code;
}
