// join(): processes become the ranks of a communicator without `tessera run`, where they have some other way to tell each
// other a few small strings: a key-value store, as launchers of other frameworks have, or files.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <tessera/carrier.hpp>
#include <tessera/comm.hpp>

namespace tessera {

// Where the processes tell each other who they are. Keys are short and printable, values at most a few hundred bytes. What
// a callback throws comes out of join() as it is. A Meeting is for one join(): another one needs keys of its own, such as
// the same ones with another prefix.
struct Meeting {
  // Makes the value known to all.
  std::function<void(const std::string& key, const std::string& value)> set;
  // The value of the key, when somebody has set it; none after the timeout.
  std::function<std::optional<std::string>(const std::string& key, std::chrono::milliseconds timeout)> get;
};

// The communicator of `size` processes, of which this one is `rank`. They share memory as under `tessera run`: it has no
// name, it is handed over privately to processes of the same user that know a secret of the meeting, and it goes with the
// last of them. Who dies is noticed by the others, in join() and afterwards. May be called any number of times, also while
// communicators of earlier calls live.
// Where they are on several hosts (or in several containers, or of several users), those of each host share memory, and what
// make_carrier() returns carries the rest: see docs/many-machines.md. It is called on every rank then, and on none else.
// Collective among the processes; all give a make_carrier or none does. Throws Error where they are not on one host and have
// no carrier, PeerLostError, TimeoutError (which names who did not come) after options.timeout, and what make_carrier does.
// Cost: four messages of the meeting, a thread and size + 1 descriptors for as long as the communicator lives; with a carrier
// up to two threads for each peer.
Comm join(const Meeting& meeting, int rank, int size, const RunOptions& options = {},
          const MakeCarrier& make_carrier = nullptr);

}  // namespace tessera
