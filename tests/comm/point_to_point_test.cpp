// Messages between two ranks.
#include <atomic>
#include <set>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"

namespace tessera::test {
namespace {

TEST(SendRecv, InEitherOrder) {
  run(2, [](Comm& comm) {
    for (int64_t i = 0; i < 20; ++i) {
      if (comm.rank() == 0) {
        send(comm, number(i, 3), 1);
      } else {
        const auto [tensor, source] = recv(comm, 0);
        EXPECT_EQ(source, 0);
        EXPECT_TRUE(tensor.equals(number(i, 3)));
      }
    }
    auto posted = start_recv(comm, 1 - comm.rank());
    send(comm, number(comm.rank()), 1 - comm.rank());  // both send first
    EXPECT_EQ(posted.get().tensor.at<int64_t>(0), 1 - comm.rank());
  });
}

TEST(SendRecv, PostedSendsDoNotWait) {
  run(3, [](Comm& comm) {
    std::vector<Work> sends;
    for (int to = 0; to < 3; ++to) sends.push_back(start_send(comm, number(comm.rank() * 10 + to), to));
    for (int from = 0; from < 3; ++from) {  // itself too
      EXPECT_EQ(recv(comm, from).tensor.at<int64_t>(0), from * 10 + comm.rank());
    }
    for (Work& work : sends) work.wait();
    EXPECT_TRUE(sends[0].done());
  });
}

TEST(SendRecv, TagsOutOfOrder) {
  run(2, [](Comm& comm) {
    if (comm.rank() == 0) {
      std::vector<Work> sends;
      for (int64_t tag = 0; tag < 5; ++tag) sends.push_back(start_send(comm, number(tag), 1, tag));
      sends.push_back(start_send(comm, number(100), 1, 4));  // a second one of the same tag stays behind the first
      sends.clear();
    } else {
      for (int64_t tag = 5; tag-- > 0;) EXPECT_EQ(recv(comm, 0, tag).tensor.at<int64_t>(0), tag);
      EXPECT_EQ(recv(comm, 0, 4).tensor.at<int64_t>(0), 100);
    }
  });
}

TEST(SendRecv, FromAnySource) {
  run(5, [](Comm& comm) {
    if (comm.rank() != 2) {
      send(comm, number(comm.rank()), 2, 9);
      return;
    }
    std::set<int> sources;
    for (int i = 0; i < 4; ++i) {
      const auto [tensor, source] = recv(comm, kAnySource, 9);
      EXPECT_EQ(tensor.at<int64_t>(0), source);
      sources.insert(source);
    }
    EXPECT_EQ(sources, (std::set<int>{0, 1, 3, 4}));
  });
}

TEST(SendRecv, ToItself) {
  run(1, [](Comm& comm) {
    auto posted = start_recv(comm, 0, 3);
    EXPECT_FALSE(posted.done());
    send(comm, number(8), 0, 3);
    EXPECT_TRUE(posted.done());
    EXPECT_EQ(posted.get().tensor.at<int64_t>(0), 8);
  });
}

TEST(SendRecv, IntoTheCallersMemoryWithAnyStrides) {
  run(2, [](Comm& comm) {
    const auto value = [](std::span<const int64_t> at) { return 10 * at[0] + at[1]; };
    if (comm.rank() == 0) {
      send(comm, Tensor::generate(DType::i64, {3, 2}, value).transpose(0, 1), 1);
      send(comm, Tensor::empty(DType::i64, {0, 4}), 1);
      send(comm, Tensor::full(DType::i64, {}, 6), 1);
    } else {
      const Tensor wide = Tensor::zeros(DType::i64, {2, 5});
      const auto got = recv(comm, 0, 0, wide.narrow(1, 1, 3));
      EXPECT_TRUE(got.tensor.equals(Tensor::generate(DType::i64, {3, 2}, value).transpose(0, 1).clone()));
      EXPECT_EQ(wide.at<int64_t>(1, 3), 21);
      EXPECT_EQ(wide.at<int64_t>(1, 0) + wide.at<int64_t>(1, 4), 0);
      EXPECT_EQ(recv(comm, 0).tensor.shape(), (Dims{0, 4}));
      EXPECT_EQ(recv(comm, 0).tensor.at<int64_t>(), 6);
    }
  });
}

TEST(SendRecv, CountsWhatMoved) {
  run(2, [](Comm& comm) {
    if (comm.rank() == 0) send(comm, number(1, 100), 1);
    else recv(comm, 0);
    const Stats stats = comm.stats();
    EXPECT_EQ(stats.calls, 1);
    EXPECT_EQ(stats.bytes_sent, comm.rank() == 0 ? 800 : 0);
    EXPECT_EQ(stats.bytes_received, comm.rank() == 1 ? 800 : 0);
  });
}

TEST(SendRecv, ThatDoNotFitAreAMismatchOnBothSides) {
  std::vector<Thrown> shape(2), dtype(2);
  run(2, [&](Comm& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    const auto pair = [&](const Tensor& sent, const Tensor& out) {
      return thrown_by([&] {
        if (comm.rank() == 0) send(comm, sent, 1, 4);
        else recv(comm, 0, 4, out);
      });
    };
    const Tensor out = number(7, 3);
    shape[me] = pair(number(1, 2), out);
    dtype[me] = pair(Tensor::full(DType::f32, {3}, 1), out);
    EXPECT_TRUE(out.equals(number(7, 3)));
    EXPECT_EQ(comm.stats().bytes_received + comm.stats().bytes_sent, 0);
    expect_alive(comm);
    EXPECT_EQ(pair(number(1, 3), out).type, "nothing");
  });
  EXPECT_EQ(same_for_all(shape).type, "MismatchError");
  for (const char* part : {"a message of tag 4 does not fit its receive", "rank 0: sends int64 [2]",
                           "point_to_point_test.cpp:", "rank 1: receives into int64 [3]",
                           "Give the same dtype and shape on both sides", "Nothing was moved."}) {
    EXPECT_TRUE(contains(shape[0].text, part)) << part << "\nis not in\n" << shape[0];
  }
  EXPECT_EQ(same_for_all(dtype).type, "MismatchError");
  EXPECT_TRUE(contains(dtype[0].text, "rank 0: sends float32 [3]")) << dtype[0];
}

// Both wait for what never comes; the first to give up ends the communicator for all, with one message.
TEST(SendRecv, ThatNobodyAnswersTimesOut) {
  std::vector<Thrown> thrown(3);
  run(3, [&](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 0) comm.set_timeout(milliseconds(400));
    thrown[static_cast<size_t>(comm.rank())] = thrown_by([&] {
      if (comm.rank() == 0) recv(comm, 2, 11);
      else if (comm.rank() == 1) send(comm, number(1), 0, 12);
      else recv(comm, kAnySource, 13);
    });
    EXPECT_THROW(comm.barrier(), AbortedError);
  });
  const Thrown all = same_for_all(thrown);
  EXPECT_EQ(all.type, "TimeoutError");
  EXPECT_TRUE(contains(all.text, "recv from rank 2 (tag 11) at point_to_point_test.cpp:")) << all;
  EXPECT_TRUE(contains(all.text, "rank 2 did not come within 0.4 s")) << all;
}

TEST(SendRecv, ARingOfSendsIsToldWhatItWaitsFor) {
  for (const int ranks : {2, 3, 4, 7}) {
    for (const bool after_a_call : {false, true}) {
      std::vector<Thrown> thrown(static_cast<size_t>(ranks));
      std::atomic<int> ready{0};
      run(ranks, [&](Comm& comm) {
        if (after_a_call) comm.barrier();
        ++ready;
        wait_until(ready, ranks);
        comm.set_timeout(milliseconds(400));
        const auto mine = [&] { send(comm, number(1), (comm.rank() + 1) % comm.size(), 5); };
        thrown[static_cast<size_t>(comm.rank())] = thrown_by(mine);
        EXPECT_FALSE(comm.recent_calls().back().error.empty());
      });
      const Thrown all = same_for_all(thrown);
      EXPECT_EQ(all.type, "TimeoutError");
      EXPECT_TRUE(contains(all.text, "A send waits until its message is received.")) << all;
      EXPECT_TRUE(contains(all.text, "start_send()")) << all;
      for (int r = 0; r < ranks; ++r) {
        const std::string seen =
            fmt::format("rank {}: last seen in send{}\n", r, after_a_call ? ", after call #1" : "");
        EXPECT_TRUE(contains(all.text, seen)) << all;
      }
      EXPECT_TRUE(contains(all.text, "(tag 5) at point_to_point_test.cpp:")) << all;
      EXPECT_FALSE(contains(all.text, ": none")) << all;
    }
  }
}

TEST(SendRecv, FromAnybodyNamesEverybodyWhoDidNotCome) {
  std::atomic<bool> out{false};
  run(3, [&](Comm& comm) {
    comm.barrier();
    if (comm.rank() != 1) {
      wait_until(out, true);
      return;
    }
    comm.set_timeout(milliseconds(100));
    const Thrown thrown = thrown_by([&] { recv(comm, kAnySource); });
    EXPECT_EQ(thrown.type, "TimeoutError");
    EXPECT_TRUE(contains(thrown.text, "recv from any rank (tag 0)")) << thrown;
    EXPECT_TRUE(contains(thrown.text, "ranks 0,2 did not come")) << thrown;
    out = true;
  });
}

TEST(SendRecv, WithARankThatLeft) {
  const auto thrown = thrown_by_ranks(3, [](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) return;
    if (comm.rank() == 0) recv(comm, 1);
    else send(comm, number(1), 1);
  });
  for (const size_t r : {0, 2}) {
    EXPECT_TRUE(thrown[r].type == "PeerLostError" || thrown[r].type == "AbortedError")
        << thrown[r];  // the second to come
    EXPECT_TRUE(contains(thrown[r].text, "rank 1 left while others were waiting")) << thrown[r];
  }
}

