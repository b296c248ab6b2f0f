// Calls that were started and go on by themselves.
#include <atomic>
#include <future>
#include <map>
#include <mutex>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

// Holds rank 0 back before it announces call `held`, until let go.
class Gate {
 public:
  explicit Gate(int64_t held) : held_(held) {}
  RunOptions options() {
    return {.probe = [this](Moment moment, int rank, int64_t call) {
      if (moment == Moment::before_announce && rank == 0 && call == held_) open_.get_future().wait();
    }};
  }
  void open() { open_.set_value(); }

 private:
  int64_t held_;
  std::promise<void> open_;
};

TEST(Started, CallsRunInTheirOrder) {
  run(3, [](Comm& comm) {
    std::vector<WorkOf<Gathered>> gathers;
    std::vector<WorkOf<Tensor>> sums;
    for (int64_t i = 0; i < 10; ++i) {
      gathers.push_back(start(comm, AllGather{.x = number(i * 10 + comm.rank(), comm.rank())}));
      sums.push_back(start(comm, AllReduce{.x = number(i + comm.rank())}));
    }
    for (int64_t i = 10; i-- > 0;) {  // waited for in another order than started
      EXPECT_EQ(sums[static_cast<size_t>(i)].get().at<int64_t>(0), 3 * i + 3);
      const auto [all, sizes] = gathers[static_cast<size_t>(i)].get();
      EXPECT_EQ(sizes, (Sizes{0, 1, 2}));
      EXPECT_EQ(all.at<int64_t>(0), i * 10 + 1);
      EXPECT_EQ(all.at<int64_t>(2), i * 10 + 2);
    }
    const auto calls = comm.recent_calls();
    ASSERT_EQ(calls.size(), 20u);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(calls[i].number, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(calls[i].operation, i % 2 == 0 ? "all_gather" : "all_reduce");
    }
  });
}

// Which thread ran each call of rank 0.
TEST(SynchronousCall, RunsOnTheCallersThreadUnlessSomethingIsPending) {
  std::mutex guard;
  std::map<int64_t, std::thread::id> ran_on;
  std::promise<void> let_go;
  const auto probe = [&](Moment moment, int rank, int64_t call) {
    if (moment != Moment::before_announce || rank != 0) return;
    if (call == 2) let_go.get_future().wait();
    std::lock_guard lock(guard);
    ran_on[call] = std::this_thread::get_id();
  };
  std::thread::id caller;
  run(2,
      [&](Comm& comm) {
        if (comm.rank() == 0) caller = std::this_thread::get_id();
        expect_alive(comm);  // 1: nothing pending
        auto pending = start(comm, AllReduce{.x = number(1)});
        std::thread opener;
        if (comm.rank() == 0) {
          opener = std::thread([&] {
            std::this_thread::sleep_for(milliseconds(20));
            let_go.set_value();
          });
        }
        const auto all = all_gather(comm, number(comm.rank()));  // 3: waits for 2
        if (comm.rank() == 0) {
          EXPECT_TRUE(pending.done());
          opener.join();
        }
        EXPECT_EQ(all.tensor.at<int64_t>(1), 1);
        EXPECT_EQ(pending.get().at<int64_t>(0), 2);
        comm.barrier();  // 4: nothing pending any more
      },
      {.probe = probe});
  EXPECT_EQ(ran_on.at(1), caller);
  EXPECT_NE(ran_on.at(2), caller);
  EXPECT_EQ(ran_on.at(3), ran_on.at(2));
  EXPECT_EQ(ran_on.at(4), caller);
}

TEST(Work, KeepsItsTensorsAlive) {
  Gate gate(1);
  std::atomic<int> freed{0};
  run(
      2,
      [&](Comm& comm) {
        WorkOf<Gathered> work;
        {
          auto* memory = new int64_t[4]{1, 2, 3, 4 + comm.rank()};
          const std::shared_ptr<void> owner(memory, [&](void* p) {
            delete[] static_cast<int64_t*>(p);
            ++freed;
          });
          work = start(comm, AllGather{.x = Tensor::view(memory, DType::i64, {4}, {1}, owner),
                                       .out = Tensor::empty(DType::i64, {8})});
        }
        if (comm.rank() == 0) {
          EXPECT_FALSE(work.done());
          EXPECT_EQ(freed, 0);
          gate.open();
        }
        const Tensor all = work.get().tensor;
        EXPECT_EQ(all.at<int64_t>(3), 4);
        EXPECT_EQ(all.at<int64_t>(7), 5);
        comm.barrier();
        work = {};
      },
      gate.options());
  EXPECT_EQ(freed, 2);
}

