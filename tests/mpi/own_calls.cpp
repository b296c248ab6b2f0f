// A program with calls of its own around tessera's: MPI is the program's, from MPI_Init_thread() to MPI_Finalize().
#include <unistd.h>

#include <chrono>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include <tessera/mpi.hpp>
#include <tessera/tessera.hpp>

#include "counting.hpp"

using namespace tessera;

namespace {

template <class Fn>
bool is_refused(Fn&& fn) {
  try {
    fn();
  } catch (const Error&) {
    return true;
  }
  return false;
}

bool on_one_host() {
  const char* hosts = std::getenv("TESSERA_HOSTS");
  return hosts == nullptr || std::atoi(hosts) == 1;
}

// MPI is for one thread here, so what is started goes on with it.
void asynchronous(Comm& a, Comm& b) {
  const int64_t n = a.size(), me = a.rank();
  const auto sum = [&](Comm& comm, int64_t value, int64_t length) {
    return start(comm, AllReduce{.x = Tensor::full(DType::i64, {length}, value)});
  };
  for (const int64_t length : {1, 1000, 300'000}) {
    auto first = sum(a, 1, length), second = sum(a, 2, length), other = sum(b, 3, length);
    // One rank waits for what another one waits for last.
    if (me % 2 == 0) require(first.get().at<int64_t>(length - 1) == n, "the first sum");
    require(other.get().at<int64_t>(length - 1) == 3 * n, "a sum on another communicator");
    if (me % 2 != 0) require(first.get().at<int64_t>(length - 1) == n, "the first sum");
    while (!second.done()) {}
    require(second.get().at<int64_t>(length - 1) == 2 * n, "the second sum");
  }
  // Each communicator's own copies wait for those of a rank that is at another one's.
  for (int i = 0; i < 20; ++i) {
    auto first = sum(me % 2 == 0 ? a : b, 1, 100'000), second = sum(me % 2 == 0 ? b : a, 1, 100'000);
    require(first.get().at<int64_t>(99'999) == n && second.get().at<int64_t>(0) == n, "one of two sums at once");
  }
  sum(a, 1, 1000);  // dropped, and so over before the next one
  auto left = sum(a, 4, 1000);
  require(all_reduce(a, Tensor::full(DType::i64, {1}, me)).at<int64_t>(0) == n * (n - 1) / 2,
          "a sum after pending ones");
  require(left.done(), "the order of calls");
  // On one host no call is one of MPI's, and any thread will do.
  if (n == 1 || on_one_host()) return;
  const bool late = me == n - 1;  // before it comes nothing is over
  if (late) b.barrier();
  auto mine = sum(a, 5, 1000);
  std::thread([&] {
    require(late || is_refused([&] { mine.wait(); }), "that another thread waits");
    require(is_refused([&] { b.barrier(); }), "that another thread calls MPI");
  }).join();
  if (!late) b.barrier();
  require(mine.get().at<int64_t>(0) == 5 * n, "a sum that another thread asked for");
}

// A message goes on while its rank waits for its host in a call that goes on with its thread, too.
void messages(Comm& a, Comm& b) {
  const int n = a.size(), me = a.rank(), left = (me + n - 1) % n;
  if (n == 1) return;
  auto coming = start_recv(b, left);
  auto going = start_send(b, Tensor::full(DType::i64, {100'000}, me), (me + 1) % n);
  if (me % 2 == 0) require(coming.get().tensor.at<int64_t>(99'999) == left, "a message before a sum");
  require(start(a, AllReduce{.x = Tensor::full(DType::i64, {3}, 1)}).get().at<int64_t>(0) == n,
          "a sum beside messages");
  if (me % 2 != 0) require(coming.get().tensor.at<int64_t>(99'999) == left, "a message after a sum");
  going.wait();
}

// On one host any thread may call all but split(), which is a call of MPI's: where one rank must not make it, none does.
void split_elsewhere(Comm& comm) {
  if (!on_one_host() || comm.size() == 1) return;
  bool refused = false;
  const auto attempt = [&] { refused = is_refused([&] { comm.split(0); }); };
  if (comm.rank() == comm.size() - 1) std::thread(attempt).join();
  else attempt();
  require(refused, "that a rank splits on another thread");
  comm.barrier();
}

// A communicator that ends on another thread, with a call under way: nobody waits for ever.
void end_elsewhere(Comm& alive) {
  if (on_one_host() || alive.size() == 1) return;
  Comm comm = alive.split(0);
  if (comm.rank() == 0) {
    auto pending = start(comm, AllReduce{.x = Tensor::full(DType::i64, {1000}, 1)});
    std::thread([&] { Comm last = std::move(comm); }).join();
    require(is_refused([&] { pending.wait(); }), "that a call without its communicator ends");
  } else {
    require(is_refused([&] { comm.barrier(); }), "that a rank which left is missed");
  }
  alive.barrier();
}

// Below MPI_THREAD_MULTIPLE too, a trusted gather goes on with its thread.
void trusted(Comm& a, Comm& b) {
  const int64_t n = a.size(), me = a.rank();
  const Sizes sizes(static_cast<size_t>(n), 2);
  auto first = start(a, AllGather{.x = Tensor::full(DType::i64, {2, 3000}, me), .sizes = sizes, .sizes_trusted = true});
  const Tensor second =
      all_gather(b, Tensor::full(DType::i64, {2, 100}, -me), {.sizes = sizes, .sizes_trusted = true}).tensor;
  const Tensor all = first.get().tensor;
  for (int64_t r = 0; r < n; ++r) {
    require(all.at<int64_t>(2 * r + 1, 2999) == r && second.at<int64_t>(2 * r, 99) == -r, "a trusted row");
  }
  const Tensor x = Tensor::full(DType::i64, {2, 30}, me), out = Tensor::full(DType::i64, {2 * n, 30}, -1);
  const auto again = [&] { all_gather(b, x, {.sizes = sizes, .out = out, .sizes_trusted = true}); };
  for (int64_t i = 0; i < 5; ++i) {
    x.fill([&](auto) { return 10 * i + me; });
    again();
    for (int64_t r = 0; r < n; ++r) require(out.at<int64_t>(2 * r + 1, 29) == 10 * i + r, "a trusted row again");
  }
  if (on_one_host() || n == 1) return;
  std::thread([&] { require(is_refused(again), "that another thread repeats a trusted gather"); }).join();
}

// Long rows that do not follow each other are sent as a type of MPI's where that is as fast as to copy them first.
void sends_rows(Comm& comm) {
  const int64_t n = comm.size(), rows = 300;
  if (on_one_host() || n == 1) return;
  for (const int64_t columns : {40, 8}) {  // of 16 bytes
    const Tensor wide =
        Tensor::generate(DType::c128, {rows, columns + 1}, [&](auto at) { return 100 * at[0] + at[1]; });
    calls = {};
    const Tensor all = all_gather(comm, wide.narrow(1, 0, columns)).tensor;
#ifdef OPEN_MPI
    const bool is_fast = columns == 40;  // 640 bytes a row, 192 KB; the others are less than 64 KiB
#else
    const bool is_fast = false;
#endif
    require((calls.types > 0) == is_fast, "how rows are sent");
    for (int64_t r = 0; r < n * rows; r += 7) {
      require(
          all.at<std::complex<double>>(r, columns - 1).real() == static_cast<double>(100 * (r % rows) + columns - 1),
          "a row that was sent");
    }
  }
}

// A trusted gather that its caller interrupts: MPI cannot take it back, and so has its memory for as long as it goes on.
void interrupted(int rank, int size) {
  std::weak_ptr<const void> given;
  {
    Comm comm = from_mpi(MPI_COMM_WORLD);
    const Sizes sizes(static_cast<size_t>(size), 10);
    const Tensor x = Tensor::full(DType::i64, {10}, rank);
    given = x.owner();
    MPI_Barrier(MPI_COMM_WORLD);  // nobody hears of its end before it gets there
    if (rank == 0) set_wait_hook([] { throw Error("interrupted"); });
    const auto gather = [&] { all_gather(comm, x, {.sizes = sizes, .sizes_trusted = true}); };
    // The last one does not come.
    require(rank == size - 1 || is_refused(gather), "that a trusted gather is interrupted");
    set_wait_hook(nullptr);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  require(rank != 0 || !given.expired(), "that what MPI may still read stays");
}

// What ranks said in a call that failed is no part of a later one, though its communicator may have the number of the one
// that is gone.
void after_a_failure(int rank, int size) {
  Comm all = from_mpi(MPI_COMM_WORLD);
  const auto sum = [&](Comm& comm, int64_t value) {
    return all_reduce(comm, Tensor::full(DType::i64, {2}, value)).at<int64_t>(1);
  };
  for (const bool fails : {true, false, true, false}) {
    Comm part = all.split(0);
    if (!fails) {
      require(sum(part, 1) == size, "a sum after one that failed");
    } else if (rank != size - 1) {
      part.set_timeout(std::chrono::milliseconds(300));
      require(is_refused([&] { sum(part, 1000); }), "that a rank does not come");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    part = Comm();
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

void tell(const TimeoutError& error) {
  const std::string text = error.what();
  std::printf("TimeoutError: %s\n", text.substr(0, text.find('\n')).c_str());
  std::fflush(stdout);
}

// The last rank does not come, and another comes late: that one says so though its call waits on its host, a bit at a time.
void wait_in_vain(Comm& comm) {
  const int last = comm.size() - 1;
  if (comm.rank() == last) sleep(60);
  comm.set_timeout(std::chrono::seconds(2));
  if (comm.rank() == last - 1) usleep(1'500'000);
  try {
    start(comm, AllReduce{.x = Tensor::full(DType::i64, {1000}, 1)}).get();
  } catch (const TimeoutError& error) {
    tell(error);
  }
}

void absent() {
  Comm comm = from_mpi(MPI_COMM_WORLD);
  const int last = comm.size() - 1;
  comm.barrier();
  MPI_Comm others = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, comm.rank() == last ? MPI_UNDEFINED : 0, 0, &others);
  wait_in_vain(comm);
  MPI_Barrier(others);  // all have said it
  MPI_Abort(MPI_COMM_WORLD, 3);
}

// MPI is tessera's here, and it does that by itself where it is asked to.
int aborts() {
  abort_is_told = true;
  try {
    Comm comm = Comm::from_env();
    comm.barrier();
    if (comm.rank() == comm.size() - 1) sleep(60);
    comm.set_timeout(std::chrono::seconds(2));
    comm.barrier();
  } catch (const TimeoutError& error) {  // the Comm is gone
    tell(error);
    return 7;
  }
  return 0;
}

// Messages of the program's are on their way on the very communicator that tessera was given, with a tag that it has too.
void use(MPI_Comm half) {
  int rank = 0, size = 0;
  MPI_Comm_rank(half, &rank);
  MPI_Comm_size(half, &size);
  const int sent = 100 + rank, left = (rank + size - 1) % size;
  int received = -1;
  MPI_Request requests[2];
  MPI_Irecv(&received, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, half, &requests[0]);
  Comm comm = from_mpi(half, {.name = "half"});
  require(comm.rank() == rank && comm.size() == size && comm.name() == "half", "the Comm");
  const auto [all, sizes] = all_gather(comm, Tensor::full(DType::i32, {rank, 2}, rank), 0);
  require(all.shape(0) == size * (size - 1) / 2, "the number of gathered rows");
  MPI_Isend(&sent, 1, MPI_INT, (rank + 1) % size, 1, half, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  require(received == 100 + left, "the program's own message");
  MPI_Comm_free(&half);
  Comm again = comm.split(0);
  asynchronous(comm, again);
  messages(comm, again);
  trusted(comm, again);
  sends_rows(comm);
  split_elsewhere(comm);
  end_elsewhere(again);
  require(all_reduce(again, Tensor::full(DType::i64, {100'000}, 1)).at<int64_t>(99'999) == size, "the sum");
}

// None of tessera's threads may call MPI.
void require_one_thread() { require(calls_elsewhere == 0, "that one thread alone calls MPI"); }

// With MPI_Init() there is too little for a Comm. Where threads take turns it is for the one that makes it.
int at_level(int wanted) {
  int provided = 0, rank = 0, size = 0;
  if (wanted == MPI_THREAD_SINGLE) MPI_Init(nullptr, nullptr);
  else MPI_Init_thread(nullptr, nullptr, wanted, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Query_thread(&provided);
  require(provided == wanted, "the thread level");
  if (wanted == MPI_THREAD_SINGLE) {
    require(is_refused([] { from_mpi(MPI_COMM_WORLD); }), "that MPI_Init() is refused");
  } else {
    std::thread([&] {
      only_thread = std::this_thread::get_id();
      Comm a = from_mpi(MPI_COMM_WORLD), b = a.split(0);
      asynchronous(a, b);
      messages(a, b);
      require_one_thread();
      only_thread = std::thread::id();
    }).join();
  }
  MPI_Finalize();
  std::printf("rank %d of %d is right\n", rank, size);
  return 0;
}

// Of two groups, it is no communicator of all ranks.
void between_groups(MPI_Comm half, int rank) {
  MPI_Comm both = MPI_COMM_NULL;
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 == 0 ? 1 : 0, 7, &both);
  require(is_refused([&] { from_mpi(both); }), "that an intercommunicator is refused");
  MPI_Comm_free(&both);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "aborts") return aborts();
  if (what == "single") return at_level(MPI_THREAD_SINGLE);
  if (what == "serialized") return at_level(MPI_THREAD_SERIALIZED);
  if (!is_refused([] { from_mpi(MPI_COMM_WORLD); })) return 5;  // not before MPI_Init_thread()
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  only_thread = std::this_thread::get_id();
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (what == "absent") absent();
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
  require(is_refused([] { from_mpi(MPI_COMM_NULL); }), "a null communicator");
  std::thread([&] { require(is_refused([&] { from_mpi(half); }), "that another thread makes a Comm"); }).join();
  if (size > 1) between_groups(half, rank);
  use(half);
  if (size > 1 && !on_one_host()) interrupted(rank, size);
  if (size > 1) after_a_failure(rank, size);
  auto late = std::make_unique<Comm>(from_mpi(MPI_COMM_WORLD));
  late->barrier();

  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  require(sum == size * (size - 1) / 2, "the program's own sum");
  int finalized = 1;
  MPI_Finalized(&finalized);
  require(finalized == 0, "that tessera left MPI to the program");
  MPI_Finalize();
  // Too late: no call of MPI's is made any more, not by its end either.
  if (size > 1 && !on_one_host() && !is_refused([&] { late->barrier(); })) return 6;
  late.reset();
  require_one_thread();
  std::printf("rank %d of %d is right\n", rank, size);
  return 0;
}
