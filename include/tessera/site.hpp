// Site: where a call stands.
#pragma once

#include <cstdint>

namespace tessera {

// Where a call stands in the user's code: shown in errors, never compared. As std::source_location, but a front end in
// another language can make one too. The file's name must live as long as the process.
class Site {
 public:
  constexpr Site() = default;
  constexpr Site(const char* file, uint32_t line) : file_(file), line_(line) {}
  static constexpr Site current(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
  constexpr const char* file_name() const { return file_; }
  constexpr uint32_t line() const { return line_; }

 private:
  const char* file_ = "";
  uint32_t line_ = 0;
};

}  // namespace tessera
