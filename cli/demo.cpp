#include "demo.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>

namespace tessera::cli {
namespace {

constexpr int64_t kColumns = 64;

// Different sizes, and from three ranks on one that is zero.
int64_t rows_of(int rank) {
  constexpr int64_t kRows[] = {3, 8, 0, 5, 2, 7, 1};
  return kRows[rank % 7];
}

// The element of a rank's row: small integers, so that sums of floats are exact and can be compared with ==.
float value(int rank, int64_t row, int64_t column) {
  return static_cast<float>(1 + rank + row + (column == 0 ? 0 : column % 5));
}

// The whole, as one process would have it that holds every rank's rows.
Tensor expected_whole(int ranks) {
  int64_t total = 0;
  for (int r = 0; r < ranks; ++r) total += rows_of(r);
  Tensor whole = Tensor::empty(DType::f32, {total, kColumns});
  int64_t start = 0;
  for (int r = 0; r < ranks; ++r) {
    whole.narrow(0, start, rows_of(r)).fill([r](auto at) { return value(r, at[0], at[1]); });
    start += rows_of(r);
  }
  return whole;
}

// The loss of rank r is (r + 1) / 2 times the sum of the squares of all that was gathered; together they are the loss.
double loss(const Tensor& whole, int ranks) {
  double sum = 0;
  for (const float y : whole.span<float>()) sum += static_cast<double>(y) * y;
  double all = 0;
  for (int r = 0; r < ranks; ++r) all += 0.5 * (r + 1) * sum;
  return all;
}

// By differences, so that it owes nothing to the formula it checks; exact, because the loss is a square.
double gradient_by_differences(const Tensor& whole, int64_t row, int ranks) {
  float& y = whole.at<float>(row, 0);
  y += 1;
  const double above = loss(whole, ranks);
  y -= 2;
  const double below = loss(whole, ranks);
  y += 1;
  return (above - below) / 2;
}

class Demo {
 public:
  explicit Demo(int ranks) : whole_(expected_whole(ranks)) {
    report_.ranks = ranks;
    report_.columns = kColumns;
    report_.row_bytes = kColumns * size_bytes(DType::f32);
    messages_.resize(static_cast<size_t>(ranks));
    for (const char* what : {"all_gather", "padded gather", "gradient with sum", "all_reduce, then slice"}) {
      report_.costs.push_back({what, std::vector<Stats>(static_cast<size_t>(ranks))});
    }
    for (int r = 0; r < ranks; ++r) {
      if (rows_of(r) > 0) report_.gradients.push_back({.rank = r});
    }
  }

  DemoReport run() {
    tessera::run(report_.ranks, [this](Comm& comm) { on_rank(comm); }, {.name = "demo"});
    check_gradients();
    for (const std::string& message : messages_) check(message == messages_[0], "a rank got another error message");
    report_.error_text = messages_[0];
    return std::move(report_);
  }

 private:
  void check(bool right, const std::string& failure) {
    if (right) return;
    std::lock_guard lock(guard_);
    auto& list = report_.failures;
    if (std::find(list.begin(), list.end(), failure) == list.end()) list.push_back(failure);
  }

  // fn(beside) returns what it made, and adds to `beside` the copies it made without the communicator.
  template <class Fn>
  auto count(Comm& comm, size_t cost, Fn fn) {
    comm.reset_stats();
    Stats beside;
    auto result = fn(beside);
    Stats stats = comm.stats();
    stats.copies += beside.copies;
    stats.bytes_copied += beside.bytes_copied;
    stats.allocations += beside.allocations;
    stats.bytes_allocated += beside.bytes_allocated;
    report_.costs[cost].by_rank[static_cast<size_t>(comm.rank())] = stats;
    return result;
  }

  void on_rank(Comm& comm) {
    const int rank = comm.rank();
    const Tensor mine =
        Tensor::generate(DType::f32, {rows_of(rank), kColumns}, [rank](auto at) { return value(rank, at[0], at[1]); });

    const auto [all, sizes] = count(comm, 0, [&](Stats&) { return all_gather(comm, mine, 0); });
    check(all.equals(whole_), "all_gather: a rank got other rows");
    check(split(comm, all, 0, sizes).equals(mine), "split: a rank did not get its rows back");
    check_cost(comm.stats(), all);
    if (rank == 0) {
      report_.rows = sizes;
      report_.result = all.shape();
    }

    const Tensor padded = count(comm, 1, [&](Stats& beside) { return gather_padded(comm, mine, beside); });
    check(padded.equals(whole_), "the padded gather gave other rows");

    differentiate(comm, all, sizes);
    disagree(comm, mine);
  }

  // One exchange, one output, one copy of each byte.
  void check_cost(const Stats& s, const Tensor& all) {
    check(s.exchanges == 1 && s.allocations == 1 && s.bytes_copied == all.bytes(),
          "all_gather took more than one copy");
  }

