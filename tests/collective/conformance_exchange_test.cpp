// Conformance: all_to_all, all_to_all_v, messages between two ranks, barrier and communicators made of others.
#include <atomic>
#include <thread>

#include <tessera/collective.hpp>

#include "collective/cases.hpp"
#include "support/ranks.hpp"

namespace tessera::testing_support {
namespace {

class ExchangeConformance : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, ExchangeConformance, everywhere(), name_of);

TEST_P(ExchangeConformance, AllToAll) {
  on_ranks([](Comm& comm) {
    const std::vector<Sizes> patterns = size_patterns(comm.size());
    size_t i = 0;
    for (const Case& c : cases(comm.size())) {
      const Sizes& splits = patterns[i++ % patterns.size()];
      const int64_t concat_dim = c.dim;
      for (int64_t split_dim = -3; split_dim < 3; ++split_dim) {
        if ((split_dim + 3) % 3 == (concat_dim + 3) % 3) continue;
        SCOPED_TRACE(fmt::format("{}, cut [{}] of dim {}", c.text(), fmt::join(splits, ", "), split_dim));
        const Dims shape = with_extent(with_extent({2, 3, 4}, concat_dim, sum_of(c.sizes)), split_dim, sum_of(splits));
        const Box own = cut(shape, split_dim, splits, comm.rank());
        const Tensor x = part(c.dtype, cut(shape, concat_dim, c.sizes, comm.rank()), c.in);
        const Tensor out = out_for(c, own.extent);
        const auto [mine, sizes] =
            all_to_all(comm, x, {.split_dim = split_dim, .concat_dim = concat_dim, .sizes = splits, .out = out});
        ASSERT_TRUE(is_part(mine, c.dtype, own));
        ASSERT_TRUE(is_at(mine, out));
        ASSERT_EQ(sizes, c.sizes);
      }
    }
  });
}

TEST_P(ExchangeConformance, AllToAllCutsAsTorchChunkWhereNoSizesAreGiven) {
  on_ranks([](Comm& comm) {
    const Sizes sizes = size_patterns(comm.size())[1];
    const Dims shape = {10, sum_of(sizes)};
    const int64_t chunk = (10 + comm.size() - 1) / comm.size();
    const int64_t begin = std::min<int64_t>(10, comm.rank() * chunk), end = std::min<int64_t>(10, begin + chunk);
    const Tensor x = part(DType::bf16, cut(shape, 1, sizes, comm.rank()));
    const Tensor mine = all_to_all(comm, x, 0, 1).tensor;
    EXPECT_TRUE(is_part(mine, DType::bf16, {{begin, 0}, {end - begin, sum_of(sizes)}}));
  });
}

// How many elements rank `from` sends to rank `to`: kinds of traffic that experts see.
int64_t traffic(int kind, int from, int to, int ranks) {
  switch (kind) {
    case 0: return 2;                               // even
    case 1: return (from * 3 + to * 5) % 4;         // ragged, with zeros
    case 2: return to == ranks / 2 ? from + 1 : 0;  // all to one
    case 3: return from == ranks - 1 ? 3 : 0;       // one to all
    case 4: return from == to ? 2 : 0;              // nothing leaves its rank
    default: return 0;                              // nothing at all
  }
}

TEST_P(ExchangeConformance, AllToAllV) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    size_t i = 0;
    for (int kind = 0; kind < 6; ++kind) {
      Sizes send, receive, totals;
      for (int r = 0; r < n; ++r) {
        send.push_back(traffic(kind, comm.rank(), r, n));
        receive.push_back(traffic(kind, r, comm.rank(), n));
        Sizes row;
        for (int to = 0; to < n; ++to) row.push_back(traffic(kind, r, to, n));
        totals.push_back(sum_of(row));
      }
      for (int64_t dim = -3; dim < 3; ++dim) {
        for (const DType dtype : kDTypes) {
          const Form in = kForms[i % 6], form = kForms[i / 6 % 6];
          SCOPED_TRACE(fmt::format("kind {} dim {} {} in form {} out form {}", kind, dim, dtype, static_cast<int>(in),
                                   static_cast<int>(form)));
          const Dims shape = with_extent({2, 3, 4}, dim, sum_of(totals));
          const auto d = static_cast<size_t>(dim < 0 ? dim + 3 : dim);
          const Tensor x = part(dtype, cut(shape, dim, totals, comm.rank()), in);
          const Tensor out = i % 3 == 0 ? Tensor() : new_tensor(dtype, with_extent(shape, dim, sum_of(receive)), form);
          const auto [came, sizes] = all_to_all_v(
              comm, x, {.send_sizes = send, .recv_sizes = i % 2 == 0 ? receive : Sizes{}, .dim = dim, .out = out});
          ASSERT_EQ(sizes, receive);
          ASSERT_TRUE(is_at(came, out));
          int64_t at = 0;
          for (int from = 0; from < n; ++from) {
            // What `from` sent here lies in its own part behind what it sent to lower ranks.
            Box box = cut(shape, dim, totals, from);
            for (int to = 0; to < comm.rank(); ++to) box.offset[d] += traffic(kind, from, to, n);
            box.extent[d] = receive[static_cast<size_t>(from)];
            ASSERT_TRUE(is_part(came.narrow(dim, at, box.extent[d]), dtype, box)) << "from rank " << from;
            at += box.extent[d];
          }
          ASSERT_EQ(at, came.shape(dim));
          ++i;
        }
      }
    }
  });
}

