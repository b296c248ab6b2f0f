// What each rank threw, kept so that a test can hold the ranks against each other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/collective.hpp>
#include <tessera/comm.hpp>

namespace tessera::test {

using std::chrono::milliseconds;

inline constexpr milliseconds kShort(400);  // a timeout that is to run out

inline Tensor number(int64_t value, int64_t count = 1) { return Tensor::full(DType::i64, {count}, value); }

struct Thrown {
  std::string type = "nothing";
  std::string text;
  friend bool operator==(const Thrown&, const Thrown&) = default;
};

inline std::ostream& operator<<(std::ostream& out, const Thrown& thrown) {
  return out << thrown.type << ": " << thrown.text;
}

// Runs fn; the most derived of tessera's classes that it threw.
template <class Fn>
Thrown thrown_by(Fn&& fn) {
  try {
    fn();
    return {};
  } catch (const RankError& e) {
    return {"RankError", e.what()};
  } catch (const MismatchError& e) {
    return {"MismatchError", e.what()};
  } catch (const ShapeError& e) {
    return {"ShapeError", e.what()};
  } catch (const DTypeError& e) {
    return {"DTypeError", e.what()};
  } catch (const ArgumentError& e) {
    return {"ArgumentError", e.what()};
  } catch (const ArgumentTypeError& e) {
    return {"ArgumentTypeError", e.what()};
  } catch (const PeerLostError& e) {
    return {"PeerLostError", e.what()};
  } catch (const TimeoutError& e) {
    return {"TimeoutError", e.what()};
  } catch (const AbortedError& e) {
    return {"AbortedError", e.what()};
  } catch (const Error& e) {
    return {"Error", e.what()};
  } catch (const std::exception& e) {
    return {"std::exception", e.what()};
  } catch (...) {
    return {"something else", ""};
  }
}

// Runs fn on every rank and returns what each threw. The run itself ends well: no rank leaves before all are through, unless
// fn's error ended the communicator.
inline std::vector<Thrown> thrown_by_ranks(int ranks, const std::function<void(Comm&)>& fn,
                                           const RunOptions& options = {}) {
  std::vector<Thrown> list(static_cast<size_t>(ranks));
  run(
      ranks, [&](Comm& comm) { list[static_cast<size_t>(comm.rank())] = thrown_by([&] { fn(comm); }); }, options);
  return list;
}

// What all of them threw, where that is the same type and text; a test failure otherwise.
inline Thrown same_for_all(const std::vector<Thrown>& list) {
  for (size_t r = 1; r < list.size(); ++r) EXPECT_EQ(list[r], list[0]) << "rank " << r << " differs from rank 0";
  return list[0];
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A call on a communicator that a rank has left: who comes first says so, who comes after that is told of it.
inline void expect_lost(Comm& comm) {
  const Thrown thrown = thrown_by([&] { comm.barrier(); });
  EXPECT_TRUE(thrown.type == "PeerLostError" || thrown.type == "AbortedError") << thrown;
  EXPECT_TRUE(contains(thrown.text, "left while others were waiting")) << thrown;
}

// Waits for another rank of a test; a test that has failed elsewhere comes out too.
template <class Value, class Wanted>
void wait_until(const std::atomic<Value>& value, Wanted wanted) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (value.load() < wanted && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_GE(value.load(), wanted) << "another rank did not come";
}

// How many times longer a test runs that can: 1, or 10 where TESSERA_SOAK is set.
inline int soak() { return std::getenv("TESSERA_SOAK") != nullptr ? 10 : 1; }

// That the communicator works: everybody gets everybody's rank.
inline void expect_alive(Comm& comm) {
  const auto [all, sizes] = all_gather(comm, Tensor::full(DType::i64, {1}, comm.rank()));
  ASSERT_EQ(all.elements(), comm.size());
  for (int64_t r = 0; r < comm.size(); ++r) EXPECT_EQ(all.at<int64_t>(r), r);
}

}  // namespace tessera::test