TEST(Work, DroppedCompletesFirst) {
  Gate gate(1);
  run(
      2,
      [&](Comm& comm) {
        const Tensor out = Tensor::zeros(DType::i64, {2});
        std::thread opener;
        {
          const auto work = start(comm, AllGather{.x = number(comm.rank() + 5), .out = out});
          if (comm.rank() == 0) {
            EXPECT_FALSE(work.done());
            opener = std::thread([&] {
              std::this_thread::sleep_for(milliseconds(20));
              gate.open();
            });
          }
        }
        EXPECT_EQ(out.at<int64_t>(0), 5);
        EXPECT_EQ(out.at<int64_t>(1), 6);
        if (opener.joinable()) opener.join();
      },
      gate.options());
}

Tensor odd_one(const Comm& comm) { return Tensor::full(DType::f32, {1, comm.rank() == 1 ? 3 : 2}, 0); }

TEST(Work, DroppedWithAnErrorTellsItAtTheNextCallOnEveryRank) {
  std::vector<Thrown> all(3), one(3);
  run(3, [&](Comm& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    { const auto work = start(comm, AllGather{.x = odd_one(comm)}); }
    all[me] = thrown_by([&] { comm.barrier(); });
    expect_alive(comm);  // told once
    // Dropped on rank 2 alone; the others have seen it.
    {
      const auto work = start(comm, AllGather{.x = odd_one(comm)});
      const Thrown waited = thrown_by([&] {
        if (comm.rank() != 2) work.wait();
      });
      EXPECT_EQ(waited.type, comm.rank() != 2 ? "MismatchError" : "nothing");
    }
    one[me] = thrown_by([&] { start(comm, AllReduce{.x = number(1)}).get(); });
    expect_alive(comm);
  });
  EXPECT_EQ(same_for_all(all).type, "MismatchError");
  EXPECT_TRUE(contains(all[0].text, "ranks 0-2: a call whose Work was dropped had failed: call #1 ")) << all[0];
  EXPECT_TRUE(contains(all[0].text, "dim 1 is 3, rank 0 has 2")) << all[0];
  EXPECT_EQ(same_for_all(one).type, "MismatchError");
  EXPECT_TRUE(contains(one[0].text, "rank  2: a call whose Work was dropped had failed: call #4 ")) << one[0];
}

TEST(Work, WaitedForTwiceThrowsTwiceAndThenNoMore) {
  run(2, [](Comm& comm) {
    {
      auto work = start(comm, AllGather{.x = odd_one(comm)});
      const Thrown first = thrown_by([&] { work.wait(); });
      EXPECT_EQ(first.type, "MismatchError");
      EXPECT_TRUE(work.done());
      EXPECT_EQ(thrown_by([&] { work.wait(); }), first);
      EXPECT_EQ(thrown_by([&] { work.get(); }), first);
    }
    expect_alive(comm);
  });
}

TEST(Work, MovedKeepsItsCall) {
  Gate gate(1);
  run(
      2,
      [&](Comm& comm) {
        auto a = start(comm, AllGather{.x = number(comm.rank())});
        WorkOf<Gathered> b = std::move(a);
        EXPECT_TRUE(a.done());  // NOLINT(bugprone-use-after-move): an empty Work has nothing to wait for
        a.wait();
        if (comm.rank() == 0) {
          EXPECT_FALSE(b.done());
          gate.open();
        }
        a = std::move(b);
        EXPECT_EQ(a.get().tensor.at<int64_t>(1), 1);
        const Work none;
        EXPECT_TRUE(none.done());
        none.wait();
      },
      gate.options());
}

