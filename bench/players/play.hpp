// The loop of every player that is written in C++: what is timed, and how, is the same for all of them.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "case.hpp"
#include "channel.hpp"

namespace tessera::bench {

// One rank of one contender.
class Rank {
 public:
  virtual ~Rank() = default;
  virtual void prepare(const Case& c) = 0;        // drops the buffers of the case before; makes and fills new ones
  virtual void barrier() = 0;                     // its own library's
  virtual void call(int64_t set) = 0;             // the operation, on this set of buffers
  virtual float* input(int64_t set) = 0;          // nullptr: it has none
  virtual float* output(int64_t set) = 0;         // of the last call; nullptr: none yet, or it is the input itself
  virtual std::string how() const { return {}; }  // the last call went, in words; empty: there was nothing to choose
};

// The CPUs that this thread may use: one of each core first, then those that share a core with one of them.
inline std::vector<int> cores_first() {
  cpu_set_t allowed;
  std::vector<int> first, second, cores;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return first;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    int core = cpu;  // the first CPU of its core
    std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list") >> core;
    const bool fresh = std::find(cores.begin(), cores.end(), core) == cores.end();
    cores.push_back(core);
    (fresh ? first : second).push_back(cpu);
  }
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Rank r on the r-th core, where there are enough of them: else the luck of a turn is whether the scheduler has put two
// ranks that wait for each other on one core. Only this thread; what a library has started beside it stays free.
inline void take_core(int rank, int ranks) {
  const std::vector<int> cpus = cores_first();
  if (static_cast<int>(cpus.size()) < ranks) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpus[static_cast<size_t>(rank)], &one);
  sched_setaffinity(0, sizeof(one), &one);
}

class Play {
 public:
  Play(Channel& channel, int rank, Rank& player) : channel_(channel), rank_(rank), player_(player) {}

  // Until the coordinator says quit or goes. Between turns a rank sleeps in read(): a rank that waited in a barrier of
  // its library would take a core from the contender whose turn it is.
  void run(const std::string& name, int ranks) {
    take_core(rank_, ranks);
    channel_.send("hello " + name + " " + std::to_string(rank_) + " " + std::to_string(ranks));
    while (const auto text = channel_.receive()) {
      const Line line = parse_line(*text);
      if (line.verb == "quit") return;
      try {
        if (line.verb == "case") prepare(line);
        if (line.verb == "turn") turn(line);
        if (line.verb == "how") channel_.send("how " + player_.how());
      } catch (const std::exception& error) {
        channel_.send(std::string("failed ") + one_line(error.what()));
        throw;
      }
    }
  }

 private:
  static std::string one_line(std::string text) {
    for (char& c : text) c = c == '\n' ? ' ' : c;
    return text;
  }

  void prepare(const Line& line) {
    case_ = to_case(line);
    calls_ = 0;
    player_.prepare(case_);
    channel_.send("ready");
  }

  void turn(const Line& line) {
    const int64_t samples = line.number("samples"), inner = line.number("inner");
    const bool check = line.number("check") != 0;
    if (check) poison();
    const int64_t first = calls_;
    std::string times;
    for (int64_t sample = -1; sample < samples; ++sample) {  // the first finds cold caches and does not count
      const double ns = time_sample(inner);
      char text[32];
      std::snprintf(text, sizeof(text), "%s%.1f", times.empty() ? "" : ",", ns);
      if (sample >= 0) times += text;
    }
    channel_.send("done wrong=" + std::to_string(check ? wrong_since(first) : 0) + " ns=" + times);
  }

  double time_sample(int64_t inner) {
    player_.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < inner; ++i) {
      const int64_t set = calls_++ % case_.sets;
      if (case_.rewrite) rewrite(set);
      player_.call(set);
      if (case_.read) read(set);
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    return took.count() / static_cast<double>(inner);
  }

  static constexpr int64_t kLineElements = 64 / sizeof(float);

  // One element of each line of the input, with what it is: no other core has that line then.
  void rewrite(int64_t set) {
    volatile float* const data = player_.input(set);
    if (data == nullptr) return;
    const int64_t elements = input_of(case_, rank_).elements();
    for (int64_t i = 0; i < elements; i += kLineElements) data[i] = data[i];
  }

  // One element of each line of the output.
  void read(int64_t set) {
    const volatile float* const data = player_.output(set);
    if (data == nullptr) return;
    const int64_t elements = output_elements(case_, rank_);
    for (int64_t i = 0; i < elements; i += kLineElements) static_cast<void>(data[i]);
  }

  // So that what an earlier call left cannot pass for the result of this turn.
  void poison() {
    for (int64_t set = 0; set < case_.sets; ++set) {
      if (float* data = player_.output(set)) {
        std::fill_n(data, output_elements(case_, rank_), std::numeric_limits<float>::quiet_NaN());
      }
    }
  }

  int64_t wrong_since(int64_t first) {
    int64_t wrong = 0;
    for (int64_t call = std::max(first, calls_ - case_.sets); call < calls_; ++call) {
      const int64_t set = call % case_.sets;
      if (const float* data = player_.output(set)) wrong += count_wrong(case_, rank_, set, data);
    }
    return wrong;
  }

  Channel& channel_;
  int rank_;
  Rank& player_;
  Case case_;
  int64_t calls_ = 0;
};

}  // namespace tessera::bench