  // What code without a ragged gather does: tell the sizes, pad to the longest, gather, concatenate, select. The moves are
  // in the communicator's statistics; the copies on this side of it are added here.
  Tensor gather_padded(Comm& comm, const Tensor& mine, Stats& beside) {
    const Sizes sizes = gather_sizes(comm, mine, 0);
    const bool ragged = !has_only_one_value(sizes);
    const Tensor padded = ragged ? pad_dim_to(mine, *std::max_element(sizes.begin(), sizes.end()), 0) : mine;
    if (ragged) count_copy(beside, padded, 1);
    const auto parts = all_gather_same(comm, padded);
    Tensor joined = Tensor::empty(DType::f32, {padded.shape(0) * comm.size(), kColumns});
    for (int64_t r = 0; r < comm.size(); ++r) {
      joined.narrow(0, r * padded.shape(0), padded.shape(0)).copy_from(parts[static_cast<size_t>(r)]);
    }
    count_copy(beside, joined, comm.size());
    if (!ragged) return joined;
    Tensor selected = Tensor::empty(DType::f32, whole_.shape());
    int64_t start = 0, pieces = 0;
    for (int64_t r = 0; r < comm.size(); ++r) {
      const int64_t rows = sizes[static_cast<size_t>(r)];
      selected.narrow(0, start, rows).copy_from(joined.narrow(0, r * padded.shape(0), rows));
      start += rows;
      pieces += rows > 0 ? 1 : 0;
    }
    count_copy(beside, selected, pieces);
    return selected;
  }

  static void count_copy(Stats& beside, const Tensor& written, int64_t copies) {
    beside.copies += copies;
    beside.bytes_copied += written.bytes();
    beside.allocations += 1;
    beside.bytes_allocated += written.bytes();
  }

  void differentiate(Comm& comm, const Tensor& all, const Sizes& sizes) {
    Tensor grad = all.clone();
    for (float& g : grad.span<float>()) g *= static_cast<float>(comm.rank() + 1);
    const Tensor slice = all_gather_backward(comm, grad, 0, sizes, GradReduce::slice);
    const Tensor sum =
        count(comm, 2, [&](Stats&) { return all_gather_backward(comm, grad, 0, sizes, GradReduce::sum); });
    const Tensor same = count(comm, 3, [&](Stats&) { return split(comm, all_reduce(comm, grad), 0, sizes); });
    check(sum.equals(same), "the gradient differs from the one by all_reduce");
    const auto weight = static_cast<float>(comm.size() * (comm.size() + 1) / 2);
    const Tensor exact = split(comm, all, 0, sizes).clone();
    for (float& g : exact.span<float>()) g *= weight;
    check(sum.equals(exact), "the gradient with sum is wrong");
    for (auto& g : report_.gradients) {
      if (g.rank != comm.rank()) continue;
      g.sum = sum.at<float>(0, 0);
      g.slice = slice.at<float>(0, 0);
    }
  }

  void check_gradients() {
    report_.slice_is_right = true;
    for (auto& g : report_.gradients) {
      const int64_t row = std::accumulate(report_.rows.begin(), report_.rows.begin() + g.rank, int64_t{0});
      g.one_process = gradient_by_differences(whole_, row, report_.ranks);
      check(g.sum == g.one_process, "the gradient with sum is not that of one process");
      if (g.slice != g.one_process) report_.slice_is_right = false;
    }
    check(report_.slice_is_right == (report_.ranks == 1), "slice gives the gradient of all losses, and should not");
  }

  // The last rank brings rows that are half as wide. One rank alone cannot disagree with others: there, sizes do not fit.
  void disagree(Comm& comm, const Tensor& mine) {
    const bool odd = comm.rank() > 0 && comm.rank() == comm.size() - 1;
    const Sizes sizes = comm.size() == 1 ? Sizes{9} : Sizes{};
    comm.reset_stats();
    try {
      all_gather(comm, odd ? mine.narrow(1, 0, kColumns / 2) : mine, 0, sizes);
      check(false, "calls that do not fit were not refused");
    } catch (const MismatchError& error) {
      note(comm, "MismatchError", error);
    } catch (const ShapeError& error) {
      note(comm, "ShapeError", error);
    }
    check(comm.stats().bytes_copied == 0, "a refused call has moved something");
    comm.barrier();  // the communicator is as good as before
  }

  void note(const Comm& comm, const char* error_class, const Error& error) {
    messages_[static_cast<size_t>(comm.rank())] = error.what();
    if (comm.rank() == 0) report_.error_class = error_class;
  }

  DemoReport report_;
  Tensor whole_;
  std::vector<std::string> messages_;
  std::mutex guard_;
};

}  // namespace

DemoReport run_demo(int ranks) { return Demo(ranks).run(); }

}  // namespace tessera::cli
