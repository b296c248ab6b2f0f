// What lies between hosts, and what it costs: by that schedules of several rounds are chosen.
#pragma once

#include "comm/hosts.hpp"

namespace tessera {

// Microseconds. What is priced is the rank, or the host, that has most to send. As networks of today have it, and with what
// it takes until the slowest has come to a round.
struct Prices {
  double round_us = 20;
  double message_us = 1;
  double byte_us = 1e-4;  // out of a host: 10 GB/s
};

struct Network {
  Hosts hosts;
  Prices prices;
};

}  // namespace tessera
