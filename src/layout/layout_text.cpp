// The text form of layouts, which the command line, errors and JSON share.
#include <algorithm>

#include <tessera/error.hpp>
#include <tessera/layout.hpp>

#include "layout/text.hpp"

namespace tessera {
namespace {

[[noreturn]] void refuse(std::string_view text) {
  throw ShapeError(fmt::format("\"{}\" is no placement: write R, S0, S1[3,0,5], P(sum) or At(0)", text));
}

ReduceOp parse_op(std::string_view text) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                            ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
    if (name(op) == text) return op;
  }
  throw ShapeError(
      fmt::format("\"{}\" is no operation that can be pending: write sum, avg, prod, min, max, bit_and, "
                  "bit_or or bit_xor",
                  text));
}

Placement parse_shard(std::string_view text) {
  const size_t bracket = text.find('[');
  const auto dim = number_in(text.substr(1, bracket == std::string_view::npos ? bracket : bracket - 1));
  if (!dim) refuse(text);
  if (bracket == std::string_view::npos) return Shard(*dim);
  if (text.back() != ']') refuse(text);
  Sizes sizes;
  for (const std::string_view piece :
       split_outside_brackets(text.substr(bracket + 1, text.size() - bracket - 2), ',')) {
    const auto size = number_in(piece);
    if (!size) refuse(text);
    sizes.push_back(*size);
  }
  return Shard(*dim, std::move(sizes));
}

// Not the default: axes out of order, or one list of sizes for several of them.
bool needs_axes(const Layout::Cut& cut) {
  return cut.axes.size() > 1 && (!cut.sizes.empty() || !std::is_sorted(cut.axes.begin(), cut.axes.end()));
}

// "S0[1,2,4,1]@dp,tp", whose axes the comma has split; and the placements for axes that it does not name.
struct Item {
  Placement placement;
  std::vector<std::string> axes;  // empty: for the next axis
};

std::vector<Item> parse_items(const Mesh& mesh, std::string_view text) {
  const auto is_axis = [&](std::string_view word) {
    return std::any_of(mesh.axes().begin(), mesh.axes().end(), [&](const MeshAxis& axis) { return axis.name == word; });
  };
  std::vector<Item> items;
  for (const std::string_view word : split_outside_brackets(text, ',')) {
    if (!items.empty() && !items.back().axes.empty() && is_axis(word)) {
      items.back().axes.emplace_back(word);
      continue;
    }
    const size_t at = word.find('@');
    Item item{parse_placement(trimmed(word.substr(0, at))), {}};
    if (at != std::string_view::npos) {
      item.axes.emplace_back(trimmed(word.substr(at + 1)));
      mesh.axis(item.axes[0]);
    }
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace

Placement parse_placement(std::string_view text) {
  if (text == "R") return Replicate();
  if (text == "P") return Partial();
  if (text.starts_with("S")) return parse_shard(text);
  const size_t open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')') refuse(text);
  const std::string_view inside = trimmed(text.substr(open + 1, text.size() - open - 2));
  const std::string_view head = text.substr(0, open);
  if (head == "P") return Partial(parse_op(inside));
  const auto index = number_in(inside);
  if (head != "At" || !index) refuse(text);
  return At(*index);
}

Layout Layout::parse(const Mesh& mesh, std::string_view text) {
  std::vector<std::optional<Placement>> placements(mesh.ndim());
  std::vector<std::string> order;
  const std::vector<Item> items = parse_items(mesh, text);
  for (const Item& item : items) {
    for (const std::string& name : item.axes) {
      auto& place = placements[mesh.axis(name)];
      if (place) throw ShapeError(fmt::format("the layout \"{}\" places axis {} twice", text, name));
      place = item.placement;
    }
    if (item.axes.size() > 1) order.insert(order.end(), item.axes.begin(), item.axes.end());
  }
  size_t next = 0;
  bool fits = true;
  for (const Item& item : items) {
    if (!item.axes.empty()) continue;
    while (next < placements.size() && placements[next]) ++next;
    fits = fits && next < placements.size();
    if (fits) placements[next] = item.placement;
  }
  std::vector<Placement> all;
  for (const auto& placement : placements) {
    fits = fits && placement.has_value();
    if (placement) all.push_back(*placement);
  }
  if (!fits) {
    throw ShapeError(
        fmt::format("the layout \"{}\" does not fit the mesh {}: give one placement for each of its {} axes", text,
                    to_string(mesh), mesh.ndim()));
  }
  return Layout(mesh, std::move(all), order);
}

std::string to_string(const Placement& p) {
  switch (p.kind) {
    case Placement::Kind::replicate: return "R";
    case Placement::Kind::partial: return fmt::format("P({})", name(p.op));
    case Placement::Kind::at: return fmt::format("At({})", p.index);
    case Placement::Kind::shard: break;
  }
  return p.sizes.empty() ? fmt::format("S{}", p.dim) : fmt::format("S{}[{}]", p.dim, fmt::join(p.sizes, ","));
}

std::string to_string(const Layout& layout) {
  std::vector<std::string> items;
  for (size_t a = 0; a < layout.mesh().ndim(); ++a) {
    const Placement& placement = layout.placements()[a];
    const auto cut = std::find_if(layout.cuts().begin(), layout.cuts().end(), [&](const Layout::Cut& c) {
      return needs_axes(c) && std::find(c.axes.begin(), c.axes.end(), a) != c.axes.end();
    });
    if (cut == layout.cuts().end()) {
      items.push_back(to_string(placement));
    } else if (*std::min_element(cut->axes.begin(), cut->axes.end()) == a) {
      std::string names;
      for (const size_t axis : cut->axes) names += (names.empty() ? "" : ",") + layout.mesh().axes()[axis].name;
      items.push_back(to_string(placement) + "@" + names);
    }
  }
  return fmt::format("{}", fmt::join(items, ","));
}

}  // namespace tessera
