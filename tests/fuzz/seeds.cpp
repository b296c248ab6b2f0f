// seeds FOLDER: writes the inputs that a corpus begins with into FOLDER/record and FOLDER/hand_over.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "seeds.hpp"
#include "transport/shm/mail.hpp"
#include "transport/shm/segment.hpp"

namespace {

using namespace tessera;

void write(const std::filesystem::path& file, std::string_view first, const void* data, size_t bytes) {
  std::ofstream out(file, std::ios::binary);
  out << first;
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void write_records(const std::filesystem::path& folder) {
  for (size_t which = 0; which < std::size(fuzz::kOps); ++which) {
    for (const int ranks : {2, 3}) {
      std::vector<int64_t> words;
      encode(fuzz::sound_record(which, ranks - 1, ranks), words);
      const char first[] = {static_cast<char>(ranks - 2), static_cast<char>(which)};
      write(folder / fmt::format("{}_{}", name(fuzz::kOps[which]), ranks), {first, 2}, words.data(), words.size() * 8);
    }
  }
}

void write_hand_overs(const std::filesystem::path& folder) {
  const std::string variables = "2\n4\n17";
  write(folder / "variables", {"\0", 1}, variables.data(), variables.size());
  const auto segment = shm::Segment::create(2, 2 << 20);
  std::vector<std::byte> header(segment->all().begin(), segment->all().begin() + 256);
  const auto pages = static_cast<uint32_t>(segment->all().size() / 4096);
  std::memcpy(header.data() + 252, &pages, 4);
  write(folder / "segment", {"\1", 1}, header.data(), header.size());
  shm::Letter letter;
  letter.ndim = 2;
  letter.shape[0] = 3;
  letter.shape[1] = letter.strides[0] = 4;
  letter.strides[1] = 1;
  letter.where.words[1] = shm::kShared | 4096;
  write(folder / "letter", {"\2", 1}, &letter, sizeof(letter));
}

}  // namespace

int main(int, char** arguments) {
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder / "record");
  std::filesystem::create_directories(folder / "hand_over");
  write_records(folder / "record");
  write_hand_overs(folder / "hand_over");
}
