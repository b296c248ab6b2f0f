// Brings what ranks print to one descriptor of ours, line by line, with the rank in front.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "descriptor.hpp"

namespace tessera::cli {

// Cuts bytes into whole lines with a prefix. A line is kept until its end has come, up to kLongest bytes: a longer one is
// cut there, so that a program that never ends a line costs bounded memory.
class Lines {
 public:
  static constexpr size_t kLongest = size_t{1} << 18;

  explicit Lines(std::string prefix) : prefix_(std::move(prefix)) {}
  void add(std::string_view bytes, std::string& output);
  void end(std::string& output);  // completes a last line that has no newline

 private:
  void put(std::string_view line, std::string& output);

  const std::string prefix_;
  std::string begun_;
};

// "[2] "; as wide for all of `ranks` ranks.
std::string rank_prefix(int rank, int ranks, bool color);

// A thread that reads one pipe a rank. It waits where its target is slow, and so do then the ranks.
class Relay {
 public:
  // Relays whose targets are one file share `guard`, so that their lines do not mix.
  Relay(int target, std::vector<Descriptor> from, std::shared_ptr<std::mutex> guard);
  // Waits for the thread, which may be stuck in a write as long as nobody reads the target.
  ~Relay();
  Relay(const Relay&) = delete;

  // It ends by itself when every pipe has ended. After finish() it brings what is in them now and ends too, though a
  // stranger may hold them open.
  void finish() const;
  // A descriptor that is readable when it has ended.
  int ended() const { return ended_.get(); }

 private:
  void run();
  bool read_some(size_t rank);
  void close_stream(size_t rank);
  void drain();
  void write_out();

  const int target_;
  std::vector<Descriptor> from_;
  std::vector<Lines> lines_;
  std::shared_ptr<std::mutex> guard_;
  size_t open_ = 0;
  bool broken_ = false;  // nobody reads the target any more
  std::string chunk_, output_;
  Descriptor poll_, finish_, ended_;
  std::thread thread_;
};

}  // namespace tessera::cli
