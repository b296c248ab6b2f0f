// Whether the ranks called the same thing, and the message where they did not.
#pragma once

#include <string>
#include <vector>

#include "comm/statement.hpp"

namespace tessera {

struct CallName {  // "call #17 of communicator "dp" (4 ranks)"
  int64_t number;
  const std::string& comm;
  int ranks;
};
std::string to_string(const CallName& call);

// Which dimensions of x may differ between the ranks.
bool may_differ(const Statement& statement, size_t dim);

// Throws Error where a record says what no rank would say.
void check_sense(const std::vector<Record>& records);

// Throws, on every rank the same, MismatchError where the records do not agree,
// or the problems that ranks found with their own arguments. Depends on the
// records alone.
void check_agreement(const CallName& call, const std::vector<Record>& records);

// "0,2-4" of ranks that are in order.
std::string rank_list(const std::vector<int>& ranks);

}  // namespace tessera
