// What a call says that is to be refused.
#pragma once

#include <string>

#include <tessera/error.hpp>

namespace tessera::testing_support {

// The text of the error that fn throws; "accepted" where it throws none. Another error than `Expected` goes on.
template <class Expected = Error, class Fn>
std::string refusal(Fn&& fn) {
  try {
    fn();
  } catch (const Expected& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace tessera::testing_support
