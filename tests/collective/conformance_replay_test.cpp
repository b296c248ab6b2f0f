// Conformance: calls that are made again and again from one line. What is worked out once is played again, so this is
// about what may change in between: elements, sizes, strides, who gives an output, and who calls something else.
#include <numeric>

#include <tessera/collective.hpp>

#include "collective/cases.hpp"
#include "support/failures.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

class Again : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, Again, everywhere(), name_of);

constexpr int kTimes = 12;
constexpr int64_t kLong = 1500;  // rows that are too long to travel within the record

float value(int rank, int time, int64_t i) { return static_cast<float>(1000 * time + 100 * rank + i); }

Tensor mine(const Comm& comm, int time, int64_t rows) {
  return Tensor::generate(DType::f32, {rows, 3}, [&](auto at) { return value(comm.rank(), time, 3 * at[0] + at[1]); });
}

void expect_gathered(const Gathered& all, int time, const Sizes& sizes) {
  ASSERT_EQ(all.sizes, sizes);
  int64_t row = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    for (int64_t i = 0; i < 3 * sizes[r]; ++i) {
      ASSERT_EQ(all.tensor.at<float>(row + i / 3, i % 3), value(static_cast<int>(r), time, i)) << "time " << time;
    }
    row += sizes[r];
  }
}

TEST_P(Again, WithOtherElements) {
  on_ranks([](Comm& comm) {
    Sizes sizes;
    for (int r = 0; r < comm.size(); ++r) sizes.push_back(r % 3);  // some have nothing
    std::vector<Gathered> kept;
    for (int time = 0; time < kTimes; ++time) {
      kept.push_back(all_gather(comm, mine(comm, time, sizes[static_cast<size_t>(comm.rank())])));
      comm.barrier();
    }
    for (int time = 0; time < kTimes; ++time) expect_gathered(kept[static_cast<size_t>(time)], time, sizes);
    EXPECT_EQ(comm.stats().exchanges, 2 * kTimes);
    EXPECT_EQ(comm.stats().allocations, kTimes);
    EXPECT_EQ(comm.stats().copies, static_cast<int64_t>(kTimes * std::count_if(sizes.begin(), sizes.end(),
                                                                               [](int64_t s) { return s > 0; })));
  });
}

TEST_P(Again, WithOtherSizesNowAndThen) {
  on_ranks([](Comm& comm) {
    int64_t rows = 0, received = 0;
    for (int time = 0; time < kTimes; ++time) {
      Sizes sizes(static_cast<size_t>(comm.size()), 4);
      if (time == 5) sizes.back() = 7;
      if (time == 8) sizes.front() = kLong;
      const int64_t own = sizes[static_cast<size_t>(comm.rank())], all = std::reduce(sizes.begin(), sizes.end());
      expect_gathered(all_gather(comm, mine(comm, time, own)), time, sizes);
      rows += all;
      received += all - own;
      EXPECT_EQ(comm.recent_calls().back().bytes_received, 12 * (all - own)) << "time " << time;
    }
    EXPECT_EQ(comm.stats().calls, kTimes);
    EXPECT_EQ(comm.stats().bytes_received, 12 * received);
    EXPECT_EQ(comm.stats().bytes_allocated, 12 * rows);
  });
}

TEST_P(Again, WithOtherStridesAndOutputsOnOneRank) {
  on_ranks([](Comm& comm) {
    const Sizes sizes(static_cast<size_t>(comm.size()), 4);
    for (int time = 0; time < kTimes; ++time) {
      const bool differs = comm.rank() == 0 && time % 4 == 3;
      Tensor x = mine(comm, time, 4);
      if (differs) x = x.transpose(0, 1).clone().transpose(0, 1);
      const Tensor out = differs ? Tensor::zeros(DType::f32, {4 * comm.size(), 3}) : Tensor();
      expect_gathered(all_gather(comm, x, {.out = out}), time, sizes);
    }
  });
}