TEST(Started, ManyAtOnce) {
  run(3, [](Comm& comm) {
    std::vector<WorkOf<Tensor>> works;
    for (int64_t i = 0; i < 500; ++i) works.push_back(start(comm, AllReduce{.x = number(i * comm.rank())}));
    for (int64_t i = 0; i < 500; ++i) EXPECT_EQ(works[static_cast<size_t>(i)].get().at<int64_t>(0), 3 * i);
  });
}

TEST(Started, AListHasOneAgreement) {
  run(3, [](Comm& comm) {
    std::vector<Broadcast> ops;
    for (int root = 0; root < 3; ++root) {
      ops.push_back({.x = comm.rank() == root ? number(root * 7) : Tensor(), .root = root});
    }
    auto work = start(comm, ops);
    const std::vector<Tensor> results = work.get();
    ASSERT_EQ(results.size(), 3u);
    for (int64_t root = 0; root < 3; ++root) EXPECT_EQ(results[static_cast<size_t>(root)].at<int64_t>(0), root * 7);
    EXPECT_EQ(comm.stats().exchanges, 1);
    EXPECT_EQ(comm.stats().calls, 3);
    EXPECT_TRUE(start(comm, std::vector<AllGather>{}).get().empty());
  });
}

TEST(Started, OnACommThatIsDestroyedCompletes) {
  run(2, [](Comm& comm) {
    WorkOf<Gathered> work;
    {
      Comm child = comm.split(0);
      if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(20));
      work = start(child, AllGather{.x = number(comm.rank() + 1)});
    }
    EXPECT_TRUE(work.done());
    EXPECT_EQ(work.get().tensor.at<int64_t>(1), 2);
    work = {};
    expect_alive(comm);
  });
}

TEST(Started, FailsOnEveryRankWhenOneIsLate) {
  std::atomic<int> out{0};
  std::vector<Thrown> first(3), second(3);
  run(3, [&](Comm& comm) {
    comm.barrier();
    comm.set_timeout(milliseconds(200));
    const auto me = static_cast<size_t>(comm.rank());
    if (comm.rank() == 1) {
      wait_until(out, 2);
      first[me] = thrown_by([&] { start(comm, AllReduce{.x = number(1)}); });  // dead: there is nothing to start
      return;
    }
    auto a = start(comm, AllReduce{.x = number(1)});
    auto b = start(comm, AllReduce{.x = number(1)});
    second[me] = thrown_by([&] { b.wait(); });
    first[me] = thrown_by([&] { a.wait(); });
    ++out;
  });
  EXPECT_EQ(first[0].type, "TimeoutError");
  EXPECT_EQ(first[0], first[2]);
  EXPECT_EQ(second[0].type, "AbortedError");
  EXPECT_EQ(second[0], second[2]);
  EXPECT_EQ(first[1].type, "AbortedError");
}

TEST(Started, DroppedByARankThatThrowsDoNotHangTheOthers) {
  const Thrown all = thrown_by([] {
    run(3, [](Comm& comm) {
      std::vector<WorkOf<Tensor>> works;
      for (int i = 0; i < 20; ++i) works.push_back(start(comm, AllReduce{.x = number(i)}));
      if (comm.rank() == 1) throw std::runtime_error("boom");
      for (auto& work : works) work.wait();
      const Thrown after = thrown_by([&] { start(comm, AllReduce{.x = number(1)}).wait(); });
      EXPECT_TRUE(after.type == "PeerLostError" || after.type == "AbortedError") << after;  // the second to come
      EXPECT_TRUE(contains(after.text, "rank 1 left")) << after;
    });
  });
  EXPECT_EQ(all.text, "rank 1: boom");
}

TEST(Started, AnAbortEndsWhatIsPending) {
  std::atomic<int> out{0};
  run(2, [&](Comm& comm) {
    if (comm.rank() == 1) {
      comm.abort("enough");
      wait_until(out, 1);
      return;
    }
    Thrown thrown;
    try {
      auto work = start(comm, AllReduce{.x = number(1)});  // throws itself where the abort came first
      thrown = thrown_by([&] { work.wait(); });
    } catch (const AbortedError& error) {
      thrown = {"AbortedError", error.what()};
    }
    EXPECT_EQ(thrown.type, "AbortedError");
    EXPECT_TRUE(contains(thrown.text, "enough")) << thrown;
    ++out;
  });
}

}  // namespace
}  // namespace tessera::test
