// The command line. Exit codes: 0 done, 1 it ran and something failed, 2 it was called wrongly.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include <tessera/version.hpp>

#include "command.hpp"
#include "demo.hpp"

namespace tessera::cli {

// Set and not empty, NO_COLOR asks for none.
bool wants_color(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && isatty(descriptor) != 0;
}

Command add_demo(CLI::App& app) {
  struct Options {
    int ranks = 4;
    bool json = false;
    bool no_color = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("demo", "Show ragged gathers and their gradients on ranks as threads");
  command->footer("");
  CLI::Validator range = CLI::Range(1, 64);
  command->add_option("--ranks", options->ranks, "How many ranks, 1 to 64")
      ->check(range.description(""))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object instead");
  command->add_flag("--no-color", options->no_color, "No colours; also where NO_COLOR is set or output is no terminal");
  return {command, [options] {
            const auto report = run_demo(options->ranks);
            const bool color = !options->no_color && wants_color(STDOUT_FILENO);
            fmt::print("{}", options->json ? to_json(report) : to_text(report, color));
            return report.failures.empty() ? 0 : kFailed;
          }};
}

namespace {

// "tessera", or "tessera demo" where that is what went wrong.
std::string name_of(const CLI::App* used) { return used == nullptr ? "tessera" : "tessera " + used->get_name(); }

// CLI11 lists what is left over in no useful order; the option, if there is one, is what matters.
void complain_of_extras(const CLI::App& app, const CLI::App* used) {
  const auto extras = app.remaining(true);
  const auto option =
      std::find_if(extras.begin(), extras.end(), [](const auto& word) { return word.starts_with("-"); });
  fmt::print(stderr, "tessera: unknown {} {} (see {} --help)\n",
             option != extras.end() ? "option"
             : used != nullptr      ? "argument"
                                    : "command",
             option != extras.end() ? *option : extras.at(0), name_of(used));
}

int parse_and_run(CLI::App& app, const std::vector<Command>& commands, std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  const auto used = [&]() -> const Command* {
    for (const Command& command : commands) {
      if (command.app->count() > 0) return &command;
    }
    return nullptr;
  };
  const auto used_app = [&] { return used() != nullptr ? used()->app : nullptr; };
  try {
    app.parse(words);
    if (const Command* command = used()) return command->run();
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ExtrasError&) {
    complain_of_extras(app, used_app());
    return kMisused;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "tessera: {} (see {} --help)\n", error.what(), name_of(used_app()));
    return kMisused;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", used_app() == nullptr ? "tessera" : name_of(used_app()), error.what());
    return kFailed;
  }
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  using namespace tessera::cli;
  CLI::App app{"Moves tensors whose pieces lie on many ranks: pieces of any size, with gradients.", "tessera"};
  app.set_version_flag("--version", std::string("tessera ") + TESSERA_VERSION, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(0, 1);
  app.footer("tessera COMMAND --help tells more. Try: tessera demo");

  // What follows "--" is a program with its arguments, and none of ours to look at.
  std::vector<std::string> words(argv + 1, argv + argc), from_dashes;
  if (!words.empty() && words[0] == "run") {
    const auto dashes = std::find(words.begin(), words.end(), "--");
    from_dashes.assign(dashes, words.end());
    words.erase(dashes, words.end());
  }
  const std::vector<Command> commands = {
      add_run(app, from_dashes), add_demo(app),   add_plan(app),         add_calibrate(app),
      add_bench(app, words),     add_doctor(app), add_bench_player(app), add_calibrate_player(app)};
  return parse_and_run(app, commands, std::move(words));
}
