#include "bench_session.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "bench.hpp"

extern char** environ;

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;
using bench::Channel;

constexpr auto kStartLimit = std::chrono::seconds(120);   // a cold import of torch from a slow disk
constexpr auto kAnswerLimit = std::chrono::seconds(300);  // a turn of a slow contender on a loaded machine
constexpr auto kEndLimit = std::chrono::seconds(5);
constexpr int kPollMs = 100;

volatile sig_atomic_t interrupted = 0;

void note_interrupt(int) { interrupted = 1; }

void throw_if_interrupted() {
  if (interrupted != 0) throw Interrupted{};
}

std::string make_directory() {
  for (const std::string& base : {std::filesystem::temp_directory_path().string(), std::string("/tmp")}) {
    std::string path = base + "/tessera-bench-XXXXXX";
    if (path.size() > 90) continue;  // the address of a Unix socket has 108 bytes
    if (mkdtemp(path.data()) != nullptr) return path;
  }
  throw Error("cannot make a temporary directory in /tmp");
}

int listen_at(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = bench::address_of(path);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 || listen(fd, 128) != 0) {
    throw Error(fmt::format("cannot listen at {}: {}", path, std::strerror(errno)));
  }
  return fd;
}

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? fmt::format("by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                             : fmt::format("with exit code {}", WEXITSTATUS(status));
}

}  // namespace

struct Session::Player {
  std::string name;
  std::string log;
  pid_t group = 0;
  size_t processes = 0;
  std::vector<pid_t> running;
  std::string ended;  // how the first of its processes ended, where one has
  bool missing = false;
  std::vector<std::optional<Channel>> ranks;

  bool here() const {
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.has_value(); });
  }
};

Session::Session(int ranks, std::string remedy)
    : ranks_(ranks), remedy_(std::move(remedy)), directory_(make_directory()) {
  struct sigaction action {};
  action.sa_handler = note_interrupt;  // without SA_RESTART: poll() must come back
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // ranks whose launcher was killed come here, so that they can be reaped
  janitor_ = std::make_unique<Janitor>(directory_);
  listener_ = listen_at(socket());
}

Session::~Session() {
  players_.clear();  // a rank that sleeps in read() sees the end of its channel and goes
  close(listener_);
}

void Session::start(const Launch& launch) {
  auto player = std::make_unique<Player>();
  player->name = launch.name;
  player->log = fmt::format("{}/{}.log", directory_, launch.name);
  player->ranks.resize(static_cast<size_t>(ranks_));
  players_.push_back(std::move(player));
  for (const auto& words : launch.processes) spawn(*players_.back(), words);
}

void Session::spawn(Player& player, const std::vector<std::string>& words) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, player.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  // A group of its own: Ctrl-C in the terminal reaches the coordinator alone, which then ends all in order.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, player.group);

  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int failure = posix_spawnp(&pid, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) {
    player.missing = true;
    player.ended = fmt::format("{}: {}", words[0], std::strerror(failure));
    return;
  }
  player.running.push_back(pid);
  if (player.group == 0) {
    player.group = pid;
    janitor_->watch_group(pid);
  }
}

std::vector<Session::Absent> Session::await_all() {
  const auto deadline = Clock::now() + kStartLimit;
  while (!all_here()) {
    throw_if_interrupted();
    welcome();
    for (const auto& player : players_) {
      if (player->here() || player->missing) continue;
      reap(*player);
      if (!player->missing && !player->ended.empty()) lost(*player, "ended " + player->ended + " before it had begun");
      if (Clock::now() > deadline) lost(*player, "has not come in time");
    }
  }
  for (const auto& player : players_) {
    if (player->missing) absent_.push_back({player->name, player->ended});
  }
  std::erase_if(players_, [](const auto& player) { return player->missing; });
  return absent_;
}

bool Session::all_here() const {
  return std::all_of(players_.begin(), players_.end(),
                     [](const auto& player) { return player->missing || player->here(); });
}

