// clang 14 and 15 do not take GCC's <source_location>: the little of it that tessera uses.
#pragma once

#include <version>

#if !defined(__cpp_lib_source_location)
#include <cstdint>

namespace std {
struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE(),
                                           const char* function = __builtin_FUNCTION()) {
    source_location here;
    here.file_ = file;
    here.line_ = line;
    here.function_ = function;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr uint32_t line() const { return line_; }
  constexpr uint32_t column() const { return 0; }
  constexpr const char* function_name() const { return function_; }

 private:
  const char* file_ = "";
  uint32_t line_ = 0;
  const char* function_ = "";
};
}  // namespace std
#endif
