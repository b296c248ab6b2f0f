// The flight recorder, the statistics and the other local questions one can ask of a Comm.
#include <atomic>
#include <thread>

#include <nlohmann/json.hpp>

#include <tessera/tessera.hpp>

#include "comm/recorder.hpp"
#include "support/failures.hpp"

namespace tessera::test {
namespace {

TEST(Recorder, KeepsTheLast64CallsInOrder) {
  run(2, [](Comm& comm) {
    EXPECT_TRUE(comm.recent_calls().empty());
    for (int i = 0; i < 100; ++i) {
      if (i % 2 == 0) comm.barrier();
      else all_gather(comm, Tensor::full(DType::i32, {i}, 0));
    }
    const auto calls = comm.recent_calls();
    ASSERT_EQ(calls.size(), 64u);
    for (size_t k = 0; k < calls.size(); ++k) {
      const CallRecord& call = calls[k];
      const auto number = static_cast<int64_t>(k) + 37;
      EXPECT_EQ(call.number, number);
      EXPECT_EQ(call.operation, number % 2 == 1 ? "barrier" : "all_gather");
      EXPECT_EQ(call.bytes_received, number % 2 == 1 ? 0 : 4 * (number - 1));
      EXPECT_TRUE(call.site.starts_with("recorder_test.cpp:")) << call.site;
      EXPECT_TRUE(call.finished);
      EXPECT_TRUE(call.error.empty());
      EXPECT_LE(call.start, call.end);
      EXPECT_LE(k == 0 ? call.start : calls[k - 1].end, call.start);
    }
  });
}

TEST(Recorder, ShowsTheCallersLine) {
  run(2, [](Comm& comm) {
    const Tensor x = Tensor::full(DType::i32, {1}, 0);
    const int line = __LINE__ + 1;  // one call a line from here on
    comm.barrier();
    all_gather(comm, x);
    all_reduce(comm, x);
    tessera::run(comm, AllGather{.x = x}, AllReduce{.x = x});
    tessera::run(comm, std::vector{AllGather{.x = x}});
    start(comm, AllGather{.x = x}).wait();
    comm.split(0);
    const auto calls = comm.recent_calls();
    ASSERT_EQ(calls.size(), 7u);
    for (int i = 0; i < 7; ++i) {
      EXPECT_EQ(calls[static_cast<size_t>(i)].site, fmt::format("recorder_test.cpp:{}", line + i)) << "call " << i + 1;
    }
    EXPECT_EQ(calls[3].operation, "all_gather and 1 more");
  });
}

TEST(Recorder, KeepsMessagesAmongTheCalls) {
  run(2, [](Comm& comm) {
    const Tensor x = Tensor::full(DType::i32, {3}, 0);
    comm.barrier();
    const int line = __LINE__ + 1;
    if (comm.rank() == 0) send(comm, x, 1, 7);
    else recv(comm, kAnySource, 7);
    comm.barrier();
    auto calls = comm.recent_calls();
    ASSERT_EQ(calls.size(), 3u);
    EXPECT_EQ(calls[0].number, 1);
    EXPECT_EQ(calls[1].number, 0);
    EXPECT_EQ(calls[2].number, 2);
    EXPECT_EQ(calls[1].operation, comm.rank() == 0 ? "send to rank 1 (tag 7)" : "recv from any rank (tag 7)");
    EXPECT_EQ(calls[1].site, fmt::format("recorder_test.cpp:{}", line + comm.rank()));
    EXPECT_EQ(calls[1].bytes_received, comm.rank() == 0 ? 0 : 12);
    EXPECT_TRUE(calls[1].finished);
    EXPECT_TRUE(calls[1].error.empty());
    EXPECT_NE(comm.chrome_trace().find("(tag 7)"), std::string::npos);
    // Many of both: the last 64 of all, in order.
    for (int i = 0; i < 100; ++i) {
      if (comm.rank() == 0) send(comm, x, 1);
      else recv(comm, 0);
      comm.barrier();
    }
    calls = comm.recent_calls();
    ASSERT_EQ(calls.size(), 64u);
    for (size_t k = 0; k < calls.size(); ++k) {
      EXPECT_EQ(calls[k].number, k % 2 == 0 ? 0 : 71 + static_cast<int64_t>(k) / 2);
      EXPECT_LE(k == 0 ? calls[k].start : calls[k - 1].end, calls[k].start);
    }
  });
}

// More are under way than are kept: the end of one that is gone changes none of the others.
TEST(Recorder, ForgetsMessagesThatAreStillUnderWay) {
  run(1, [](Comm& comm) {
    std::vector<Work> sends;
    for (int i = 0; i < 70; ++i) sends.push_back(start_send(comm, number(i), 0));
    for (int i = 0; i < 5; ++i) {
      recv(comm, 0);
      sends[static_cast<size_t>(i)].wait();
    }
    const auto calls = comm.recent_calls();
    ASSERT_EQ(calls.size(), 64u);
    EXPECT_EQ(std::count_if(calls.begin(), calls.end(), [](const auto& call) { return call.finished; }), 5);
    for (int i = 5; i < 70; ++i) recv(comm, 0);
  });
}

TEST(Recorder, KeepsErrors) {
  run(2, [](Comm& comm) {
    const Thrown thrown = thrown_by([&] { all_gather(comm, Tensor::full(DType::i32, {1, comm.rank() + 1}, 0)); });
    comm.barrier();
    const auto calls = comm.recent_calls();
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_EQ(calls[0].error, thrown.text);
    EXPECT_TRUE(calls[0].finished);
    EXPECT_TRUE(calls[1].error.empty());
  });
}

// What goes on right now is there too, and not finished.
TEST(Recorder, ShowsACallThatIsUnderWay) {
  std::atomic<bool> looked{false};
  run(2, [&](Comm& comm) {
    if (comm.rank() == 1) {
      wait_until(looked, true);
      comm.barrier();
      return;
    }
    std::thread waits([&] { comm.barrier(); });
    while (comm.recent_calls().empty()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_FALSE(comm.recent_calls().at(0).finished);
    const auto trace = nlohmann::json::parse(comm.chrome_trace());
    EXPECT_EQ(trace["traceEvents"][0]["ph"], "B");
    looked = true;
    waits.join();
    EXPECT_TRUE(comm.recent_calls().at(0).finished);
  });
}

TEST(ChromeTrace, IsJsonWithAnEventForEachCall) {
  run(2,
      [](Comm& comm) {
        comm.barrier();
        all_gather(comm, Tensor::full(DType::f64, {3}, 0));
        EXPECT_THROW(all_gather(comm, Tensor::full(DType::f64, {1, comm.rank() + 1}, 0)), MismatchError);
        const auto trace = nlohmann::json::parse(comm.chrome_trace());
        const auto& events = trace.at("traceEvents");
        ASSERT_EQ(events.size(), 3u);
        double last = 0;
        for (size_t i = 0; i < events.size(); ++i) {
          EXPECT_EQ(events[i].at("ph"), "X");
          EXPECT_EQ(events[i].at("cat"), "a \"quoted\"\n\t\\ name");
          EXPECT_EQ(events[i].at("tid"), comm.rank());
          EXPECT_EQ(events[i].at("args").at("call"), i + 1);
          EXPECT_TRUE(events[i].at("args").at("site").get<std::string>().starts_with("recorder_test.cpp:"));
          EXPECT_GE(events[i].at("dur").get<double>(), 0);
          EXPECT_GE(events[i].at("ts").get<double>(), last);
          last = events[i].at("ts").get<double>();
        }
        EXPECT_EQ(events[0].at("name"), "barrier");
        EXPECT_EQ(events[1].at("name"), "all_gather");
        EXPECT_EQ(events[1].at("args").at("bytes_received"), 24);
        EXPECT_EQ(events[1].at("args").at("error"), "");
        EXPECT_TRUE(contains(events[2].at("args").at("error").get<std::string>(), "the ranks do not agree\n"));
      },
      {.name = "a \"quoted\"\n\t\\ name"});
}

TEST(ChromeTrace, OfNothingIsJsonToo) {
  run(1, [](Comm& comm) { EXPECT_TRUE(nlohmann::json::parse(comm.chrome_trace()).at("traceEvents").empty()); });
  CallRecord call;
  call.error = std::string("\x01\x1f\"\\/\b\f\n\r\t") + "\xc3\xa9";  // all that JSON asks to be escaped, and one letter
  const auto trace = nlohmann::json::parse(chrome_trace({call}, "c", 3));
  EXPECT_EQ(trace.at("traceEvents")[0].at("args").at("error"), call.error);
}

TEST(Stats, CountCallsMovesAndBytes) {
  run(3, [](Comm& comm) {
    const int64_t me = comm.rank();
    all_gather(comm, Tensor::full(DType::f32, {me + 1, 10}, 0));  // 1, 2 and 3 rows of 40 bytes
    Stats s = comm.stats();
    EXPECT_EQ(s.calls, 1);
    EXPECT_EQ(s.exchanges, 1);
    EXPECT_EQ(s.moves, 1);
    EXPECT_EQ(s.messages, 2);
    EXPECT_EQ(s.copies, 3);
    EXPECT_EQ(s.bytes_copied, 240);
    EXPECT_EQ(s.bytes_received, 240 - 40 * (me + 1));
    EXPECT_EQ(s.bytes_sent, 2 * 40 * (me + 1));
    EXPECT_EQ(s.allocations, 1);
    EXPECT_EQ(s.bytes_allocated, 240);
    comm.reset_stats();
    EXPECT_EQ(comm.stats().calls + comm.stats().bytes_copied + comm.stats().bytes_allocated, 0);

    comm.barrier();
    gather_sizes(comm, Tensor::full(DType::f32, {me + 1}, 0));
    s = comm.stats();
    EXPECT_EQ(s.calls, 2);
    EXPECT_EQ(s.exchanges, 2);
    EXPECT_EQ(s.moves + s.messages + s.copies + s.bytes_received + s.bytes_sent + s.allocations, 0);
    comm.reset_stats();

    // Into the caller's memory: nothing is allocated, and a part that lies in its place is not copied.
    const Tensor out = Tensor::zeros(DType::f32, {6, 10});
    const int64_t before[] = {0, 1, 3};
    all_gather(comm, out.narrow(0, before[me], me + 1), {.out = out});
    s = comm.stats();
    EXPECT_EQ(s.allocations, 0);
    EXPECT_EQ(s.copies, 2);
    EXPECT_EQ(s.bytes_copied, 240 - 40 * (me + 1));
  });
}

TEST(Timeout, IsSetAndGot) {
  run(1, [](Comm& comm) {
    EXPECT_EQ(comm.timeout(), std::chrono::minutes(5));
    comm.set_timeout(milliseconds(250));
    EXPECT_EQ(comm.timeout(), milliseconds(250));
    EXPECT_THROW(comm.set_timeout(milliseconds(0)), Error);
    EXPECT_THROW(comm.set_timeout(milliseconds(-1)), Error);
    EXPECT_EQ(comm.timeout(), milliseconds(250));
    EXPECT_EQ(comm.split(0).timeout(), milliseconds(250));
    comm.set_timeout(std::chrono::nanoseconds::max());  // must not wrap around into the past
    comm.barrier();
  });
  run(2, [](Comm& comm) { EXPECT_EQ(comm.timeout(), std::chrono::hours(3)); }, {.timeout = std::chrono::hours(3)});
  run(2,
      [](Comm& comm) {
        if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(20));
        expect_alive(comm);
      },
      {.timeout = std::chrono::nanoseconds::max()});
}

TEST(Name, IsTheOneGiven) {
  run(1, [](Comm& comm) { EXPECT_EQ(comm.name(), "dp"); }, {.name = "dp"});
  run(1, [](Comm& comm) { EXPECT_EQ(comm.name(), "world"); });
}

// A call like the ones before it is counted while it waits; then the statistics begin anew, and it is like them no more.
TEST(Stats, StartAnewWhileACallWaits) {
  std::atomic<bool> anew{false};
  run(2, [&](Comm& comm) {
    for (int time = 0; time < 5; ++time) {
      const bool last = time == 4;
      if (last && comm.rank() == 1) {
        while (!anew) std::this_thread::yield();
      }
      const int64_t rows = last && comm.rank() == 1 ? 3 : 2;
      Work work = start(comm, AllGather{.x = Tensor::full(DType::i32, {rows}, 1)});
      if (last && comm.rank() == 0) {
        while (comm.recent_calls().empty() || comm.recent_calls().back().number < 5) std::this_thread::yield();
        comm.reset_stats();
        anew = true;
      }
      work.wait();
    }
    if (comm.rank() == 1) return;
    EXPECT_EQ(comm.stats().moves, 1);
    EXPECT_EQ(comm.stats().bytes_received, 12);
    EXPECT_EQ(comm.stats().allocations, 1);
  });
}

}  // namespace
}  // namespace tessera::test
