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
#include <locale>
#include <string>

#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

void require(bool right, const char* what) {
  if (!right) throw Error(fmt::format("{} is wrong", what));
}

int64_t value(int64_t row, int64_t column) { return row * 1000 + column; }

// Rank r brings r + 1 rows.
int64_t first_row(int64_t rank) { return rank * (rank + 1) / 2; }

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

void works(Comm& comm) {
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

// As many bytes as must come from other hosts came to this one, and no rank took them all, but where they are `few` and
// travel with what is said. `needed`: of the whole host.
void came_once(Comm& comm, Comm& host, int64_t needed, const char* what, bool few = false) {
  const int64_t mine = comm.stats().bytes_between_hosts;
  const Tensor sum = all_reduce(host, Tensor::full(DType::i64, {1}, mine));
  if (sum.at<int64_t>(0) != needed) {
    throw Error(fmt::format("{}: {} bytes came from other hosts, not {}", what, sum.at<int64_t>(0), needed));
  }
  require(few || host.size() == 1 || mine * 4 <= needed * 3, "that ranks of a host share the receiving");
  comm.reset_stats();
}

// From sums that are pending on one mesh to a mesh in another order: each receiver takes the terms that it has itself, so
// that ranks of one host want the same box of a third for different sums.
void pending_sums(Comm& comm) {
  const Mesh before({{"dp", 2}, {"tp", 2}}), after({{"s", 4}}, {0, 2, 1, 3});
  const Layout from(before, {Partial(), Replicate()}), to(after, {Replicate()});
  const Dims shape{4096};
  const Plan way = plan(from, to, shape, DType::f32, Topology::dtensor(before, after, 4));
  const auto place = before.coordinate(comm.rank());
  const Tensor term = place ? Tensor::full(DType::f32, shape, static_cast<float>((*place)[0] + 1)) : Tensor();
  const Tensor sum = redistribute(comm, term, way);
  require(sum.defined() == place.has_value(), "who has the sum");
  for (int64_t i = 0; sum.defined() && i < 4096; ++i) require(sum.at<float>(i) == 3, "a sum of a redistribution");
}

// Small sums, from one line on rank 0 and from two on the others: what a rank makes of its last call from a line is not what
// all make of theirs.
void sums_from_other_lines(Comm& comm) {
  const auto from_here = [&](const Tensor& x) { all_reduce(comm, x, ReduceOp::sum, x); };
  const int64_t n = comm.size(), me = comm.rank();
  for (int again = 0; again < 3; ++again) {
    const Tensor longer = Tensor::full(DType::f64, {1500}, me), shorter = Tensor::full(DType::f32, {1500}, me);
    if (me == 0) {
      for (const Tensor& x : {longer, shorter}) from_here(x);
    } else {
      all_reduce(comm, longer, ReduceOp::sum, longer);
      all_reduce(comm, shorter, ReduceOp::sum, shorter);
    }
    require(longer.at<double>(1499) == static_cast<double>(n * (n - 1) / 2), "a sum from another line");
    require(shorter.at<float>(1499) == static_cast<float>(n * (n - 1) / 2), "a shorter sum from another line");
  }
}

std::string last_schedule(const Comm& comm) { return comm.recent_calls().back().schedule; }

void require_schedule(const Comm& comm, const std::string& begins, const char* what) {
  if (last_schedule(comm).starts_with(begins)) return;
  throw Error(fmt::format("the schedule of {} is \"{}\", not {}", what, last_schedule(comm), begins));
}

// Large sums: of each row that a host is to have comes one term for each block elsewhere, of as many ranks as all hosts have
// blocks of.
void sums_between(Comm& comm, Comm& host, int64_t count) {
  const int64_t n = comm.size(), me = comm.rank(), here = host.size();
  const auto lie_together = [&](int64_t length) {
    for (int64_t r = 1; r < n; ++r) {
      if (r % length != 0 && r * count / n != (r - 1) * count / n) return false;
    }
    return true;
  };
  int64_t block = 1;
  while (2 * block <= n && lie_together(2 * block)) block *= 2;
  const int64_t first = me - host.rank(), blocks = (n + block - 1) / block;
  const int64_t others = blocks - ((first + here + block - 1) / block - first / block);
  const std::string fold = count > 1 && block > 1 ? "folded " : "";
  Tensor whole = Tensor::empty(DType::f32, {n * 500, 128});
  for (int again = 0; again < 3; ++again) {
    whole.fill([&](auto index) { return static_cast<float>(index[0] % 100 + me + again); });
    const auto sum_of = [&](int64_t row) { return static_cast<float>(n * (row % 100 + again) + n * (n - 1) / 2); };
    const Tensor part = reduce_scatter(comm, whole, 0);
    if (count > 1) require_schedule(comm, fold + "direct", "a sum");
    came_once(comm, host, others * here * (whole.bytes() / n), "reduce_scatter");
    for (int64_t i = 0; i < 500; i += 7) require(part.at<float>(i, 127) == sum_of(me * 500 + i), "a part of a sum");
    all_reduce(comm, whole, ReduceOp::sum, whole);
    for (int64_t i = 0; i < n * 500; i += 7) require(whole.at<float>(i, 100) == sum_of(i), "a sum in place");
    if (fold.empty() || !last_schedule(comm).starts_with("folded direct")) comm.reset_stats();
    else came_once(comm, host, others * whole.bytes(), "all_reduce");
  }
}

// TESSERA_HOSTS says how many hosts there are to be.
void hosts(Comm& comm) {
  sums_from_other_lines(comm);
  if (comm.size() >= 4) pending_sums(comm);
  const char* text = std::getenv("TESSERA_HOSTS");
  const int64_t n = comm.size(), me = comm.rank(), count = text == nullptr ? 1 : std::atoi(text);
  const std::string carrier = comm.transport();
  require(carrier.find(fmt::format("{} ranks on {} host", n, count)) != std::string::npos, carrier.c_str());
  require(count == n || carrier.ends_with("within a host through shared memory"), carrier.c_str());
  Comm host = comm.split(me * count / n);
  const int64_t first = me - host.rank(), here = host.size(), away = n - here, columns = 60'000;
  const auto rows_of = [](int64_t from, int64_t ranks) { return first_row(from + ranks) - first_row(from); };
  const int64_t row_bytes = columns * 8, away_rows = rows_of(0, n) - rows_of(first, here);

  Tensor mine = Tensor::empty(DType::i64, {me + 1, columns});
  mine.fill([&](auto index) { return value(first_row(me) + index[0], index[1]); });
  comm.reset_stats();
  Tensor all = all_gather(comm, mine, 0).tensor;
  for (int64_t row = 0; row < rows_of(0, n); ++row) {
    for (int64_t c = 0; c < columns; c += 17) require(all.at<int64_t>(row, c) == value(row, c), "a gathered row");
  }
  came_once(comm, host, away_rows * row_bytes, "all_gather");
  all_gather(comm, mine.transpose(0, 1), 1);
  came_once(comm, host, away_rows * row_bytes, "all_gather along the inner dimension");

  const int root = static_cast<int>(n) - 1;
  Tensor whole = Tensor::full(DType::f32, {n * 1000, 16}, me);
  require(broadcast(comm, whole, root).at<float>(n * 1000 - 1, 15) == static_cast<float>(root), "a broadcast");
  const bool has_root = first + here == n;
  came_once(comm, host, has_root ? 0 : whole.bytes(), "broadcast");

  sums_between(comm, host, count);
  const Tensor few = all_reduce(comm, Tensor::full(DType::f64, {700}, me));
  require(few.at<double>(699) == static_cast<double>(n * (n - 1) / 2), "a short sum");
  came_once(comm, host, away * few.bytes(), "all_reduce in one round", true);
  for (int again = 0; again < 3; ++again) {  // rank r has r bytes
    all_gather(comm, Tensor::full(DType::i8, {me, 1}, me));
    came_once(comm, host, n * (n - 1) / 2 - rows_of(first - 1, here), "a short all_gather", true);
  }
  require(comm.stats().bytes_within_host == 0, "the statistics after a reset");
}

// Rows of one rank among others with few, gathered, summed up and broadcast; `skewed` and `even`: how that is to go, where
// TESSERA_NETWORK says what is dear.
void schedules(Comm& comm, const std::string& skewed, const std::string& even) {
  const int64_t n = comm.size(), me = comm.rank(), columns = 300, has = n / 2;
  Sizes sizes;
  for (int64_t r = 0; r < n; ++r) sizes.push_back(r == has ? 5000 : r % 3);
  int64_t first = 0, rows = 0;
  for (int64_t r = 0; r < n; ++r) {
    if (r < me) first += sizes[static_cast<size_t>(r)];
    rows += sizes[static_cast<size_t>(r)];
  }
  const int64_t own = sizes[static_cast<size_t>(me)];
  for (int again = 0; again < 2; ++again) {
    Tensor mine = Tensor::empty(DType::i64, {own, columns});
    mine.fill([&](auto index) { return value(first + index[0], index[1]); });
    comm.reset_stats();
    const Tensor all = all_gather(comm, mine, 0).tensor;
    require_schedule(comm, skewed, "a skewed gather");
    require(comm.stats().bytes_received == (rows - own) * columns * 8, "that every row comes once");
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < columns; c += 7) require(all.at<int64_t>(row, c) == value(row, c), "a gathered row");
    }
  }
  Tensor part = Tensor::full(DType::f32, {640, 16}, me);
  const Tensor parts = all_gather(comm, part, 1).tensor;
  require_schedule(comm, even, "an even gather");
  for (int64_t r = 0; r < n; ++r) require(parts.at<float>(639, r * 16 + 15) == static_cast<float>(r), "an even part");
  Tensor whole = Tensor::empty(DType::f32, {rows, 10});
  whole.fill([&](auto index) { return static_cast<float>(index[0] % 1000 + me); });
  const auto sum_of = [&](int64_t row) { return static_cast<float>(n * (row % 1000) + n * (n - 1) / 2); };
  // Where messages are dear sums take logarithmic rounds, too: every rank is a host, or each host has two.
  const char* hosts = std::getenv("TESSERA_HOSTS");
  const int64_t on_each = n / std::max(hosts == nullptr ? 1 : std::atoi(hosts), 1);
  const bool in_pairs = even == "logarithmic" && on_each <= 2;
  const std::string way = on_each == 2 ? "folded " + even : even;
  const Tensor cut = reduce_scatter(comm, whole, 0, sizes);
  if (in_pairs) require_schedule(comm, way, "a skewed sum");
  for (int64_t i = 0; i < own; ++i) require(cut.at<float>(i, 9) == sum_of(first + i), "a skewed sum");
  const Tensor at_root = tessera::reduce(comm, whole, n - 1);
  if (in_pairs) require_schedule(comm, way, "a sum at one rank");
  if (me == n - 1) require(at_root.at<float>(rows - 1, 0) == sum_of(rows - 1), "a sum at one rank");
  const Tensor sum = all_reduce(comm, whole);
  if (in_pairs) require_schedule(comm, way, "a sum on all");
  for (int64_t i = 0; i < rows; i += 3) require(sum.at<float>(i, 5) == sum_of(i), "a sum on all");
  const Tensor told = broadcast(comm, me == 1 % n ? whole : Tensor(), static_cast<int>(1 % n));
  for (int64_t i = 0; i < rows; i += 3) {
    require(told.at<float>(i, 5) == static_cast<float>(i % 1000 + 1 % n), "a broadcast row");
  }
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
  Comm comm = Comm::from_env();
  const std::string who = fmt::format("rank {} of {}", comm.rank(), comm.size());
  std::string end = "is right";
  int code = 0;
  const auto failed = [&](const char* kind, const Error& error) {
    const std::string text = error.what();
    end = fmt::format("{}: {}", kind, text.substr(0, text.find('\n')));
    code = 3;
  };
  try {
    if (what == "works") works(comm);
    if (what == "hosts") hosts(comm);
    if (what == "schedules") schedules(comm, argc > 3 ? argv[2] : "", argc > 4 ? argv[3] : "");
    if (what == "huge") huge(comm, false);
    if (what == "huge_trusted") huge(comm, true);
    if (what.starts_with("absent")) absent(comm, what);
    if (what == "killed") killed(comm);
    if (what == "leaves") leaves(comm);
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