// Outputs of the caller's: new ones, one that x is a part of, one of other strides, a constant one.
TEST_P(Again, IntoTheCallersOutput) {
  on_ranks([](Comm& comm) {
    const Sizes sizes(static_cast<size_t>(comm.size()), 2);
    const int64_t rows = 2 * comm.size();
    const std::vector<float> constant(static_cast<size_t>(3 * rows));
    for (int time = 0; time < kTimes; ++time) {
      Tensor x = mine(comm, time, 2), out = Tensor::full(DType::f32, {rows, 3}, -1.0f);
      if (time == 5) {  // in place
        const Tensor part = out.narrow(0, 2 * comm.rank(), 2);
        part.copy_from(x);
        x = part;
      }
      if (time == 7) out = Tensor::full(DType::f32, {3, rows}, -1.0f).transpose(0, 1);
      if (time == 9 && comm.rank() == 0) out = Tensor::view(std::span(constant), {rows, 3});
      Gathered all;
      const auto thrown = test::thrown_by([&] { all = all_gather(comm, x, {.out = out}); });
      if (time == 9) {
        EXPECT_EQ(thrown.type, "ShapeError") << thrown;
        continue;
      }
      ASSERT_EQ(thrown.type, "nothing") << thrown;
      EXPECT_EQ(all.tensor.data(), out.data());
      expect_gathered(all, time, sizes);
    }
    EXPECT_EQ(comm.stats().allocations, 0);
  });
}

// What peers read of an output in the second round of a long all_reduce is where it is now, not where it was.
TEST_P(Again, AllReduceIntoTheCallersOutput) {
  on_ranks([](Comm& comm) {
    for (int time = 0; time < kTimes; ++time) {
      const int64_t rows = time % 2 == 0 ? 4 : 4000;
      const Tensor out = Tensor::full(DType::f32, {rows, 3}, -1.0f);
      all_reduce(comm, mine(comm, time, rows), ReduceOp::max, out);
      for (int64_t i = 0; i < 3 * rows; ++i) {
        ASSERT_EQ(out.at<float>(i / 3, i % 3), value(comm.size() - 1, time, i)) << "time " << time;
      }
    }
  });
}

TEST_P(Again, EveryOperation) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    for (int time = 0; time < kTimes; ++time) {
      const Tensor x = mine(comm, time, n);
      const auto sum = [&](int64_t i) {
        float total = 0;
        for (int r = 0; r < n; ++r) total += value(r, time, i);
        return total;
      };
      const Tensor reduced = all_reduce(comm, x);
      const Tensor part = reduce_scatter(comm, x, 0);
      const Gathered crossed = all_to_all_v(comm, x, Sizes(static_cast<size_t>(n), 1));
      const Tensor told = broadcast(comm, comm.rank() == n - 1 ? x : Tensor(), n - 1);
      const std::vector<Tensor> same = all_gather_same(comm, x);
      for (int64_t i = 0; i < 3 * n; ++i) {
        ASSERT_EQ(reduced.at<float>(i / 3, i % 3), sum(i));
        ASSERT_EQ(told.at<float>(i / 3, i % 3), value(n - 1, time, i));
        for (int r = 0; r < n; ++r) ASSERT_EQ(same[static_cast<size_t>(r)].at<float>(i / 3, i % 3), value(r, time, i));
      }
      for (int64_t i = 0; i < 3; ++i) {
        ASSERT_EQ(part.at<float>(0, i), sum(3 * comm.rank() + i));
        for (int r = 0; r < n; ++r) ASSERT_EQ(crossed.tensor.at<float>(r, i), value(r, time, 3 * comm.rank() + i));
      }
    }
  });
}

// By a function, which copies nothing of what it is given, or as a description: one call, whoever asks how.
TEST_P(Again, AskedForOrDescribed) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    for (int time = 0; time < 4 * kTimes; ++time) {
      const bool described = (time / 4 + comm.rank()) % 3 == 0;
      const bool largest = time % 12 == 11;
      const Reduction op = largest ? ReduceOp::max : ReduceOp::sum;
      Sizes sizes(static_cast<size_t>(n), 2);
      if (time % 16 > 12 && n > 1) sizes.front() = 4, sizes.back() = 0;
      const Tensor x = mine(comm, time, 2 * n);
      const auto combined = [&](int64_t i) {
        float total = 0;
        for (int r = 0; r < n; ++r) total = largest ? value(r, time, i) : total + value(r, time, i);
        return total;
      };
      const auto ask = [&] { return reduce_scatter(comm, x, 0, sizes, op, Site("one.cpp", 1)); };
      const auto describe = [&] {
        return run(comm, ReduceScatter{.x = x, .sizes = sizes, .op = op}, Site("one.cpp", 1));
      };
      const Tensor part = described ? describe() : ask();
      int64_t row = 0;
      for (int r = 0; r < comm.rank(); ++r) row += sizes[static_cast<size_t>(r)];
      ASSERT_EQ(part.shape(), (Dims{sizes[static_cast<size_t>(comm.rank())], 3}));
      for (int64_t i = 0; i < part.elements(); ++i) ASSERT_EQ(part.at<float>(i / 3, i % 3), combined(3 * row + i));
      const Tensor whole = described ? run(comm, AllReduce{.x = x, .op = op}, Site("one.cpp", 2))
                                     : all_reduce(comm, x, op, {}, Site("one.cpp", 2));
      for (int64_t i = 0; i < whole.elements(); ++i) ASSERT_EQ(whole.at<float>(i / 3, i % 3), combined(i));
    }
    EXPECT_EQ(comm.stats().exchanges, 8 * kTimes);
    EXPECT_EQ(comm.stats().calls, 8 * kTimes);
    EXPECT_EQ(comm.stats().allocations, 8 * kTimes);
  });
}

