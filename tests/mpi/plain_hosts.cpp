// What goes between hosts: how many bytes, in which rounds.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "plain.hpp"

using namespace tessera;

namespace {

// As many bytes as must come from other hosts came to this one, and no rank took them all, but where `one` does: they are few and
// travel with what is said, or nobody else is to have them. `needed`: of the whole host.
void came_once(Comm& comm, Comm& host, int64_t needed, const char* what, bool one = false) {
  const int64_t mine = comm.stats().bytes_between_hosts;
  const Tensor sum = all_reduce(host, Tensor::full(DType::i64, {1}, mine));
  if (sum.at<int64_t>(0) != needed) {
    throw Error(fmt::format("{}: {} bytes came from other hosts, not {}", what, sum.at<int64_t>(0), needed));
  }
  require(one || host.size() == 1 || mine * 4 <= needed * 3, "that ranks of a host share the receiving");
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

// What has one owner and is wanted once comes as it is: of what `here` ranks are to have, what others have.
void moves_between(Comm& comm, Comm& host) {
  const int64_t n = comm.size(), me = comm.rank(), here = host.size(), first = me - host.rank(), away = n - here;
  const int root = static_cast<int>(n) - 1;
  const bool has_root = first + here == n;
  const Tensor rows = Tensor::generate(DType::i32, {500, n * 40}, [&](auto at) { return 1000 * at[1] + at[0] + me; });
  const auto expect = [&](const Tensor& t, int64_t value) {
    require(t.at<int32_t>(499, 39) == value, "what was moved");
  };
  const int64_t part = rows.bytes() / n;
  comm.reset_stats();

  const Tensor columns = all_to_all(comm, rows, 1, 0).tensor;  // rows of all, and of the columns a part
  require(columns.shape() == Dims{n * 500, 40}, "the shape of an all_to_all");
  expect(columns.narrow(0, 500 * root, 500), 1000 * (me * 40 + 39) + 499 + root);
  came_once(comm, host, away * here * part, "all_to_all");

  // So little that it could travel with what is said, once to each host: several ranks there want but their own parts.
  const Tensor few = Tensor::full(DType::i32, {3000 / n * n}, static_cast<int32_t>(me));
  const Tensor mine = all_to_all_v(comm, few, Sizes(static_cast<size_t>(n), 3000 / n)).tensor;
  require(mine.at<int32_t>(mine.elements() - 1) == root, "a part of little");
  if (here > 1) came_once(comm, host, away * here * few.bytes() / n, "all_to_all_v of little");
  comm.reset_stats();

  expect(scatter(comm, rows, root, 1).tensor, 1000 * (me * 40 + 39) + 499 + root);
  came_once(comm, host, has_root ? 0 : here * part, "scatter");

  const Gathered at_root = gather(comm, rows.narrow(1, 0, 40), root, 1);
  if (me == root) expect(at_root.tensor.narrow(1, 0, 40), 39'000 + 499);
  came_once(comm, host, has_root ? away * part : 0, "gather", true);

  // From rows to columns of one tensor, and to one rank alone.
  const Mesh mesh = Mesh::over(comm, {{"all", n}});
  const Dims shape{n * 500, n * 40};
  const auto move = [&](Placement to, const Tensor& x) {
    const Plan way =
        plan(Layout(mesh, {Shard(0)}), Layout(mesh, {to}), shape, DType::i32, Topology::dtensor(mesh, here));
    return redistribute(comm, x, way);
  };
  expect(move(Shard(1), rows).narrow(0, 500 * root, 500), 1000 * (me * 40 + 39) + 499 + root);
  came_once(comm, host, away * here * part, "redistribute from rows to columns");
  move(At(root), rows);
  came_once(comm, host, has_root ? away * n * part : 0, "redistribute to one rank", true);
}

}  // namespace

// TESSERA_HOSTS says how many hosts there are to be.
void hosts(Comm& comm) {
  sums_from_other_lines(comm);
  if (comm.size() >= 4) pending_sums(comm);
  const char* apart = std::getenv("TESSERA_TEST_HOSTS");
  const char* text = apart != nullptr ? apart : std::getenv("TESSERA_HOSTS");
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

  moves_between(comm, host);
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

// Sums of rows that go in many pieces, of two blocks of ranks on each host: all of the one come before any of the other.
void long_rows(Comm& world) {
  const int host = world.rank() / 4, place = world.rank() % 4;
  Comm comm = world.split(0, place / 2 * 4 + host * 2 + place % 2);  // so host 0 has ranks 0, 1, 4 and 5
  const int64_t n = comm.size(), me = comm.rank(), columns = (int64_t{3} << 20) + 1;
  const auto expect = [&](const Tensor& sum, int64_t row, const char* what) {
    require_schedule(comm, "folded", what);
    for (int64_t c = 0; c < columns; c += c % 7 + 1) {
      require(sum.at<float>(row, c) == static_cast<float>(n * (c % 1000) + n * (n - 1) / 2), what);
    }
  };
  const Tensor x = Tensor::empty(DType::f32, {2, columns});
  x.fill([&](auto at) { return static_cast<float>(at[1] % 1000 + me); });
  const Tensor at_root = tessera::reduce(comm, x, 1);
  if (me == 1) expect(at_root, 1, "a sum of long rows at one rank");
  const Sizes sizes{1, 0, 0, 0, 0, 1, 0, 0};
  const Tensor own = reduce_scatter(comm, x, 0, sizes);
  if (sizes[static_cast<size_t>(me)] > 0) expect(own, 0, "a sum of long rows");
  expect(all_reduce(comm, x), 1, "a sum of long rows on all");
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
  else if (skewed == "ring") require_schedule(comm, "spread", "a skewed sum");  // bytes are dear
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
