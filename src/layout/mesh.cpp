#include <tessera/mesh.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include <tessera/error.hpp>

#include "layout/text.hpp"

namespace tessera {
namespace {

// "dp, tp" for errors.
std::string names_of(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& axis : axes) text += (text.empty() ? "" : ", ") + axis.name;
  return text.empty() ? "no axis" : text;
}

void check_axes(const std::vector<MeshAxis>& axes) {
  if (axes.size() > kMaxDims) {
    throw ShapeError(fmt::format("a mesh of {} axes is too deep: tessera takes at most {}", axes.size(), kMaxDims));
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const std::string& name = axes[i].name;
    const int64_t size = axes[i].size;
    if (!is_name(name) || reads_as_placement(name)) {
      throw ShapeError(
          fmt::format("mesh axis {} has the name \"{}\": use letters, digits and _, none that reads as a "
                      "placement (R, S0, P)",
                      i, name));
    }
    if (size < 1) throw ShapeError(fmt::format("mesh axis {} has the size {}: use 1 or more", name, size));
    const auto same = [&](const MeshAxis& other) { return other.name == name; };
    if (std::any_of(axes.begin(), axes.begin() + static_cast<ptrdiff_t>(i), same)) {
      throw ShapeError(fmt::format("two mesh axes have the name {}: name each once", name));
    }
  }
}

std::vector<int> parse_ranks(std::string_view text) {
  std::vector<int> ranks;
  for (const std::string_view piece : split_outside_brackets(text, ',')) {
    const size_t dash = piece.find('-', 1);
    const auto first = number_in(piece.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number_in(piece.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > INT32_MAX || *last - *first > (1 << 24)) {
      throw ShapeError(fmt::format("\"{}\" in the ranks of a mesh is neither a rank nor a range such as 8-11", piece));
    }
    for (int64_t rank = *first; rank <= *last; ++rank) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// "0-3,8" for those ranks.
std::string text_of_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += fmt::format("{}{}", i == 0 ? "" : ",", ranks[i]);
    if (end - i > 1) text += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

struct Mesh::State {
  std::vector<MeshAxis> axes;
  Dims strides;  // in ranks
  int64_t size = 1;
  int first = 0;                            // where the ranks follow one another, which is nearly always …
  std::vector<int> ranks;                   // … else all of them
  std::unordered_map<int, int64_t> places;  // and where each is

  State(std::vector<MeshAxis> list, std::vector<int> given, bool has_ranks) : axes(std::move(list)) {
    check_axes(axes);
    Dims shape;
    for (const MeshAxis& axis : axes) shape.push_back(axis.size);
    strides = row_major(shape);
    size = volume(shape);
    if (size > INT32_MAX) throw ShapeError(fmt::format("a mesh of {} ranks is too large", size));
    if (has_ranks) take_ranks(std::move(given));
  }

  void take_ranks(std::vector<int> given) {
    if (static_cast<int64_t>(given.size()) != size) {
      throw ShapeError(
          fmt::format("the mesh has {} places and was given {} ranks: give one for each place", size, given.size()));
    }
    bool follow = true;
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i] < 0) throw ShapeError(fmt::format("a mesh was given the rank {}: ranks begin at 0", given[i]));
      follow = follow && given[i] == given[0] + static_cast<int>(i);
    }
    first = given[0];
    if (follow) return;
    ranks = std::move(given);
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (!places.emplace(ranks[i], static_cast<int64_t>(i)).second) {
        throw ShapeError(fmt::format("a mesh was given the rank {} twice: each has one place", ranks[i]));
      }
    }
  }

  int rank(int64_t index) const {
    return ranks.empty() ? first + static_cast<int>(index) : ranks[static_cast<size_t>(index)];
  }
};

Mesh::Mesh() : Mesh(std::vector<MeshAxis>{}) {}
Mesh::Mesh(std::vector<MeshAxis> axes) : state_(std::make_shared<State>(std::move(axes), std::vector<int>{}, false)) {}
Mesh::Mesh(std::vector<MeshAxis> axes, std::vector<int> ranks)
    : state_(std::make_shared<State>(std::move(axes), std::move(ranks), true)) {}

