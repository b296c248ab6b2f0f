// A program for tests of `tessera run`: what each rank does is its first argument.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <tessera/tessera.hpp>

using namespace tessera;

namespace {

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void gather(Comm& comm) {
  const auto [all, sizes] = all_gather(comm, Tensor::full(DType::i32, {comm.rank(), 3}, comm.rank()), 0);
  say(fmt::format("rank {} of {} has {} rows", comm.rank(), comm.size(), all.shape(0)));
}

// The last rank is killed; the others make do without it.
void shrink(Comm& comm) {
  if (comm.rank() == comm.size() - 1) raise(SIGKILL);
  try {
    comm.barrier();
  } catch (const PeerLostError&) {
    Comm rest = comm.shrink();
    rest.barrier();
    say(fmt::format("{} are left", rest.size()));
  }
}

// Rank 1 gives up in an orderly way, and so slowly that the others fall before it ends.
void leave(Comm comm) {
  const auto pids = all_gather_same(comm, Tensor::full(DType::i64, {1}, getpid()));
  if (comm.rank() != 1) return comm.barrier();
  comm = Comm();
  while (kill(static_cast<pid_t>(pids[0].at<int64_t>(0)), 0) == 0) usleep(1000);
  std::exit(3);
}

}  // namespace

int main(int, char** argv) {
  const std::string what = argv[1];
  Comm comm = Comm::from_env();
  if (what == "gather") gather(comm);
  if (what == "shrink") shrink(comm);
  if (what == "leave") leave(std::move(comm));
  if (what == "mismatch") all_reduce(comm, Tensor::full(DType::f32, {comm.rank() == 2 ? 4 : 3}, 1));
  if (what == "throw") {
    if (comm.rank() == 1) throw std::runtime_error("out of\tdisk\nand of luck");
    comm.barrier();
  }
  if (what == "wait") {  // for a peer that never comes
    say("waiting");
    if (comm.rank() == 0) pause();
    comm.barrier();
  }
  return 0;
}
