// The players of a benchmark: starting them, giving them their turns, and ending them.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench_janitor.hpp"
#include "players/channel.hpp"

namespace tessera::cli {

// How to start one contender's ranks: one process that makes them all, or a process for each.
struct Launch {
  std::string name;  // one word; its ranks say it when they come
  std::vector<std::vector<std::string>> processes;
};

// A player exits with this where what it needs is not there. Its last line says what.
inline constexpr int kMissing = 3;

class Session {
 public:
  // `remedy`: what can be done about a player that is lost; the last line of the error.
  explicit Session(int ranks, std::string remedy = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& directory() const { return directory_; }  // private, and removed at the end
  std::string socket() const { return directory_ + "/turns"; }

  // A player that could not even be started, or says that something is missing, is left out: await_all() gives the
  // reasons by name. One that dies otherwise is an Error.
  void start(const Launch& launch);
  struct Absent {
    std::string name, reason;
  };
  std::vector<Absent> await_all();

  // Sends the line to every rank of the player and returns what each of them answers.
  std::vector<std::string> ask(const std::string& name, const std::string& line);

  // Lets all players end by themselves.
  void finish();

 private:
  struct Player;

  Player& player(const std::string& name);
  void spawn(Player& player, const std::vector<std::string>& words);
  bool all_here() const;
  void welcome();
  void reap(Player& player);
  [[noreturn]] void lost(Player& player, const std::string& what);
  std::string last_words(const Player& player, size_t lines) const;

  int ranks_;
  std::string remedy_;
  std::string directory_;
  std::unique_ptr<Janitor> janitor_;
  int listener_ = -1;
  std::vector<std::unique_ptr<Player>> players_;
  std::vector<Absent> absent_;
};

}  // namespace tessera::cli