Mesh Mesh::parse(std::string_view text) {
  const size_t at = text.find('@');
  std::vector<MeshAxis> axes;
  for (const std::string_view piece : split_outside_brackets(text.substr(0, at), ',')) {
    const size_t equals = piece.find('=');
    const auto size = equals == std::string_view::npos ? std::nullopt : number_in(trimmed(piece.substr(equals + 1)));
    if (!size) throw ShapeError(fmt::format("\"{}\" is no mesh axis: write name=size, such as dp=2,tp=4", piece));
    axes.push_back({std::string(trimmed(piece.substr(0, equals))), *size});
  }
  if (at == std::string_view::npos) return Mesh(std::move(axes));
  return Mesh(std::move(axes), parse_ranks(text.substr(at + 1)));
}

const std::vector<MeshAxis>& Mesh::axes() const { return state_->axes; }
int64_t Mesh::size() const { return state_->size; }

size_t Mesh::axis(std::string_view name) const {
  for (size_t i = 0; i < ndim(); ++i) {
    if (axes()[i].name == name) return i;
  }
  throw ShapeError(fmt::format("the mesh {} has no axis {}: it has {}", to_string(*this), name, names_of(axes())));
}

std::vector<int> Mesh::ranks() const {
  if (!state_->ranks.empty()) return state_->ranks;
  std::vector<int> ranks(static_cast<size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), state_->first);
  return ranks;
}

std::optional<Dims> Mesh::coordinate(int rank) const {
  if (state_->ranks.empty()) {
    const int64_t index = int64_t{rank} - state_->first;
    if (index < 0 || index >= size()) return {};
    return coordinate_of(index);
  }
  const auto place = state_->places.find(rank);
  if (place == state_->places.end()) return {};
  return coordinate_of(place->second);
}

int Mesh::rank_at(const Dims& coordinate) const {
  bool inside = coordinate.size() == ndim();
  for (size_t a = 0; inside && a < ndim(); ++a) inside = coordinate[a] >= 0 && coordinate[a] < size(a);
  if (!inside) throw ShapeError(fmt::format("{} is no coordinate of the mesh {}", coordinate, to_string(*this)));
  return state_->rank(index_of(coordinate));
}

int64_t Mesh::index_of(const Dims& coordinate) const {
  int64_t index = 0;
  for (size_t a = 0; a < ndim(); ++a) index += coordinate[a] * state_->strides[a];
  return index;
}

Dims Mesh::coordinate_of(int64_t index) const {
  Dims coordinate = Dims::filled(ndim(), 0);
  for (size_t a = 0; a < ndim(); ++a) {
    coordinate[a] = index / state_->strides[a];
    index %= state_->strides[a];
  }
  return coordinate;
}

Mesh Mesh::submesh(const std::vector<std::string>& names, int rank) const {
  const auto here = coordinate(rank);
  if (!here) throw ShapeError(fmt::format("rank {} is not in the mesh {}: it has no submesh", rank, to_string(*this)));
  std::vector<MeshAxis> kept;
  std::vector<size_t> numbers;
  for (const std::string& name : names) {
    numbers.push_back(axis(name));
    kept.push_back(axes()[numbers.back()]);
  }
  check_axes(kept);  // one named twice
  Dims shape;
  for (const MeshAxis& axis : kept) shape.push_back(axis.size);
  const Dims strides = row_major(shape);
  std::vector<int> ranks(static_cast<size_t>(volume(shape)));
  Dims place = *here;
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (size_t k = 0; k < numbers.size(); ++k) place[numbers[k]] = static_cast<int64_t>(i) / strides[k] % shape[k];
    ranks[i] = state_->rank(index_of(place));
  }
  return Mesh(std::move(kept), std::move(ranks));
}

bool operator==(const Mesh& a, const Mesh& b) {
  if (a.state_ == b.state_) return true;
  return a.axes() == b.axes() && a.state_->first == b.state_->first && a.state_->ranks == b.state_->ranks;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh.axes())
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  const std::vector<int> ranks = mesh.ranks();
  const bool plain = ranks.front() == 0 && ranks.back() == static_cast<int>(ranks.size()) - 1 &&
                     std::is_sorted(ranks.begin(), ranks.end());
  return plain ? text : text + "@" + text_of_ranks(ranks);
}

size_t hash_of(const Mesh& mesh) {
  size_t seed = mesh.ndim();
  for (const MeshAxis& axis : mesh.axes()) {
    mix(seed, std::hash<std::string>{}(axis.name));
    mix(seed, static_cast<size_t>(axis.size));
  }
  // Meshes of the same axes nearly always differ in where they begin.
  mix(seed, static_cast<size_t>(mesh.rank_at(Dims::filled(mesh.ndim(), 0))));
  return seed;
}

}  // namespace tessera