// Takes in one rank, if one comes.
void Session::welcome() {
  pollfd waiting{listener_, POLLIN, 0};
  if (poll(&waiting, 1, kPollMs) <= 0) return;
  Channel channel(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  const auto hello = channel.receive();
  if (!hello) return;
  std::istringstream words(*hello);
  std::string verb, name;
  int rank = -1, ranks = 0;
  words >> verb >> name >> rank >> ranks;
  if (verb != "hello" || ranks != ranks_ || rank < 0 || rank >= ranks_) {
    throw Error(fmt::format("a player said \"{}\"; {} ranks were started", *hello, ranks_));
  }
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(channel.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0) janitor_->watch_process(peer.pid);
  player(name).ranks[static_cast<size_t>(rank)] = std::move(channel);
}

Session::Player& Session::player(const std::string& name) {
  for (const auto& player : players_) {
    if (player->name == name) return *player;
  }
  throw Error("there is no player " + name);
}

void Session::reap(Player& player) {
  std::erase_if(player.running, [&](pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) return false;
    if (player.ended.empty() && status != 0) player.ended = how_it_ended(status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kMissing) {
      player.missing = true;
      player.ended = last_words(player, 1);
    }
    return true;
  });
  if (player.running.empty() && player.group != 0) {
    janitor_->forget_group(player.group);
    if (player.ended.empty()) player.ended = how_it_ended(0);
  }
}

std::vector<std::string> Session::ask(const std::string& name, const std::string& line) {
  Player& asked = player(name);
  std::vector<std::string> answers(asked.ranks.size());
  for (size_t r = 0; r < answers.size(); ++r) {
    if (!asked.ranks[r]->send(line)) lost(asked, fmt::format("rank {} has gone", r));
  }
  const auto deadline = Clock::now() + kAnswerLimit;
  std::vector<pollfd> waiting;
  for (const auto& rank : asked.ranks) waiting.push_back({rank->fd(), POLLIN, 0});
  for (size_t left = answers.size(); left > 0;) {
    throw_if_interrupted();
    if (Clock::now() > deadline) lost(asked, "does not answer");
    if (poll(waiting.data(), waiting.size(), kPollMs) <= 0) continue;
    for (size_t r = 0; r < waiting.size(); ++r) {
      if (waiting[r].revents == 0) continue;
      if (!asked.ranks[r]->read_more()) lost(asked, fmt::format("rank {} has gone", r));
      const auto answer = asked.ranks[r]->next();
      if (!answer) continue;
      if (answer->starts_with("failed")) lost(asked, fmt::format("rank {} {}", r, *answer));
      answers[r] = *answer;
      waiting[r].fd = -1;  // poll() passes over it
      --left;
    }
  }
  return answers;
}

// The launcher tells more than the channel: its last words are waited for.
void Session::lost(Player& player, const std::string& what) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (!player.running.empty() && Clock::now() < deadline) {
    reap(player);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::string text = fmt::format("{}: {}", player.name, what);
  if (!player.ended.empty() && what.find(player.ended) == std::string::npos) text += "; it ended " + player.ended;
  const std::string words = last_words(player, 15);
  if (!words.empty()) text += "\n" + words;
  throw Error(remedy_.empty() ? text : text + "\n" + remedy_);
}

std::string Session::last_words(const Player& player, size_t lines) const {
  std::ifstream file(player.log);
  std::vector<std::string> all;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) all.push_back(line);
  }
  std::string text;
  for (size_t i = all.size() - std::min(lines, all.size()); i < all.size(); ++i) {
    text += (text.empty() ? "" : "\n") + (lines > 1 ? "  | " + all[i] : all[i]);
  }
  return text;
}

void Session::finish() {
  for (const auto& player : players_) {
    for (auto& rank : player->ranks) rank->send("quit");
  }
  const auto deadline = Clock::now() + kEndLimit;
  for (const auto& player : players_) {
    while (!player->running.empty() && Clock::now() < deadline) {
      throw_if_interrupted();
      reap(*player);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace tessera::cli
