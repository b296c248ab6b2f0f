#include "plan.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/ranges.h>
#include <tessera/error.hpp>
#include <tessera/plan.hpp>

namespace nb = nanobind;
using namespace nb::literals;

namespace tessera::python {
namespace {

using List = std::vector<int64_t>;

nb::tuple tuple_of(const Dims& dims) { return nb::tuple(nb::cast(List(dims.begin(), dims.end()))); }

constexpr const char* kNoMesh = "a mesh is its text, as \"dp=2,tp=4\", or a name and a size for each axis";

// "dp=2,tp=4", {"dp": 2, "tp": 4}, or pairs.
Mesh mesh_of(const nb::object& axes, const std::optional<std::vector<int>>& ranks) {
  if (nb::isinstance<nb::str>(axes)) {
    const Mesh mesh = Mesh::parse(nb::cast<std::string>(axes));
    return ranks ? Mesh(mesh.axes(), *ranks) : mesh;
  }
  std::vector<MeshAxis> list;
  const nb::object items = nb::isinstance<nb::dict>(axes) ? axes.attr("items")() : axes;
  if (!nb::isinstance<nb::iterable>(items)) throw nb::type_error(kNoMesh);
  for (const nb::handle item : items) {
    std::pair<std::string, int64_t> axis;
    if (!nb::try_cast(item, axis)) throw nb::type_error(kNoMesh);
    list.push_back({std::move(axis.first), axis.second});
  }
  return ranks ? Mesh(std::move(list), *ranks) : Mesh(std::move(list));
}

Mesh mesh_in(const nb::object& mesh) {
  return nb::isinstance<Mesh>(mesh) ? nb::cast<Mesh>(mesh) : mesh_of(mesh, std::nullopt);
}

// "S0,R", or a text for each axis.
Layout layout_of(const nb::object& mesh, const nb::object& placements) {
  if (nb::isinstance<nb::str>(placements)) return Layout::parse(mesh_in(mesh), nb::cast<std::string>(placements));
  std::vector<std::string> texts;
  if (!nb::try_cast(placements, texts)) {
    throw nb::type_error(
        fmt::format("placements is a {}: give a text, as \"S0,R\", or a text for each axis of the mesh",
                    nb::cast<std::string>(placements.type().attr("__name__")))
            .c_str());
  }
  return Layout::parse(mesh_in(mesh), fmt::format("{}", fmt::join(texts, ",")));
}

Convention convention_of(const std::string& text) {
  if (text == "local") return Convention::local;
  if (text == "global") return Convention::global;
  throw Error(fmt::format("\"{}\" is no convention of gradients; there are local and global", text));
}

// A name, or what prints as one behind its module: torch.float32, numpy.dtype, numpy.float32.
DType dtype_of(const nb::object& dtype) {
  std::string text = nb::cast<std::string>(nb::hasattr(dtype, "__name__") ? dtype.attr("__name__") : nb::str(dtype));
  return parse_dtype(std::string_view(text).substr(text.rfind('.') + 1));
}

std::optional<double> dtensor_us(const Plan& plan) {
  const auto route = dtensor_route(plan.from(), plan.to(), plan.shape(), plan.dtype(), plan.topology());
  return route ? std::optional(route->cost_us) : std::nullopt;
}

// A notebook runs scripts in a frame only. What no page can show is shown as text.
std::string for_notebook(const Plan& plan) {
  std::string page;
  try {
    page = plan.to_html();
  } catch (const Error&) {
    page.clear();
  }
  std::string escaped;
  for (const char c : page.empty() ? plan.explain() : page) {
    if (c == '&') escaped += "&amp;";
    else if (c == '"') escaped += "&quot;";
    else if (c == '<') escaped += "&lt;";
    else escaped += c;
  }
  if (page.empty()) return fmt::format("<pre>{}</pre>", escaped);
  return fmt::format("<iframe srcdoc=\"{}\" width=\"100%\" height=\"520\" style=\"border: 0\"></iframe>", escaped);
}

void bind_mesh(nb::module_& m) {
  nb::class_<Mesh>(m, "Mesh")
      .def(
          "__init__",
          [](Mesh* self, const nb::object& axes, const std::optional<std::vector<int>>& ranks) {
            new (self) Mesh(mesh_of(axes, ranks));
          },
          "axes"_a, "ranks"_a = nb::none())
      .def_prop_ro("axes",
                   [](const Mesh& mesh) {
                     std::vector<std::pair<std::string, int64_t>> axes;
                     for (const MeshAxis& axis : mesh.axes()) axes.emplace_back(axis.name, axis.size);
                     return axes;
                   })
      .def_prop_ro("ndim", &Mesh::ndim)
      .def_prop_ro("size", [](const Mesh& mesh) { return mesh.size(); })
      .def_prop_ro("ranks", &Mesh::ranks)
      .def(
          "coordinate",
          [](const Mesh& mesh, int rank) -> nb::object {
            const auto at = mesh.coordinate(rank);
            if (!at) return nb::none();
            return tuple_of(*at);
          },
          "rank"_a)
      .def(
          "rank_at", [](const Mesh& mesh, const List& at) { return mesh.rank_at(Dims(at)); }, "coordinate"_a)
      .def("submesh", &Mesh::submesh, "axes"_a, "rank"_a)
      .def("__eq__",
           [](const Mesh& a, const nb::object& b) { return nb::isinstance<Mesh>(b) && a == nb::cast<Mesh>(b); })
      .def("__hash__", [](const Mesh& mesh) { return hash_of(mesh); })
      .def("__str__", [](const Mesh& mesh) { return to_string(mesh); })
      .def("__repr__", [](const Mesh& mesh) { return fmt::format("tessera.Mesh(\"{}\")", mesh); })
      .def("__getstate__", [](const Mesh& mesh) { return to_string(mesh); })
      .def("__setstate__", [](Mesh& mesh, const std::string& text) { new (&mesh) Mesh(Mesh::parse(text)); });
}

void bind_layout(nb::module_& m) {
  nb::class_<Layout>(m, "Layout")
      .def(
          "__init__",
          [](Layout* self, const nb::object& mesh, const nb::object& placements) {
            new (self) Layout(layout_of(mesh, placements));
          },
          "mesh"_a, "placements"_a)
      .def_prop_ro("mesh", &Layout::mesh)
      .def_prop_ro("placements",
                   [](const Layout& layout) {
                     std::vector<std::string> texts;
                     for (const Placement& placement : layout.placements()) texts.push_back(to_string(placement));
                     return texts;
                   })
      .def_prop_ro("cuts",
                   [](const Layout& layout) {
                     std::vector<std::tuple<int64_t, std::vector<size_t>, Sizes>> cuts;
                     for (const Layout::Cut& cut : layout.cuts()) cuts.emplace_back(cut.dim, cut.axes, cut.sizes);
                     return cuts;
                   })
      .def_prop_ro("text", [](const Layout& layout) { return fmt::format("{} on {}", layout, layout.mesh()); })
      .def_prop_ro("is_replicated", &Layout::is_replicated)
      .def(
          "resolved", [](const Layout& layout, const List& shape) { return layout.resolved(Dims(shape)); }, "shape"_a)
      .def(
          "box",
          [](const Layout& layout, const List& shape, int rank) -> nb::object {
            const auto box = layout.box(Dims(shape), rank);
            if (!box) return nb::none();
            return nb::make_tuple(tuple_of(box->offset), tuple_of(box->extent));
          },
          "shape"_a, "rank"_a)
      .def(
          "dual",
          [](const Layout& layout, const std::string& convention) { return layout.dual(convention_of(convention)); },
          "convention"_a = "local")
      .def("__eq__",
           [](const Layout& a, const nb::object& b) { return nb::isinstance<Layout>(b) && a == nb::cast<Layout>(b); })
      .def("__hash__", [](const Layout& layout) { return hash_of(layout); })
      .def("__str__", [](const Layout& layout) { return to_string(layout); })
      .def("__repr__",
           [](const Layout& layout) { return fmt::format("tessera.Layout(\"{}\", \"{}\")", layout.mesh(), layout); })
      .def("__getstate__", [](const Layout& layout) { return std::pair(to_string(layout.mesh()), to_string(layout)); })
      .def("__setstate__", [](Layout& layout, const std::pair<std::string, std::string>& texts) {
        new (&layout) Layout(Layout::parse(Mesh::parse(texts.first), texts.second));
      });
}

void bind_topology(nb::module_& m) {
  nb::class_<Topology>(m, "Topology")
      .def_static(
          "dtensor",
          [](const nb::object& mesh, const nb::object& to, int64_t devices_per_host) {
            const Mesh from = mesh_in(mesh);
            return Topology::dtensor(from, to.is_none() ? from : mesh_in(to), devices_per_host);
          },
          "mesh"_a, "to"_a = nb::none(), "devices_per_host"_a = 8)
      .def_static("calibrated", &Topology::calibrated)
      .def_static("from_json", &Topology::from_json, "text"_a)
      .def("to_json", &Topology::to_json)
      .def("__eq__", [](const Topology& a,
                        const nb::object& b) { return nb::isinstance<Topology>(b) && a == nb::cast<Topology>(b); })
      .def("__hash__", [](const Topology& topology) { return hash_of(topology); })
      .def("__str__", &Topology::to_json)
      .def("__getstate__", &Topology::to_json)
      .def("__setstate__",
           [](Topology& topology, const std::string& text) { new (&topology) Topology(Topology::from_json(text)); });
}

using StepState = std::tuple<int, std::vector<size_t>, List, List, Layout, Layout, double, int64_t, int64_t>;

void bind_plan(nb::module_& m) {
  nb::class_<Step>(m, "Step")
      .def_prop_ro("kind", [](const Step& step) { return std::string(name(step.kind)); })
      .def_prop_ro("axes",
                   [](const Step& step) {
                     std::vector<std::string> names;
                     for (const size_t axis : step.axes) names.push_back(step.before.mesh().axes()[axis].name);
                     return names;
                   })
      .def_ro("before", &Step::before)
      .def_ro("after", &Step::after)
      .def_ro("cost_us", &Step::cost_us)
      .def_ro("bytes", &Step::bytes)
      .def_ro("peak_bytes", &Step::peak_bytes)
      .def("__repr__",
           [](const Step& step) {
             return fmt::format("{}: {} to {}, {:.2f} us", name(step.kind), step.before, step.after, step.cost_us);
           })
      .def("__getstate__",
           [](const Step& step) {
             return std::tuple(static_cast<int>(step.kind), step.axes, step.from_dims, step.to_dims, step.before,
                               step.after, step.cost_us, step.bytes, step.peak_bytes);
           })
      .def("__setstate__", [](Step& step, const StepState& state) {
        const auto& [kind, axes, from_dims, to_dims, before, after, cost_us, bytes, peak_bytes] = state;
        new (&step)
            Step{static_cast<StepKind>(kind), axes, from_dims, to_dims, before, after, cost_us, bytes, peak_bytes};
      });
  nb::class_<Plan>(m, "Plan", nb::dynamic_attr())
      .def_prop_ro("source", &Plan::from)
      .def_prop_ro("target", &Plan::to)
      .def_prop_ro("shape", [](const Plan& plan) { return tuple_of(plan.shape()); })
      .def_prop_ro("dtype", [](const Plan& plan) { return std::string(name(plan.dtype())); })
      .def_prop_ro("topology", &Plan::topology)
      .def_prop_ro("max_bytes", [](const Plan& plan) { return plan.options().max_bytes; })
      .def_prop_ro("scale", &Plan::scale)
      .def("steps", &Plan::steps)
      .def("cost_us", &Plan::cost_us)
      .def("peak_bytes", &Plan::peak_bytes)
      .def("bytes_moved", &Plan::bytes_moved)
      .def("dtensor_us", &dtensor_us)
      .def(
          "adjoint",
          [](const Plan& plan, const std::string& convention) { return plan.adjoint(convention_of(convention)); },
          "convention"_a = "global")
      .def("explain", &Plan::explain)
      .def("to_json", &Plan::to_json)
      .def_static("from_json", &Plan::from_json, "text"_a)
      .def("to_html", &Plan::to_html)
      .def("_repr_html_", &for_notebook)
      .def("__str__", &Plan::explain)
      .def("__repr__", [](const Plan& plan) { return fmt::format("tessera.Plan({})", plan.text()); })
      .def("__getstate__", &Plan::to_json)
      .def("__setstate__", [](Plan& plan, const std::string& text) { new (&plan) Plan(Plan::from_json(text)); });
  m.def("plan", [](const Layout& from, const Layout& to, const List& shape, const nb::object& dtype,
                   const std::optional<Topology>& topology, const std::optional<int64_t>& max_bytes, bool any_order) {
    PlanOptions options{.any_order = any_order};
    if (max_bytes) options.max_bytes = *max_bytes;
    return tessera::plan(from, to, Dims(shape), dtype_of(dtype),
                         topology ? *topology : Topology::dtensor(from.mesh(), to.mesh(), 8), options);
  });
}

}  // namespace

void bind_plans(nb::module_& m) {
  bind_mesh(m);
  bind_layout(m);
  bind_topology(m);
  bind_plan(m);
}

}  // namespace tessera::python
