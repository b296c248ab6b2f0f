// What becomes of an error that only one rank has.
#pragma once

#include "comm/comm_state.hpp"

namespace tessera::detail {

// Runs fn, which is all that there is of that call, and then end(): with what went wrong, or null. What is this rank's alone
// cannot be part of the agreement any more, and its peers may be reading its memory: so the communicator ends, and the abort
// waits for them.
template <class Fn, class End>
void run_guarded(CommState& comm, int64_t call, Fn&& fn, End&& end) {
  const auto failure = [&] { return fmt::format("{}: rank {} failed", to_string(comm.call_name(call)), comm.rank()); };
  try {
    fn();
  } catch (Error& e) {
    if (!e.collective()) {
      comm.abort(fmt::format("{}: {}", failure(), e.what()));
      e.add_context(failure());
    }
    end(e.what());
    throw;
  } catch (...) {
    std::string why;
    kind_of(std::current_exception(), why);
    comm.abort(fmt::format("{}: {}", failure(), why));
    end(why.c_str());
    throw;
  }
  end(nullptr);
}

}  // namespace tessera::detail
