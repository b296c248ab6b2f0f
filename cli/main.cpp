// The command line. Exit codes: 0 done, 1 it ran and something failed, 2 it was called wrongly.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <tessera/version.hpp>

#include "demo.hpp"

namespace {

constexpr int kFailed = 1;
constexpr int kMisused = 2;

struct DemoOptions {
  int ranks = 4;
  bool json = false;
  bool no_color = false;
};

// NO_COLOR: see no-color.org; set and not empty it asks for none.
bool wants_color(const DemoOptions& options) {
  const char* no_color = std::getenv("NO_COLOR");
  return !options.no_color && (no_color == nullptr || *no_color == '\0') && isatty(STDOUT_FILENO) != 0;
}

int demo(const DemoOptions& options) {
  const auto report = tessera::cli::run_demo(options.ranks);
  fmt::print("{}", options.json ? to_json(report) : to_text(report, wants_color(options)));
  return report.failures.empty() ? 0 : kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Moves tensors whose pieces lie on many ranks: pieces of any size, with gradients.", "tessera"};
  app.set_version_flag("--version", std::string("tessera ") + TESSERA_VERSION, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(0, 1);
  app.footer("tessera COMMAND --help tells more. Try: tessera demo");

  DemoOptions options;
  CLI::App* demo_command = app.add_subcommand("demo", "Show ragged gathers and their gradients on ranks as threads");
  demo_command->footer("");
  CLI::Validator range = CLI::Range(1, 64);
  demo_command->add_option("--ranks", options.ranks, "How many ranks, 1 to 64")
      ->check(range.description(""))
      ->type_name("N")
      ->capture_default_str();
  demo_command->add_flag("--json", options.json, "Print one JSON object instead");
  demo_command->add_flag("--no-color", options.no_color,
                         "No colours; also where NO_COLOR is set or output is no terminal");

  try {
    app.parse(argc, argv);
    if (demo_command->parsed()) return demo(options);
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ExtrasError&) {
    // CLI11 lists what is left over in no useful order; the option, if there is one, is what matters.
    const auto extras = app.remaining(true);
    const auto option =
        std::find_if(extras.begin(), extras.end(), [](const auto& word) { return word.starts_with("-"); });
    const bool in_demo = demo_command->count() > 0;
    fmt::print(stderr, "tessera: unknown {} {} (see {} --help)\n",
               option != extras.end() ? "option"
               : in_demo              ? "argument"
                                      : "command",
               option != extras.end() ? *option : extras.at(0), in_demo ? "tessera demo" : "tessera");
    return kMisused;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "tessera: {} (see {} --help)\n", error.what(),
               demo_command->count() > 0 ? "tessera demo" : "tessera");
    return kMisused;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera: {}\n", error.what());
    return kFailed;
  }
}