TEST(SendRecv, FromAnybodyWhenAllHaveLeft) {
  const auto thrown = thrown_by_ranks(3, [](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 0) recv(comm, kAnySource);
  });
  EXPECT_EQ(thrown[0].type, "PeerLostError");
}

// What was sent before its sender left is still there.
TEST(SendRecv, AMessageThatMetItsReceiveSurvivesItsSender) {
  run(2, [](Comm& comm) {
    if (comm.rank() == 0) {
      auto posted = start_recv(comm, 1);
      while (!posted.done()) std::this_thread::yield();
      EXPECT_EQ(posted.get().tensor.at<int64_t>(0), 5);
    } else {
      send(comm, number(5), 0);
    }
  });
}

TEST(SendRecv, DroppedAndNeverAnsweredEndsTheCommunicator) {
  std::atomic<bool> out{false};
  run(2, [&](Comm& comm) {
    comm.barrier();
    comm.set_timeout(milliseconds(100));
    if (comm.rank() == 0) {
      { const auto dropped = start_recv(comm, 1, 77); }
      const Thrown next = thrown_by([&] { comm.barrier(); });
      EXPECT_EQ(next.type, "AbortedError");
      EXPECT_TRUE(contains(next.text, "recv from rank 1 (tag 77)")) << next;
      out = true;
    } else {
      wait_until(out, true);
      EXPECT_THROW(comm.barrier(), AbortedError);
    }
  });
}