TEST_P(ExchangeConformance, MessagesGoRoundARing) {
  on_ranks([](Comm& comm) {
    const int next = (comm.rank() + 1) % comm.size(), last = (comm.rank() + comm.size() - 1) % comm.size();
    const Dims shape = {3, 4};
    for (const DType dtype : kDTypes) {
      for (const Form form : kForms) {
        const auto salt = [](int rank) { return static_cast<uint64_t>(rank); };
        const Tensor x = part(dtype, Box::whole(shape), form, salt(comm.rank()));
        const Tensor out = form == Form::plain ? Tensor() : new_tensor(dtype, shape, form);
        const Work sent = start_send(comm, x, next);
        const auto [got, source] = recv(comm, last, 0, out);
        sent.wait();
        ASSERT_EQ(source, last);
        ASSERT_TRUE(is_part(got, dtype, Box::whole(shape), salt(last)));
        ASSERT_TRUE(is_at(got, out));
      }
    }
  });
}

// The receiver asks for them in the opposite order; within one tag they stay in order.
TEST_P(ExchangeConformance, TagsTellMessagesApart) {
  on_ranks([](Comm& comm) {
    if (comm.size() == 1) return;
    const auto message = [](int64_t tag, int64_t number) { return Tensor::full(DType::i64, {2}, tag * 10 + number); };
    if (comm.rank() == 0) {
      std::vector<Work> sent;
      for (int64_t number = 0; number < 3; ++number) {
        for (int64_t tag = 0; tag < 4; ++tag) sent.push_back(start_send(comm, message(tag, number), 1, tag));
      }
      for (const Work& work : sent) work.wait();
    } else if (comm.rank() == 1) {
      for (int64_t tag = 3; tag >= 0; --tag) {
        for (int64_t number = 0; number < 3; ++number) {
          const Tensor got = recv(comm, 0, tag).tensor;
          EXPECT_TRUE(got.equals(message(tag, number))) << "tag " << tag << " number " << number;
        }
      }
    }
    comm.barrier();
  });
}

