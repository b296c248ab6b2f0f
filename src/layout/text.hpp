// Reading the small texts that name meshes and layouts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/dims.hpp>

namespace tessera {

std::string_view trimmed(std::string_view text);
// Split at this character where no bracket is open; the pieces trimmed. An empty text has no piece.
std::vector<std::string_view> split_outside_brackets(std::string_view text, char separator);
// The whole text as a number.
std::optional<int64_t> number_in(std::string_view text);
// Whether it is a name of letters, digits and _, and does not begin with a digit.
bool is_name(std::string_view text);
// Whether it would read as a placement: R, S0, P, P(sum), At(0).
bool reads_as_placement(std::string_view text);

// Boost's way to mix a hash into another.
inline void mix(size_t& seed, size_t value) { seed ^= value + 0x9e3779b97f4a7c15 + (seed << 6) + (seed >> 2); }

}  // namespace tessera
