// Failures between ranks that have nothing but a carrier in common.
#include <gtest/gtest.h>

#include "support/failures.hpp"
#include "support/ranks.hpp"

namespace tessera::test {
namespace {

using testing_support::on_carrier;

TEST(OverACarrier, ACallThatARankGaveUpFailsForWhoComesLate) {
  std::atomic<int> given_up{0};
  on_carrier(2, [&](Comm& comm) {
    if (comm.rank() == 0) {
      comm.set_timeout(kShort);
    } else {
      wait_until(given_up, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until it has heard of that
    }
    const Thrown thrown = thrown_by([&] { all_gather(comm, number(comm.rank())); });
    EXPECT_EQ(thrown.type, "TimeoutError") << thrown;
    EXPECT_TRUE(contains(thrown.text, "rank 1 did not come within")) << thrown;
    ++given_up;
  });
}

TEST(OverACarrier, WhoStopsWithinASplitIsMissedWithinTheTimeout) {
  std::atomic<int> through{0};
  on_carrier(3, [&](Comm& comm) {
    if (comm.rank() == 2) {
      // It agrees to the split, and goes no further.
      const detail::Description agreed{.op = detail::OpCode::split_comm, .extra = {0, 0}};
      detail::Outcome outcome;
      detail::execute(comm, {&agreed, 1}, {&outcome, 1}, Site::current());
      return wait_until(through, 2);
    }
    comm.set_timeout(kShort);
    const Thrown thrown = thrown_by([&] { comm.split(0).barrier(); });
    EXPECT_EQ(thrown.type, "TimeoutError") << thrown;
    EXPECT_TRUE(contains(thrown.text, "rank 2 did not come within")) << thrown;
    ++through;
  });
}

TEST(OverACarrier, WhoGoesWithoutAWordIsLost) {
  for (const int gone : {0, 2}) {
    setenv("TESSERA_HOSTS", "3", 1);
    const auto boxes = std::make_shared<testing_support::Mailboxes>();
    run(3, [&](Comm& thread) {
      auto carrier = std::make_shared<testing_support::MailboxCarrier>(boxes, thread.rank());
      Comm comm = mpi::connect(carrier, thread.rank(), 3, {});
      expect_alive(comm);
      thread.barrier();
      if (thread.rank() == gone) {
        boxes->leave(gone);  // as if its process had been killed
      } else {
        const Thrown thrown = thrown_by([&] { comm.barrier(); });
        EXPECT_TRUE(thrown.type == "PeerLostError" || thrown.type == "AbortedError") << thrown;
        EXPECT_TRUE(contains(thrown.text, "rank " + std::to_string(gone) + " left")) << thrown;
        EXPECT_TRUE(contains(thrown.text, "its process is gone")) << thrown;
      }
      thread.barrier();
    });
    unsetenv("TESSERA_HOSTS");
  }
}

}  // namespace
}  // namespace tessera::test
