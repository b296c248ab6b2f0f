#include "transport/shm/connect.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <typeinfo>

#include "comm/comm_state.hpp"
#include "transport/shm/shm.hpp"

namespace tessera::shm {
namespace {

// Where this process leaves its last words. A terminate handler may run at any time until the end, so it is never freed.
struct Testament {
  std::shared_ptr<Segment> segment;
  int rank;
};
const Testament* testament = nullptr;
std::terminate_handler terminate_before = nullptr;

std::string type_name(const std::type_info& type) {
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  const std::string name = text == nullptr ? type.name() : text;
  std::free(text);
  return name;
}

// What nobody caught: the launcher and the other ranks tell it.
std::string text_of_current_exception() {
  try {
    if (std::current_exception() == nullptr) return "";
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& e) {
    return fmt::format("{}: {}", type_name(typeid(e)), e.what());
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

[[noreturn]] void leave_last_words() {
  const std::string text = text_of_current_exception();
  const size_t length = std::min(text.size(), sizeof(Place::last_words) - 1);
  std::memcpy(testament->segment->place(testament->rank).last_words, text.data(), length);
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

}  // namespace

Deadline deadline_of(const RunOptions& options) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  return Clock::now() + std::min(options.timeout, kLongest);
}

Comm connect(std::shared_ptr<Segment> segment, int rank, Way way, const RunOptions& options) {
  return connect(std::move(segment), rank, way, options, deadline_of(options));
}

void keep_last_words(const std::shared_ptr<Segment>& segment, int rank) {
  // It keeps the memory for good, and only a launcher would read it.
  if (testament != nullptr || !segment->led()) return;
  testament = new Testament{segment, rank};
  terminate_before = std::set_terminate(leave_last_words);
}

Comm connect(std::shared_ptr<Segment> segment, int rank, Way way, const RunOptions& options, Deadline deadline) {
  auto world = std::make_shared<World>(segment, rank, way, deadline);
  auto state = std::make_shared<detail::CommState>(std::make_unique<ShmTransport>(std::move(world), options.probe),
                                                   options.name, options.timeout);
  return Comm(std::move(state));
}

}  // namespace tessera::shm
