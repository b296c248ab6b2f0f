// Messages between two processes.
#include <signal.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

#include "support/failures.hpp"
#include "support/processes.hpp"
#include "transport/shm/mail.hpp"

namespace tessera::test {
namespace {

using shm::Way;
using testing_support::run_processes_well;

Tensor number(int64_t value, int64_t length = 1) { return Tensor::full(DType::i64, {length}, value); }

class Mail : public ::testing::TestWithParam<Way> {
 protected:
  static void on(int ranks, const std::function<void(Comm&)>& body) {
    run_processes_well(ranks, body, {.way = GetParam(), .run = {.timeout = std::chrono::seconds(60)}});
  }
};

TEST_P(Mail, OfAnySizeArrives) {
  on(2, [](Comm& comm) {
    for (const int64_t length : {0, 1, 1000, 100000}) {
      if (comm.rank() == 0) {
        send(comm, number(length + 7, length), 1, length);
        std::vector<int64_t> rows(static_cast<size_t>(3 * length + 1), 5);  // every third
        send(comm, Tensor::view(rows.data(), DType::i64, {length}, {3}), 1, length);
      } else {
        EXPECT_TRUE(recv(comm, 0, length).tensor.equals(number(length + 7, length)));
        EXPECT_TRUE(recv(comm, kAnySource, length).tensor.equals(number(5, length)));
      }
    }
  });
}

TEST_P(Mail, KeepsItsOrderByTagAndSource) {
  on(3, [](Comm& comm) {
    if (comm.rank() != 0) {
      std::vector<Work> sent;
      for (int64_t i = 0; i < 20; ++i) sent.push_back(start_send(comm, number(100 * comm.rank() + i), 0, i % 2));
      for (Work& work : sent) work.wait();
    } else {
      for (int64_t i = 1; i < 20; i += 2) EXPECT_EQ(recv(comm, 2, 1).tensor.at<int64_t>(0), 200 + i);
      for (int64_t i = 0; i < 20; i += 2) EXPECT_EQ(recv(comm, 1, 0).tensor.at<int64_t>(0), 100 + i);
      int64_t next[] = {0, 1, 0};  // of rank 1 the odd ones are left, of rank 2 the even ones
      for (int i = 0; i < 20; ++i) {
        const Received got = recv(comm, kAnySource, i < 10 ? 0 : 1);
        EXPECT_EQ(got.source, i < 10 ? 2 : 1);
        EXPECT_EQ(got.tensor.at<int64_t>(0), 100 * got.source + next[got.source]);
        next[got.source] += 2;
      }
    }
  });
}

// Posted before it is sent, it is received while its rank does something else.
TEST_P(Mail, AStartedReceiveGoesOnByItself) {
  on(2, [](Comm& comm) {
    for (int64_t i = 0; i < 20; ++i) {
      WorkOf<Received> posted;
      if (comm.rank() == 0) posted = start_recv(comm, 1);
      comm.barrier();
      if (comm.rank() == 1) send(comm, number(i, 3000), 0);  // comes out though rank 0 is in the barrier
      comm.barrier();
      if (comm.rank() == 0) {
        EXPECT_TRUE(posted.get().tensor.equals(number(i, 3000)));
      }
    }
  });
}

TEST_P(Mail, ToOneself) {
  on(2, [](Comm& comm) {
    auto posted = start_recv(comm, comm.rank(), 3);
    send(comm, number(comm.rank(), 5000), comm.rank(), 3);
    EXPECT_TRUE(posted.get().tensor.equals(number(comm.rank(), 5000)));
  });
}

TEST_P(Mail, ThatDoesNotFitIsAnErrorOnBothSides) {
  on(2, [](Comm& comm) {
    const Thrown thrown = thrown_by([&] {
      if (comm.rank() == 0) send(comm, number(1, 2), 1, 9);
      else recv(comm, 0, 9, Tensor::empty(DType::i64, {3}));
    });
    EXPECT_EQ(thrown.type, "MismatchError");
    EXPECT_TRUE(contains(thrown.text, "rank 0: sends int64 [2]")) << thrown;
    EXPECT_TRUE(contains(thrown.text, "rank 1: receives into int64 [3]")) << thrown;
    expect_alive(comm);
  });
}

TEST_P(Mail, ThatNobodyAnswersTimesOut) {
  on(2, [](Comm& comm) {
    comm.barrier();
    if (comm.rank() == 0) comm.set_timeout(milliseconds(300));
    const Thrown thrown = thrown_by([&] {
      if (comm.rank() == 0) recv(comm, 1, 11);
      else send(comm, number(1, 100000), 0, 12);
    });
    EXPECT_EQ(thrown.type, "TimeoutError") << thrown;
    EXPECT_TRUE(contains(thrown.text, "recv from rank 1 (tag 11)")) << thrown;
  });
}

TEST_P(Mail, InSeveralCommunicatorsAtOnce) {
  on(4, [](Comm& comm) {
    Comm half = comm.split(comm.rank() / 2), mirror = comm.split(0, -comm.rank());
    const int other = 1 - half.rank();
    auto a = start_recv(half, other, 5), b = start_recv(mirror, 3 - mirror.rank(), 5),
         c = start_recv(comm, 3 - comm.rank(), 5);
    send(half, number(10 + half.rank(), 2000), other, 5);
    send(comm, number(20 + comm.rank(), 10), 3 - comm.rank(), 5);
    send(mirror, number(30 + mirror.rank()), 3 - mirror.rank(), 5);
    EXPECT_EQ(a.get().tensor.at<int64_t>(0), 10 + other);
    EXPECT_EQ(b.get().tensor.at<int64_t>(0), 30 + 3 - mirror.rank());
    EXPECT_EQ(c.get().tensor.at<int64_t>(0), 20 + 3 - comm.rank());
  });
}

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  constexpr const char* kNames[] = {"choice", "place", "attaching", "staging"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(By, Mail, ::testing::ValuesIn(testing_support::ways()), name_of);

TEST(MailBox, ThatIsFullSaysSo) {
  run_processes_well(2, [](Comm& comm) {
    if (comm.rank() == 0) {
      std::vector<Work> sent;
      for (size_t i = 0; i < shm::Outbox::kEnvelopes; ++i) sent.push_back(start_send(comm, number(1), 1));
      const Thrown thrown = thrown_by([&] { start_send(comm, number(1), 1); });
      EXPECT_TRUE(contains(thrown.text, "wait for some of them first")) << thrown;
      comm.barrier();
      for (Work& work : sent) work.wait();
      send(comm, number(2), 1);
    } else {
      comm.barrier();
      for (size_t i = 0; i < shm::Outbox::kEnvelopes; ++i) EXPECT_EQ(recv(comm, 0).tensor.at<int64_t>(0), 1);
      EXPECT_EQ(recv(comm, 0).tensor.at<int64_t>(0), 2);
    }
  });
}

}  // namespace
}  // namespace tessera::test