TEST_P(Again, ADisagreementIsFoundInTheMiddle) {
  on_ranks([](Comm& comm) {
    if (comm.size() == 1) return;
    for (int time = 0; time < kTimes; ++time) {
      const bool wrong = time == 6 && comm.rank() == comm.size() - 1;
      const Tensor x = wrong ? Tensor::zeros(DType::f32, {4, 5}) : mine(comm, time, 4);
      if (time != 6) {
        expect_gathered(all_gather(comm, x), time, Sizes(static_cast<size_t>(comm.size()), 4));
        continue;
      }
      const auto thrown = test::thrown_by([&] { all_gather(comm, x); });
      EXPECT_EQ(thrown.type, "MismatchError") << thrown;
    }
  });
}

// Nothing that travels within the record: peers read it where it lies, which is another place each time.
TEST_P(Again, WithLongTensorsElsewhere) {
  on_ranks([](Comm& comm) {
    Sizes sizes;
    for (int r = 0; r < comm.size(); ++r) sizes.push_back(r % 3 == 1 ? 2 : kLong + r);
    std::vector<Gathered> kept;
    std::vector<Tensor> inputs;
    for (int time = 0; time < kTimes; ++time) {
      Tensor x = mine(comm, time, sizes[static_cast<size_t>(comm.rank())]);
      if ((time + comm.rank()) % 4 == 3) {
        const Tensor shared = comm.allocate(DType::f32, x.shape());
        shared.copy_from(x);
        x = shared;
      }
      kept.push_back(all_gather(comm, x));
      inputs.push_back(x);
      x.fill([](auto) { return -1; });  // nobody reads it any more
    }
    for (int time = 0; time < kTimes; ++time) expect_gathered(kept[static_cast<size_t>(time)], time, sizes);
    EXPECT_EQ(comm.stats().exchanges, kTimes);
    EXPECT_EQ(comm.stats().allocations, kTimes);
  });
}

TEST_P(Again, EveryOperationOnLongTensors) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const int64_t rows = kLong * n;
    for (int time = 0; time < 5; ++time) {
      const Tensor x = mine(comm, time, rows);
      const Tensor reduced = all_reduce(comm, x, ReduceOp::max);
      const Tensor part = reduce_scatter(comm, x, {.op = ReduceOp::max});
      const Gathered crossed = all_to_all_v(comm, x, Sizes(static_cast<size_t>(n), kLong));
      const Tensor told = broadcast(comm, comm.rank() == n - 1 ? x : Tensor(), n - 1);
      const std::vector<Tensor> same = all_gather_same(comm, x);
      for (int64_t i = 0; i < 3 * rows; i += 11) {
        ASSERT_EQ(reduced.at<float>(i / 3, i % 3), value(n - 1, time, i));
        ASSERT_EQ(told.at<float>(i / 3, i % 3), value(n - 1, time, i));
        for (int r = 0; r < n; ++r) ASSERT_EQ(same[static_cast<size_t>(r)].at<float>(i / 3, i % 3), value(r, time, i));
      }
      const int64_t first = 3 * kLong * comm.rank();
      for (int64_t i = 0; i < 3 * kLong; i += 7) {
        ASSERT_EQ(part.at<float>(i / 3, i % 3), value(n - 1, time, first + i));
        for (int r = 0; r < n; ++r) {
          ASSERT_EQ(crossed.tensor.at<float>(r * kLong + i / 3, i % 3), value(r, time, first + i));
        }
      }
    }
  });
}

