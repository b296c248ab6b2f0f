// `tessera doctor`: each function below looks at one thing.
#include "doctor.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include <tessera/error.hpp>

#include "binding.hpp"
#include "comm/statement.hpp"
#include "command.hpp"
#include "machine.hpp"
#include "transport/mpi/prices.hpp"
#include "transport/shm/limits.hpp"
#include "transport/shm/shm.hpp"

namespace tessera::cli {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMeasureBytes = 400 * kMiB;  // left for others as well

std::string counted(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Machine --------------------------------------------------------------------------------------------------------------

Check check_cores() {
  const int cpus = usable_cpus(), cores = usable_cores();
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  Check check{"cores", Mark::ok, fmt::format("{} of {} usable", counted(cpus, "logical CPU"), online), ""};
  if (cores > 0) check.text += fmt::format(", on {}", counted(cores, "core"));
  if (const auto quota = cpu_quota(); quota && quota->cpus < cpus) {
    check.mark = Mark::note;
    check.text += fmt::format("; {} grants the time of {:.2g} of them, so more ranks than that slow each other down",
                              quota->set_by, quota->cpus);
    check.remedy = "start fewer ranks, or raise the quota (docker run --cpus, cpu.max)";
  } else if (cpus == 1) {
    check.mark = Mark::note;
    check.text += "; ranks take turns on it";
  }
  return check;
}

Check check_memory() {
  const shm::MemoryLimit limit = shm::memory_limit();
  Check check{"memory", Mark::ok,
              fmt::format("{} of {} available, set by {}", text_of_bytes(static_cast<double>(limit.available_bytes)),
                          text_of_bytes(static_cast<double>(limit.total_bytes)), limit.set_by),
              ""};
  if (limit.tightest != limit.set_by) check.text += fmt::format("; {} has the least left", limit.tightest);
  if (limit.available_bytes < kMeasureBytes) {
    check.mark = Mark::note;
    check.text += "; shared memory counts too, and who exceeds the limit is killed";
    check.remedy = "raise the limit (docker run --memory, memory.max), or end what takes the memory";
  }
  return check;
}

Check check_huge_pages() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  const std::string own = chosen_word(first_line_of(folder + "enabled"));
  const std::string shared = chosen_word(first_line_of(folder + "shmem_enabled"));
  Check check{"huge pages", Mark::ok, "", ""};
  if (own.empty()) {
    check.mark = Mark::note;
    check.text = "this kernel has no transparent huge pages: fresh memory costs more";
    return check;
  }
  const std::string setting = shared.empty() ? "no setting" : "shmem_enabled " + shared;
  check.text = fmt::format("private memory: {}; shared memory ({}): ", own, setting);
  switch (try_huge_pages()) {
    case shm::Huge::given: check.text += "the heap asks for them and gets them"; break;
    case shm::Huge::not_now:
      check.mark = Mark::note;
      check.text += "the heap asks for them, but no memory was free in one piece just now; then its pages are of 4 KiB";
      break;
    case shm::Huge::never:
      check.mark = Mark::note;
      check.text += "none, its pages are of 4 KiB and cost more at their first use (below); reuse it";
      check.remedy =
          shared == "deny"
              ? "echo never | sudo tee " + folder + "shmem_enabled: ranks ask for themselves then"
              : "Linux 6.1 gives them to ranks; else, echo within_size | sudo tee " + folder + "shmem_enabled";
  }
  if (own == "never") {
    check.mark = Mark::note;
    check.text += "; fresh private memory comes in pages of 4 KiB, which costs time at its first use";
    check.remedy = "echo madvise | sudo tee " + folder + "enabled";
  }
  return check;
}

Check check_dev_shm() {
  struct statvfs space = {};
  Check check{"/dev/shm", Mark::ok, "", ""};
  if (statvfs("/dev/shm", &space) != 0) {
    check.mark = Mark::note;
    check.text = "is not there; tessera does not use it, MPIs do";
    return check;
  }
  const double unit = static_cast<double>(space.f_frsize);
  const double total = unit * static_cast<double>(space.f_blocks), left = unit * static_cast<double>(space.f_bavail);
  check.text =
      fmt::format("{} of {} free; tessera does not use it, MPIs do", text_of_bytes(left), text_of_bytes(total));
  if (left < 256.0 * kMiB) {
    check.mark = Mark::note;
    check.remedy = "for MPI and PyTorch in a container: docker run --shm-size=2g";
  }
  return check;
}

// Between processes ----------------------------------------------------------------------------------------------------

// Something that ranks cannot do without.
Check needed(const char* topic, int error, const char* works, const char* remedy) {
  if (error == 0) return {topic, Mark::ok, works, ""};
  return {topic, Mark::problem, fmt::format("does not work: {}", std::strerror(error)), remedy};
}

std::string attach_remedy(const std::string& scope, int error) {
  if (scope == "3") return "kernel.yama.ptrace_scope=3 holds until the next boot; 1 is enough for tessera";
  if (scope == "2") return "sudo sysctl kernel.yama.ptrace_scope=1";
  if (error == ENOSYS) return "a kernel with CONFIG_CROSS_MEMORY_ATTACH, or a sandbox that passes process_vm_readv on";
  if (status_field("Seccomp") == "2") {
    return "a filter of system calls is active: docker run --cap-add=SYS_PTRACE, or Docker 23, containerd 1.7 or later";
  }
  return "look for a security module (SELinux: deny_ptrace off, AppArmor: ptrace rules)";
}

Check check_attach(const Attach& attach) {
  const std::string scope = first_line_of("/proc/sys/kernel/yama/ptrace_scope");
  const std::string yama = scope.empty() ? "no Yama" : "Yama's ptrace_scope is " + scope;
  Check check{"cross-memory", Mark::ok, "", ""};
  if (attach.plain == 0 && attach.admitted == 0) {
    check.text = fmt::format("ranks read each other's memory ({}): one copy from any memory", yama);
  } else if (attach.admitted == 0) {
    check.text = fmt::format("ranks read each other's memory, as they admit each other ({})", yama);
  } else {
    check.mark = Mark::note;
    check.text = fmt::format("refused ({}; {}): memory outside the shared heap is copied twice",
                             std::strerror(attach.admitted), yama);
    check.remedy = attach_remedy(scope, attach.admitted);
  }
  return check;
}

Section between_processes(const Attach& attach) {
  return {"Between processes",
          {needed("shared memory", try_sealed_memory(), "memfd_create with seals: no file that could stay behind",
                  "Linux 3.17 or later, and no filter on memfd_create"),
           needed("ends", try_process_handle(), "pidfd_open tells the end of a process at once",
                  "Linux 5.3 or later, and no filter on pidfd_open"),
           needed("waking", try_futex(), "futex wakes across processes", "no filter on futex"), check_attach(attach)}};
}

// How tensors move -----------------------------------------------------------------------------------------------------

// The thresholds in use, in the order in which they are asked.
Section ways_of_moving(const Attach& attach) {
  const std::string way = std::getenv("TESSERA_SHM_WAY") != nullptr ? std::getenv("TESSERA_SHM_WAY") : "choose";
  const auto kib = [](int64_t bytes) { return text_of_bytes(static_cast<double>(bytes)); };
  const std::string eager =
      fmt::format("{} with 2 ranks, {} with 8", kib(shm::eager_bytes(2)), kib(shm::eager_bytes(8)));
  Check chosen{"way", Mark::ok, "chosen for each tensor, as follows", ""};
  if (way != "choose") {
    chosen.mark = Mark::note;
    chosen.text = fmt::format("TESSERA_SHM_WAY={} takes the place of the choice that follows", way);
    chosen.remedy = "unset TESSERA_SHM_WAY, unless this is a test";
  }
  const Check small{"small", Mark::ok,
                    fmt::format("up to {}: travels within the announcement, with no second wait; what is not in the "
                                "shared heap, up to {}",
                                kib(kInlineBytes), kib(kInlineUnsharedBytes)),
                    ""};
  const Check heap{"shared heap", Mark::ok, "any size: peers read it in place", ""};
  const std::string picked = fmt::format("what is added up or redistributed up to {}", kib(shm::kStagedBytes));
  const std::string reason = attach.admitted == 0 ? "beyond, the kernel reads it out of the rank's memory: one copy"
                                                  : "beyond, piece by piece while peers read, as they may not read it";
  const Check ordinary{"other memory", Mark::ok, fmt::format("staged up to {}, {}; {}", eager, picked, reason), ""};
  return {"How tensors move", {chosen, small, heap, ordinary}};
}

// Limits ---------------------------------------------------------------------------------------------------------------

std::string text_of_limit(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? text_of_bytes(static_cast<double>(limit)) : fmt::format("{}", limit);
}

rlimit limit_of(__rlimit_resource_t resource) {
  rlimit limit = {};
  getrlimit(resource, &limit);
  return limit;
}

Section limits() {
  const rlimit space = limit_of(RLIMIT_AS), locked = limit_of(RLIMIT_MEMLOCK), files = limit_of(RLIMIT_NOFILE);
  Check address{"address space", Mark::ok, text_of_limit(space.rlim_cur, true) + " (ulimit -v)", ""};
  if (space.rlim_cur != RLIM_INFINITY) {
    address.mark = Mark::note;
    address.text += "; every rank maps the heaps of all ranks, and heaps become smaller to fit";
    address.remedy = "ulimit -v unlimited, or tessera run --heap";
  }
  Check open{"open files", Mark::ok,
             fmt::format("{}, up to {} (ulimit -n): `tessera run` takes three a rank",
                         text_of_limit(files.rlim_cur, false), text_of_limit(files.rlim_max, false)),
             ""};
  if (files.rlim_max != RLIM_INFINITY && files.rlim_max < 1024) {
    open.mark = Mark::note;
    open.text += fmt::format(", so at most {} ranks here", (files.rlim_max - 32) / 3);
    open.remedy = "docker run --ulimit nofile=65536, or limits.conf";
  }
  Check pinned{"locked memory", Mark::ok,
               text_of_limit(locked.rlim_cur, true) + " (ulimit -l); tessera locks none, network drivers may", ""};
  return {"Limits", {address, open, pinned}};
}

// Software -------------------------------------------------------------------------------------------------------------

// The last word of the first line that has `mark` in it: versions stand there.
std::string version_in(const std::string& text, const std::string& mark) {
  const size_t found = text.find(mark);
  if (found == std::string::npos) return "unknown";
  const std::string line = text.substr(found, text.find('\n', found) - found);
  return line.substr(line.find_last_of(" \t") + 1);
}

Check check_mpi() {
  std::vector<std::string> found;
  if (const auto text = output_of({"mpirun.openmpi", "--version"}, 5s)) {
    found.push_back("Open MPI " + version_in(*text, "mpirun"));
  }
  if (const auto text = output_of({"mpirun.mpich", "--version"}, 5s)) {
    found.push_back("MPICH " + version_in(*text, "Version:"));
  }
  if (found.empty()) {
    if (const auto text = output_of({"mpirun", "--version"}, 5s)) {
      found.push_back(text->substr(0, text->find('\n')) + " (mpirun)");
    }
  }
  if (found.empty()) return {"MPI", Mark::ok, "none found; ranks on one machine need none", ""};
  return {"MPI", Mark::ok, fmt::format("{}", fmt::join(found, ", ")), ""};
}

// By what schedules between hosts are chosen.
Check check_network() {
  const std::string wanted = mpi::wanted_prices();
  if (mpi::is_to_be_measured(wanted)) return {"between hosts", Mark::ok, "measured when a communicator is made", ""};
  try {
    const Prices prices = wanted.empty() ? Prices() : mpi::prices_from(wanted);
    return {"between hosts", Mark::ok,
            fmt::format("taken for {} ({})", mpi::describe(prices),
                        wanted.empty() ? "less where messages go through memory; TESSERA_NETWORK=measure measures it"
                                       : "TESSERA_NETWORK"),
            ""};
  } catch (const Error& error) {
    return {"between hosts", Mark::note, error.what(), "TESSERA_NETWORK names a topology's file, or is \"measure\""};
  }
}

Check check_torch() {
  // Asking for the version of the package takes a fraction of importing it.
  const auto text = output_of({"python3", "-c", "import importlib.metadata as m; print(m.version('torch'))"}, 10s);
  if (!text) return {"PyTorch", Mark::ok, "none found for python3", ""};
  return {"PyTorch", Mark::ok, fmt::format("{} for python3", text->substr(0, text->find('\n'))), ""};
}

int count_devices(const std::string& begin) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.size() > begin.size() && std::isdigit(name[begin.size()]) != 0) ++count;
  }
  return count;
}

