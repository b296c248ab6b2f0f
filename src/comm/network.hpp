// What lies between hosts, and what it costs: by that schedules of several rounds are chosen.
#pragma once

#include <cstdint>

#include "comm/hosts.hpp"

namespace tessera {

// Microseconds. What is priced is the rank, or the host, that has most to send. As networks of today have it, and with what
// it takes until the slowest has come to a round.
struct Prices {
  double round_us = 20;
  double message_us = 1;
  double byte_us = 1e-4;  // out of a host: 10 GB/s
  // A message of more bytes than that waits for an answer first, and costs so much more.
  double answer_us = 0;
  int64_t unanswered_bytes = INT64_MAX;

  // What does not lie in one piece where it comes from, or where it goes, is copied once more, by the core that sends or
  // receives: about 10 GB/s.
  static constexpr double kPackedByteUs = 1e-4;
  // Of the terms that a rank adds up.
  static constexpr double kAddedByteUs = 5e-5;

  // Within a host: a round of its own, and what each rank reads or writes in it.
  double near_round_us = 5;
  double near_byte_us = 2e-5;

  // So many messages of so many bytes each, but for their bytes.
  double messages_us(int64_t count, double bytes_each) const {
    const bool waits = bytes_each > static_cast<double>(unanswered_bytes);
    return static_cast<double>(count) * (message_us + (waits ? answer_us : 0));
  }
};

struct Network {
  Hosts hosts;
  Prices prices;
};

}  // namespace tessera
