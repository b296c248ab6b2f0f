// One value of a JSON document, and where in it: every complaint names the place.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <tessera/error.hpp>

namespace tessera {

using Json = nlohmann::ordered_json;

class Field {
 public:
  Field(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  bool has(const char* key) const { return object().contains(key); }
  Field operator[](const char* key) const {
    if (!has(key)) throw Error(fmt::format("{} has no {}", path_, key));
    return {(*value_)[key], fmt::format("{}'s {}", path_, key)};
  }
  std::vector<Field> items() const {
    if (!value_->is_array()) fail("list");
    std::vector<Field> list;
    for (size_t i = 0; i < value_->size(); ++i) list.emplace_back((*value_)[i], fmt::format("{}[{}]", path_, i));
    return list;
  }

  double number() const {
    if (!value_->is_number()) fail("number");
    return value_->get<double>();
  }
  int64_t count() const {
    const bool fits = value_->is_number_unsigned() ? value_->get<uint64_t>() <= INT64_MAX : value_->is_number_integer();
    if (!fits) fail("whole number");
    return value_->get<int64_t>();
  }
  bool is_text() const { return value_->is_string(); }
  std::string text() const {
    if (!value_->is_string()) fail("text");
    return value_->get<std::string>();
  }
  bool flag() const {
    if (!value_->is_boolean()) fail("true or false");
    return value_->get<bool>();
  }
  const std::string& path() const { return path_; }

  // What fn() makes of it; its errors name the place too.
  template <class Fn>
  auto read(Fn&& fn) const {
    try {
      return fn();
    } catch (Error& error) {
      error.add_context(path_);
      throw;
    }
  }

 private:
  const Json& object() const {
    if (!value_->is_object()) fail("object");
    return *value_;
  }
  [[noreturn]] void fail(const char* what) const { throw Error(fmt::format("{} is no {}", path_, what)); }

  const Json* value_;
  std::string path_;
};

}  // namespace tessera