TEST(SendRecv, DroppedMismatchIsToldAtTheNextCall) {
  std::vector<Thrown> thrown(2);
  run(2, [&](Comm& comm) {
    const Thrown sent = thrown_by([&] {
      if (comm.rank() == 0) send(comm, number(1, 2), 1);
      else start_recv(comm, 0, 0, number(0, 3));
    });
    EXPECT_EQ(sent.type, comm.rank() == 0 ? "MismatchError" : "nothing");
    thrown[static_cast<size_t>(comm.rank())] = thrown_by([&] { comm.barrier(); });
    expect_alive(comm);
  });
  EXPECT_EQ(same_for_all(thrown).type, "MismatchError");
  EXPECT_TRUE(contains(thrown[0].text, "rank  1: a call whose Work was dropped had failed: a message of tag 0"))
      << thrown[0];
}

// A message does not queue behind a started collective, and may fail while that one runs on the worker.
TEST(SendRecv, BesideAPendingCollective) {
  run(2, [](Comm& comm) {
    for (int64_t i = 0; i < 50; ++i) {
      auto sum = start(comm, AllReduce{.x = number(i)});
      if (comm.rank() == 0) send(comm, number(i), 1);
      else EXPECT_EQ(recv(comm, 0).tensor.at<int64_t>(0), i);
      EXPECT_EQ(sum.get().at<int64_t>(0), 2 * i);
    }
  });
  std::atomic<bool> out{false};
  run(2, [&](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 1) {
      wait_until(out, true);
      return;
    }
    comm.set_timeout(milliseconds(100));
    std::vector<WorkOf<Tensor>> works;
    for (int i = 0; i < 3; ++i) works.push_back(start(comm, AllReduce{.x = number(i)}));
    EXPECT_EQ(thrown_by([&] { recv(comm, 1); }).type, "TimeoutError");
    for (auto& work : works) EXPECT_NE(thrown_by([&] { work.wait(); }).type, "nothing");
    out = true;
  });
}

// One sends from memory that goes as soon as send() comes out; its receiver posts a little later.
TEST(SendRecv, TheSendersMemoryIsItsOwnAgain) {
  run(2, [](Comm& comm) {
    for (int64_t i = 0; i < 100; ++i) {
      if (comm.rank() == 0) {
        std::vector<int64_t> memory(1000, i);
        send(comm, Tensor::view(std::span(memory), {1000}), 1);
      } else {
        if (i % 3 == 0) std::this_thread::yield();
        EXPECT_TRUE(recv(comm, kAnySource).tensor.equals(number(i, 1000)));
      }
    }
  });
}

TEST(SendRecv, TheReceiversMemoryIsItsOwnAfterATimeout) {
  std::atomic<bool> out{false};
  run(2, [&](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 0) {
      comm.set_timeout(milliseconds(50));
      {
        std::vector<int64_t> memory(1000);
        EXPECT_THROW(recv(comm, 1, 0, Tensor::view(std::span(memory), {1000})), TimeoutError);
      }
      out = true;
    } else {
      wait_until(out, true);
      EXPECT_THROW(send(comm, number(1, 1000), 0), AbortedError);
    }
  });
}

}  // namespace
}  // namespace tessera::test
