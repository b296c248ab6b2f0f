// A meeting in a folder of its own: what is set is a file there.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <tessera/join.hpp>

namespace tessera::testing_support {

class MeetingPlace {
 public:
  MeetingPlace() {
    std::string path = (std::filesystem::temp_directory_path() / "meeting-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw Error("mkdtemp");
    folder_ = path;
  }
  ~MeetingPlace() { std::filesystem::remove_all(folder_); }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;

  Meeting meeting(const std::string& prefix = "") const {
    const auto path = [folder = folder_, prefix](const std::string& key) { return folder / (prefix + key); };
    const auto set = [path](const std::string& key, const std::string& value) {
      const auto draft = path(key + ".draft" + std::to_string(getpid()));
      std::ofstream(draft) << value;
      std::filesystem::rename(draft, path(key));
    };
    const auto get = [path](const std::string& key, std::chrono::milliseconds timeout) -> std::optional<std::string> {
      for (const auto end = std::chrono::steady_clock::now() + timeout;;) {
        if (std::ifstream in(path(key)); in) return (std::ostringstream() << in.rdbuf()).str();
        if (std::chrono::steady_clock::now() >= end) return std::nullopt;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    };
    return {set, get};
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace tessera::testing_support
