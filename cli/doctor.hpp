// `tessera doctor`: what it finds out, and how it tells of it.
#pragma once

#include <string>
#include <vector>

#include "doctor_probe.hpp"

namespace tessera::cli {

// ok: as it should be. note: works, and could be better or is worth knowing. problem: something does not work.
enum class Mark { ok, note, problem };

struct Check {
  std::string topic;
  Mark mark = Mark::ok;
  std::string text;
  std::string remedy;  // empty: none is needed, or none is known
};

struct Section {
  std::string title;
  std::vector<Check> checks;
};

struct DoctorReport {
  std::string system;  // kernel and processor
  std::vector<Section> sections;
  std::optional<Speeds> speeds;  // none: too little memory to measure
  bool ranks_work = true;        // as processes of this host
};

// Looks, and measures for up to about two seconds.
DoctorReport examine();

// For a terminal of 80 columns.
std::string to_text(const DoctorReport& report, bool color);
std::string to_json(const DoctorReport& report);

// "64 KiB", "23.4 GiB".
std::string text_of_bytes(double bytes);

}  // namespace tessera::cli