// Of 8 to 16 KiB, of which each reads a part: the rest of a record stays as it was. Now and then one rank says something
// else: the others have written their parts by then, and what is read of them is still those.
TEST_P(Again, WhereEachReadsAPart) {
  on_ranks([](Comm& comm) {
    const int64_t n = comm.size(), wide = 120 / n * n, each = wide / n;
    for (int time = 0; time < kTimes; ++time) {
      const auto rows_of = [&](int64_t rank) {
        return rank < n - 1 ? int64_t{20} : time == 5 ? int64_t{30} : time == 8 ? kLong : int64_t{24};
      };
      const int64_t rows = rows_of(comm.rank()), first = each * comm.rank();
      const auto at = [&](int64_t rank, int64_t row, int64_t column) {
        return value(static_cast<int>(rank), time, wide * row + column);
      };
      const Tensor x = Tensor::generate(DType::f32, {rows, wide}, [&](auto i) { return at(comm.rank(), i[0], i[1]); });
      const Tensor turned =
          Tensor::generate(DType::f32, {wide, rows}, [&](auto i) { return at(comm.rank(), i[1], i[0]); });
      const Gathered down = all_to_all(comm, x, {.split_dim = 1, .concat_dim = 0});
      const Gathered across = all_to_all(comm, turned, {.split_dim = 0, .concat_dim = 1});
      int64_t before = 0;
      for (int64_t r = 0; r < n; before += rows_of(r++)) {
        for (int64_t i = 0; i < rows_of(r) * each; ++i) {
          ASSERT_EQ(down.tensor.at<float>(before + i / each, i % each), at(r, i / each, first + i % each)) << time;
          ASSERT_EQ(across.tensor.at<float>(i % each, before + i / each), at(r, i / each, first + i % each)) << time;
        }
      }
    }
  });
}

TEST_P(Again, WhereEachReadsAPartOfOneDimension) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    const int64_t each = 2800 / n, first = each * comm.rank();
    const auto own = static_cast<size_t>(comm.rank());
    for (int time = 0; time < kTimes; ++time) {
      const auto at = [&](int rank, int64_t i) { return value(rank, time, i); };
      const Tensor x = Tensor::generate(DType::f32, {each * n}, [&](auto i) { return at(comm.rank(), i[0]); });
      // Its last rank sends its own part to the first instead.
      Sizes sizes(static_cast<size_t>(n), each);
      if (time % 4 == 3 && comm.rank() == n - 1 && n > 1) {
        sizes[0] += each;
        sizes[own] = 0;
      }
      const Gathered crossed = all_to_all_v(comm, x, sizes);
      Tensor part;  // from another line on the last rank
      if (comm.rank() == n - 1 && time % 4 == 3) part = reduce_scatter(comm, x, {.op = ReduceOp::max});
      else part = reduce_scatter(comm, x, {.op = ReduceOp::max});
      for (int64_t i = 0; i < each; ++i) ASSERT_EQ(part.at<float>(i), at(n - 1, first + i)) << time;
      int64_t arrived = 0;
      for (int r = 0; r < n; ++r) {
        const int64_t shift = r == n - 1 && time % 4 == 3 && n > 1 && comm.rank() > 0 ? each : 0;
        for (int64_t i = 0; i < crossed.sizes[static_cast<size_t>(r)]; ++i) {
          ASSERT_EQ(crossed.tensor.at<float>(arrived + i), at(r, first + shift + i)) << time;
        }
        arrived += crossed.sizes[static_cast<size_t>(r)];
      }
    }
  });
}

// A rank that has said where its result will be keeps to that when another one's record is new.
TEST_P(Again, ALongSumFromAnotherLineOnSomeRanks) {
  on_ranks([](Comm& comm) {
    for (int time = 0; time < kTimes; ++time) {
      const Tensor x = mine(comm, time, 2 * kLong);
      Tensor sum;
      if (comm.rank() == 0 && time % 4 == 3) sum = all_reduce(comm, x, ReduceOp::max);
      else sum = all_reduce(comm, x, ReduceOp::max);
      for (int64_t i = 0; i < 6 * kLong; ++i) {
        ASSERT_EQ(sum.at<float>(i / 3, i % 3), value(comm.size() - 1, time, i)) << "time " << time;
      }
    }
    EXPECT_EQ(comm.stats().exchanges, kTimes);
  });
}

