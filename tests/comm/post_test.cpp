// What a Post does with messages, by the table of functions that it fills.
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <system_error>
#include <thread>

#include <gtest/gtest.h>

#include "support/mailboxes.hpp"
#include "transport/post/post.hpp"

namespace tessera::test {
namespace {

using mpi::CommHandle;
using mpi::Found;
using mpi::RequestHandle;
using post::api;
using post::Post;
using testing_support::MailboxCarrier;
using testing_support::Mailboxes;

constexpr size_t kMany = 300'000;  // bytes that do not go with the head

std::vector<std::unique_ptr<Post>> posts(int size) {
  const auto boxes = std::make_shared<Mailboxes>();
  std::vector<std::unique_ptr<Post>> all;
  for (int r = 0; r < size; ++r) {
    all.push_back(std::make_unique<Post>(std::make_shared<MailboxCarrier>(boxes, r), r, size));
  }
  return all;
}

CommHandle all_of(Post& post) { return reinterpret_cast<CommHandle>(&post.all()); }

RequestHandle send(CommHandle comm, int to, int tag, const std::string& text) {
  RequestHandle request = 0;
  EXPECT_EQ(api().isend(text.data(), static_cast<int64_t>(text.size()), to, tag, comm, &request), 0);
  return request;
}

RequestHandle receive(CommHandle comm, int from, int tag, std::string& text) {
  RequestHandle request = 0;
  EXPECT_EQ(api().irecv(text.data(), static_cast<int64_t>(text.size()), from, tag, comm, &request), 0);
  return request;
}

// The code with which it ended.
int end_of(RequestHandle request) {
  for (int32_t done = 0, which = 0;;) {
    const int code = api().test_some(1, &request, &done, &which);
    if (done == 1) return code;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

bool is_over(RequestHandle& request) {
  int32_t done = 0, which = 0;
  api().test_some(1, &request, &done, &which);
  return done == 1;
}

TEST(Post, MessagesOfATagComeInOrderBeTheyLongOrShort) {
  const auto both = posts(2);
  const CommHandle from = all_of(*both[0]), to = all_of(*both[1]);
  const std::string first(kMany, 'a'), second = "b", other = "c", third(kMany, 'd');
  std::vector<RequestHandle> sent;
  std::string got(kMany, '-'), last(kMany, '-');
  const RequestHandle posted = receive(to, 0, 7, got);  // one that waits, and others that come too late
  for (const auto& [tag, text] : {std::pair(7, &first), {7, &second}, {8, &other}, {7, &third}}) {
    sent.push_back(send(from, 1, tag, *text));
  }
  for (const RequestHandle request : sent) EXPECT_EQ(end_of(request), 0);
  EXPECT_EQ(end_of(posted), 0);
  EXPECT_EQ(got, first);
  Found found;
  for (int32_t flag = 0; flag == 0;) EXPECT_EQ(api().find(mpi::kAnySource, 8, to, &flag, &found), 0);
  EXPECT_EQ(found.source, 0);
  EXPECT_EQ(found.bytes, 1);
  std::string text(1, '-');
  RequestHandle request = 0;
  EXPECT_EQ(api().irecv_found(text.data(), 1, &found, &request), 0);
  EXPECT_EQ(end_of(request), 0);
  EXPECT_EQ(text, other);
  EXPECT_EQ(end_of(receive(to, mpi::kAnySource, 7, text)), 0);
  EXPECT_EQ(text, second);
  EXPECT_EQ(end_of(receive(to, 0, -1, last)), 0);
  EXPECT_EQ(last, third);
}

TEST(Post, AReceiveThatIsGivenUpTakesNothing) {
  const auto both = posts(2);
  std::string never(kMany, '-'), got(kMany, '-');
  const RequestHandle given_up = receive(all_of(*both[1]), 0, 1, never);
  EXPECT_EQ(api().cancel(given_up), 0);
  EXPECT_EQ(end_of(given_up), 0);
  const std::string text(kMany, 'x');
  const RequestHandle sent = send(all_of(*both[0]), 1, 1, text);
  EXPECT_EQ(end_of(receive(all_of(*both[1]), 0, 1, got)), 0);
  EXPECT_EQ(end_of(sent), 0);
  EXPECT_EQ(got, text);
  EXPECT_EQ(never, std::string(kMany, '-'));
}

TEST(Post, AMessageThatIsTooLongIsAnErrorAndTheNextOneIsNot) {
  const auto both = posts(2);
  for (const size_t bytes : {size_t{20}, kMany}) {
    for (const bool posted_first : {true, false}) {
      std::string brief(10, '-'), next(10, '-');
      const std::string text(bytes, 'x');
      RequestHandle request = 0;
      if (posted_first) request = receive(all_of(*both[1]), 0, 1, brief);
      EXPECT_EQ(end_of(send(all_of(*both[0]), 1, 1, text)), 0);
      if (!posted_first) request = receive(all_of(*both[1]), 0, 1, brief);
      const int code = end_of(request);
      char why[100];
      api().error_text(code, why, sizeof(why));
      EXPECT_STREQ(why, "a message is longer than its receive");
      EXPECT_EQ(brief, std::string(10, '-'));
      const RequestHandle more = send(all_of(*both[0]), 1, 1, "0123456789");
      EXPECT_EQ(end_of(receive(all_of(*both[1]), 0, 1, next)), 0);
      EXPECT_EQ(end_of(more), 0);
      EXPECT_EQ(next, "0123456789");
    }
  }
}

TEST(Post, ToItselfToo) {
  const auto one = posts(1);
  std::string got(kMany, '-');
  const RequestHandle sent = send(all_of(*one[0]), 0, 3, std::string(kMany, 'x'));
  EXPECT_EQ(end_of(receive(all_of(*one[0]), 0, 3, got)), 0);
  EXPECT_EQ(end_of(sent), 0);
  EXPECT_EQ(got, std::string(kMany, 'x'));
}

TEST(Post, SplitsIntoPartsAndKeepsWhatComesEarly) {
  constexpr int kRanks = 5;
  const auto all = posts(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&all, r] {
      CommHandle half = 0, copy = 0;
      const int32_t members[] = {r % 2 + 2, r % 2};
      ASSERT_EQ(api().split(all_of(*all[static_cast<size_t>(r)]), members, r == 4 ? 0 : 2, r < 2 ? 1 : 0, &half), 0);
      ASSERT_EQ(half == 0, r == 4);
      if (r == 4) return;
      int32_t rank = -1, size = -1;
      api().rank_and_size(half, &rank, &size);
      EXPECT_EQ(size, 2);
      EXPECT_EQ(rank, r < 2 ? 1 : 0);
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ASSERT_EQ(api().duplicate(half, &copy), 0);
      std::string got(1, '-');
      const RequestHandle sent = send(copy, 1 - rank, 2, std::string(1, static_cast<char>('0' + r)));
      EXPECT_EQ(end_of(receive(copy, 1 - rank, 2, got)), 0);
      EXPECT_EQ(got[0], static_cast<char>('0' + (r + 2) % 4));
      EXPECT_EQ(end_of(sent), 0);
      EXPECT_EQ(api().free(&copy), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A wait in there would be without the timeout of the call.
TEST(Post, SplittingWaitsForNobody) {
  const auto all = posts(3);
  const int32_t members[] = {2, 0};
  CommHandle early = 0, late = 0;
  std::string got(kMany, '-');
  ASSERT_EQ(api().split(all_of(*all[0]), members, 2, 1, &early), 0);
  const std::string text(kMany, 'x');
  const RequestHandle sent = send(early, 0, 4, text);
  EXPECT_EQ(end_of(sent), 0);
  ASSERT_EQ(api().split(all_of(*all[2]), members, 2, 0, &late), 0);
  EXPECT_EQ(end_of(receive(late, 1, 4, got)), 0);
  EXPECT_EQ(got, std::string(kMany, 'x'));
}

// As a user who may have no more threads.
void send_without_a_thread() {
  const auto both = posts(2);
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_NPROC, &none) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(1);
  const std::string text(kMany, 'x');
  RequestHandle request = 0;
  try {
    api().isend(text.data(), static_cast<int64_t>(text.size()), 1, 1, all_of(*both[0]), &request);
    _exit(2);
  } catch (const std::system_error&) {}
  Found found;
  int32_t flag = 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  api().find(0, 1, all_of(*both[1]), &flag, &found);
  _exit(flag == 0 ? 0 : 3);
}

TEST(Post, WhereNoThreadCanBeHadNothingIsSent) { EXPECT_EXIT(send_without_a_thread(), testing::ExitedWithCode(0), ""); }

TEST(Post, WhoIsGoneIsToldOfOnceAndWhatItShouldTakeIsOver) {
  auto all = posts(3);
  const CommHandle mine = all_of(*all[0]);
  int32_t lost = 5;
  api().next_lost(mine, &lost);
  EXPECT_EQ(lost, -1);
  std::string never(10, '-');
  RequestHandle waits = receive(mine, 2, 1, never);
  all[2].reset();
  while (lost < 0) api().next_lost(mine, &lost);
  EXPECT_EQ(lost, 2);
  api().next_lost(mine, &lost);
  EXPECT_EQ(lost, -1);
  EXPECT_EQ(end_of(send(mine, 2, 1, std::string(kMany, 'x'))), 0);
  EXPECT_FALSE(is_over(waits));
  api().cancel(waits);
  EXPECT_TRUE(is_over(waits));
  std::string got(1, '-');
  EXPECT_EQ(end_of(send(mine, 1, 1, "x")), 0);  // the others go on
  EXPECT_EQ(end_of(receive(all_of(*all[1]), 0, 1, got)), 0);
}

}  // namespace
}  // namespace tessera::test