Check check_gpus() {
  const auto list = output_of({"nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"}, 10s);
  const int devices = count_devices("nvidia");
  Check check{"GPUs", Mark::ok, "none found", ""};
  if (list && !list->empty()) {
    const auto count = std::count(list->begin(), list->end(), '\n');
    check.text = fmt::format("{} × {}", count, list->substr(0, list->find('\n')));
  } else if (devices > 0) {
    check.mark = Mark::note;
    check.text = fmt::format("{}, but nvidia-smi tells nothing of them", counted(devices, "device /dev/nvidia*"));
    check.remedy = "install the driver's utilities, or docker run --gpus all";
  } else if (std::filesystem::exists("/dev/kfd")) {
    check.text = "an AMD GPU (/dev/kfd)";
  }
  return check;
}

Check check_hwloc() {
  const std::string version = hwloc_version();
  if (!version.empty()) return {"hwloc", Mark::ok, "interface " + version + ": tessera run --bind works", ""};
  return {"hwloc", Mark::note, "built without it: tessera run --bind does not work",
          "install libhwloc-dev and build again"};
}

std::string system_text() {
  utsname name = {};
  uname(&name);
  return fmt::format("{} {}, {}", name.sysname, name.release, name.machine);
}

bool has_problem(const Section& section) {
  return std::any_of(section.checks.begin(), section.checks.end(),
                     [](const Check& check) { return check.mark == Mark::problem; });
}

}  // namespace

DoctorReport examine() {
  DoctorReport report;
  report.system = system_text();
  const Attach attach = try_attach();
  report.sections.push_back({"Machine", {check_cores(), check_memory(), check_huge_pages(), check_dev_shm()}});
  report.sections.push_back(between_processes(attach));
  report.ranks_work = !has_problem(report.sections.back());
  report.sections.push_back(ways_of_moving(attach));
  report.sections.push_back(limits());
  report.sections.push_back({"Software", {check_hwloc(), check_mpi(), check_network(), check_torch(), check_gpus()}});
  if (shm::memory_limit().available_bytes >= kMeasureBytes) report.speeds = measure(attach.admitted == 0);
  return report;
}

Command add_doctor(CLI::App& app) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("doctor", "Tell what tessera will use on this machine, and why");
  command->footer("Ends with 1 where ranks cannot be processes of this machine, else with 0.");
  command->add_flag("--json", *json, "Print one JSON object instead");
  return {command, [json] {
            const DoctorReport report = examine();
            fmt::print("{}", *json ? to_json(report) : to_text(report, wants_color(STDOUT_FILENO)));
            return report.ranks_work ? 0 : kFailed;
          }};
}

}  // namespace tessera::cli