// Nothing of the caller's is written before all have agreed.
TEST_P(Again, ADisagreementLeavesTheCallersOutputAsItIs) {
  for (const int64_t rows : {int64_t{2}, kLong}) {
    on_ranks([rows](Comm& comm) {
      if (comm.size() == 1) return;
      const Sizes sizes(static_cast<size_t>(comm.size()), rows);
      for (int time = 0; time < kTimes; ++time) {
        const bool wrong = time == 6 && comm.rank() == comm.size() - 1;
        const Tensor x = wrong ? Tensor::zeros(DType::f32, {4, 5}) : mine(comm, time, rows);
        const Tensor out = Tensor::full(DType::f32, {rows * comm.size(), 3}, -1.0f), before = out.clone();
        const auto thrown = test::thrown_by([&] { all_gather(comm, x, {.out = out}); });
        EXPECT_EQ(thrown.type, time == 6 ? "MismatchError" : "nothing") << thrown;
        if (time != 6) {
          expect_gathered({out, sizes}, time, sizes);
          continue;
        }
        EXPECT_TRUE(out.equals(before));
      }
    });
  }
}

// A result is written again only when nobody has it, or a view of it, any more.
TEST_P(Again, ResultsThatAreHeldStayAsTheyAre) {
  on_ranks([](Comm& comm) {
    const Sizes sizes(static_cast<size_t>(comm.size()), 2);
    Tensor last_row;
    Gathered held;
    for (int time = 0; time < 3 * kTimes; ++time) {
      const Gathered all = all_gather(comm, mine(comm, time, 2));
      expect_gathered(all, time, sizes);
      if (time > 0) {
        ASSERT_EQ(last_row.at<float>(2), value(comm.size() - 1, time - 1, 5));
      }
      last_row = all.tensor.select(0, 2 * comm.size() - 1);
      if (time == 6) held = all;
    }
    expect_gathered(held, 6, sizes);
    EXPECT_EQ(comm.stats().allocations, 3 * kTimes);
  });
}

TEST_P(Again, AsParts) {
  on_ranks([](Comm& comm) {
    for (const int64_t rows : {int64_t{2}, kLong}) {
      for (int time = 0; time < 5; ++time) {
        const Parts all = run(comm, AllGatherParts{.x = mine(comm, time, rows)});
        ASSERT_EQ(all.parts.size(), static_cast<size_t>(comm.size()));
        for (int r = 0; r < comm.size(); ++r) {
          ASSERT_EQ(all.parts[static_cast<size_t>(r)].at<float>(rows - 1, 2), value(r, time, 3 * rows - 1));
        }
      }
    }
  });
}

// Where a list has a long tensor too, a small sum takes two rounds as well, and peers read its output.
TEST_P(Again, ASmallSumInPlaceBesideALongGather) {
  on_ranks([](Comm& comm) {
    for (int time = 0; time < 6; ++time) {
      const int64_t rows = time % 3 == 2 ? 2 : kLong;
      const Tensor y = mine(comm, time, 3);
      const auto [all, sum] =
          run(comm, AllGather{.x = mine(comm, time, rows)}, AllReduce{.x = y, .op = ReduceOp::max, .out = y});
      expect_gathered(all, time, Sizes(static_cast<size_t>(comm.size()), rows));
      for (int64_t i = 0; i < 9; ++i) ASSERT_EQ(y.at<float>(i / 3, i % 3), value(comm.size() - 1, time, i));
    }
  });
}

// From one line: what some ranks know from before is none of the others' business.
TEST_P(Again, FromAnotherLineOnSomeRanks) {
  on_ranks([](Comm& comm) {
    const Sizes sizes(static_cast<size_t>(comm.size()), 2);
    for (int time = 0; time < kTimes; ++time) {
      const Tensor x = mine(comm, time, 2);
      if (comm.rank() == 0 && time % 3 == 2) expect_gathered(all_gather(comm, x), time, sizes);
      else expect_gathered(all_gather(comm, x), time, sizes);
    }
  });
}

TEST_P(Again, ByThemselves) {
  on_ranks([](Comm& comm) {
    const Sizes sizes(static_cast<size_t>(comm.size()), 3);
    std::vector<WorkOf<Gathered>> works;
    for (int time = 0; time < kTimes; ++time) works.push_back(start(comm, AllGather{.x = mine(comm, time, 3)}));
    for (int time = 0; time < kTimes; ++time) expect_gathered(works[static_cast<size_t>(time)].get(), time, sizes);
  });
}

}  // namespace
}  // namespace tessera::testing_support
