// What the parts of that program share.
#pragma once

#include <string>

#include <tessera/tessera.hpp>

inline void require(bool right, const char* what) {
  if (!right) throw tessera::Error(fmt::format("{} is wrong", what));
}

inline int64_t value(int64_t row, int64_t column) { return row * 1000 + column; }

// Rank r brings r + 1 rows.
inline int64_t first_row(int64_t rank) { return rank * (rank + 1) / 2; }

void joins(tessera::Comm& comm);
void comes_late(tessera::Comm& world);
// Of the communicator that does it.
tessera::RunOptions options_of(const std::string& what);
void stands_still(tessera::Comm& comm);
void gives_up(tessera::Comm& comm);
void late_term(tessera::Comm& comm);
void many_messages(tessera::Comm& comm);
void hosts(tessera::Comm& comm);
void long_rows(tessera::Comm& world);
void schedules(tessera::Comm& comm, const std::string& skewed, const std::string& even);