TEST_P(ExchangeConformance, AnySourceTakesOneMessageOfEach) {
  on_ranks([](Comm& comm) {
    const int root = comm.size() - 1;
    if (comm.rank() != root) {
      send(comm, Tensor::full(DType::i32, {comm.rank()}, comm.rank()), root, 7);
    } else {
      std::vector<int> seen(static_cast<size_t>(comm.size()), 0);
      for (int i = 0; i + 1 < comm.size(); ++i) {
        const auto [got, source] = recv(comm, kAnySource, 7);
        EXPECT_TRUE(got.equals(Tensor::full(DType::i32, {source}, source)));
        ++seen[static_cast<size_t>(source)];
      }
      for (int r = 0; r < root; ++r) EXPECT_EQ(seen[static_cast<size_t>(r)], 1) << "rank " << r;
    }
    comm.barrier();
  });
}

TEST_P(ExchangeConformance, ReceivesCanBePostedBeforeTheirMessages) {
  on_ranks([](Comm& comm) {
    const int next = (comm.rank() + 1) % comm.size(), last = (comm.rank() + comm.size() - 1) % comm.size();
    WorkOf<Received> coming = start_recv(comm, last, 1);
    WorkOf<Received> other = start_recv(comm, kAnySource, 2, Tensor::empty(DType::u8, {0, 4}));
    comm.barrier();
    start_send(comm, Tensor::full(DType::f64, {}, 1.5 * comm.rank()), next, 1).wait();
    start_send(comm, Tensor::empty(DType::u8, {0, 4}), next, 2).wait();
    EXPECT_TRUE(coming.get().tensor.equals(Tensor::full(DType::f64, {}, 1.5 * last)));
    EXPECT_EQ(other.get().source, last);
  });
}

TEST_P(ExchangeConformance, BarrierWaitsForEveryone) {
  // Shared by threads alone: other transports show the same by the messages above.
  if (transport().name != "threads") return;
  std::atomic<int> come{0};
  on_ranks([&](Comm& comm) {
    for (int round = 1; round <= 20; ++round) {
      if (comm.rank() == round % comm.size()) std::this_thread::sleep_for(std::chrono::microseconds(200));
      ++come;
      comm.barrier();
      EXPECT_GE(come.load(), round * comm.size());
      comm.barrier();
    }
    EXPECT_EQ(comm.stats().exchanges, 40);
    EXPECT_EQ(comm.stats().copies, 0);
  });
}

TEST_P(ExchangeConformance, SplitMakesCommunicators) {
  on_ranks([](Comm& comm) {
    const int n = comm.size();
    // Even and odd ranks, in reverse order.
    Comm half = comm.split(comm.rank() % 2, -comm.rank());
    const int members = (n + 1 - comm.rank() % 2) / 2;
    ASSERT_EQ(half.size(), members);
    ASSERT_EQ(half.rank(), members - 1 - comm.rank() / 2);
    const auto [all, sizes] = all_gather(half, Tensor::full(DType::i32, {1 + half.rank()}, comm.rank()));
    int64_t at = 0;
    for (int r = 0; r < members; ++r) {
      const int there = (members - 1 - r) * 2 + comm.rank() % 2;
      EXPECT_EQ(sizes[static_cast<size_t>(r)], r + 1);
      EXPECT_TRUE(all.narrow(0, at, r + 1).equals(Tensor::full(DType::i32, {r + 1}, there)));
      at += r + 1;
    }
    // Without the last rank, which is in no group.
    Comm most = comm.split(comm.rank() == n - 1 ? -1 : 0);
    EXPECT_EQ(most.defined(), comm.rank() != n - 1);
    if (most.defined()) {
      EXPECT_EQ(most.size(), n - 1);
      EXPECT_EQ(most.rank(), comm.rank());
      EXPECT_TRUE(all_reduce(most, Tensor::full(DType::i32, {}, 1)).equals(Tensor::full(DType::i32, {}, n - 1)));
    }
    // The parent and both children go on side by side; a child of a child too.
    Comm alone = half.split(half.rank());
    EXPECT_EQ(alone.size(), 1);
    alone.barrier();
    half.barrier();
    comm.barrier();
  });
}

}  // namespace
}  // namespace tessera::testing_support
