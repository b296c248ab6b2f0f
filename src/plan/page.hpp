// The page that shows a plan, less its data: no script, style or picture from elsewhere.
#pragma once

#include <string_view>

namespace tessera {

// DATA stands for one JSON object; see Plan::to_html().
inline constexpr std::string_view kPlanPage = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tessera plan</title>
<style>
  body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 72rem; padding: 0 1rem; color: #222; background: #fff; }
  h1 { font-size: 1.15rem; margin: 0 0 .2rem; }
  #sum { color: #555; margin-bottom: 1rem; }
  #bar { display: flex; gap: .8rem; align-items: center; margin: .6rem 0; }
  #bar input[type=range] { flex: 1; }
  button { font: inherit; padding: .1rem .7rem; }
  table { border-collapse: collapse; margin: .6rem 0 1rem; font-variant-numeric: tabular-nums; }
  td, th { padding: .12rem .8rem .12rem 0; text-align: left; }
  td.n, th.n { text-align: right; }
  tr.step { cursor: pointer; }
  tr.now td { background: #fff3c4; }
  code { font-size: .92em; }
  svg { max-width: 100%; height: auto; }
  .whole { fill: #f4f4f4; stroke: #bbb; }
  .edge { fill: none; stroke: #bbb; }
  .label { font-size: 11px; fill: #333; }
  .note { font-size: 10px; fill: #777; }
  .arrow { fill: none; stroke-opacity: .55; pointer-events: none; }
  .rank { cursor: default; }
  @media (prefers-color-scheme: dark) {
    body { color: #ddd; background: #181818; } #sum { color: #aaa; }
    .whole { fill: #262626; stroke: #555; } .edge { stroke: #555; } .label { fill: #ddd; } .note { fill: #999; }
    tr.now td { background: #4a4220; }
  }
</style>
</head>
<body>
<h1 id="head"></h1>
<div id="sum"></div>
<table id="steps"></table>
<div id="bar">
  <button id="back" aria-label="one step back">‹</button>
  <input id="slider" type="range" min="0" value="0" step="1" aria-label="step">
  <button id="on" aria-label="one step on">›</button>
  <span id="where"></span>
</div>
<svg id="view" role="img" aria-label="what each rank holds"></svg>
<p class="hint">Each tile is a rank; the coloured part is what it holds of the tensor, striped where it is a term of a pending
reduction. Arrows show what the step before brought; point at a rank to see its own only.</p>
<script id="data" type="application/json">DATA</script>
<script>
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const byId = id => document.getElementById(id);
const svgNode = (name, attributes, parent) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.appendChild(node);
  return node;
};
const colour = (rank, light) => `hsl(${(rank * 137.508) % 360} 65% ${light}%)`;
const bytes = n => n < 1024 ? n + ' B' : n < 1 << 20 ? (n / 1024).toFixed(1) + ' KiB' : (n / (1 << 20)).toFixed(1) + ' MiB';
const tile = 104, gap = 34, deep = data.shape.length === 3;

// The tensor as a block: rows down, columns to the right, and with three dimensions the first one into the page.
const full = [1, 1, 1].slice(data.shape.length).concat(data.shape).slice(-3);
const longest = Math.max(1, ...full.slice(deep ? 0 : 1));
const lengths = full.map(n => 76 * Math.max(0.12, Math.sqrt(n / longest)));
const slant = deep ? [0.38, -0.3] : [0, 0];
const project = (z, y, x) => {
  const at = [z, y, x].map((v, d) => full[d] ? v / full[d] * lengths[d] : 0);
  return [at[2] + at[0] * slant[0] * 0.8, at[1] + at[0] * slant[1] * 0.8];
};
const lift = deep ? lengths[0] * 0.24 : 0;
const points = list => list.map(p => p.map(v => v.toFixed(1)).join(',')).join(' ');
const faces = (offset, extent) => {
  const [z, y, x] = offset, [Z, Y, X] = offset.map((o, d) => o + extent[d]);
  const front = [[z, y, x], [z, y, X], [z, Y, X], [z, Y, x]], top = [[z, y, x], [z, y, X], [Z, y, X], [Z, y, x]];
  const side = [[z, y, X], [Z, y, X], [Z, Y, X], [z, Y, X]];
  return (deep ? [top, side, front] : [front]).map(f => f.map(c => project(...c)));
};
const pad = list => [0, 0, 0].slice(list.length).concat(list).slice(-3);
const padExtent = list => [1, 1, 1].slice(list.length).concat(list).slice(-3);

const place = {};
for (const r of data.ranks) place[r.rank] = [gap + r.column * (tile + gap), gap + r.row * (tile + gap)];
const width = gap + Math.max(...data.ranks.map(r => place[r.rank][0])) + tile;
const height = gap + Math.max(...data.ranks.map(r => place[r.rank][1])) + tile;
const view = byId('view');
view.setAttribute('viewBox', `0 0 ${width} ${height}`);
view.setAttribute('width', width);

let only = null;
function drawRank(rank, held) {
  const [x, y] = place[rank];
  const group = svgNode('g', { class: 'rank', 'data-rank': rank, transform: `translate(${x} ${y})` }, view);
  svgNode('text', { class: 'label', x: 0, y: -6 }, group).textContent = 'rank ' + rank;
  const block = svgNode('g', { transform: `translate(2 ${2 + lift})` }, group);
  for (const face of faces([0, 0, 0], full)) svgNode('polygon', { class: 'whole', points: points(face) }, block);
  const empty = !held || held.extent.some(n => n === 0);
  if (empty) {
    svgNode('text', { class: 'note', x: 0, y: tile - 4 }, group).textContent = held ? 'an empty part' : 'nothing';
  } else {
    const shape = faces(pad(held.offset), padExtent(held.extent));
    shape.forEach((face, i) => svgNode('polygon', {
      class: 'part', points: points(face), fill: colour(rank, [70, 45, 58][deep ? i : 2]), stroke: colour(rank, 30) }, block));
    if (held.pending) {
      for (const face of shape) svgNode('polygon', { points: points(face), fill: 'url(#stripes)' }, block);
      svgNode('text', { class: 'note', x: 0, y: tile - 4 }, group).textContent = held.pending;
    }
  }
  const range = held && held.extent.map((n, d) => `${held.offset[d]}:${held.offset[d] + n}`).join(', ');
  svgNode('title', {}, group).textContent = held ? `rank ${rank} holds [${range}] ${held.pending || ''}` : `rank ${rank} holds nothing`;
  group.addEventListener('mouseenter', () => { only = rank; arrows(); });
  group.addEventListener('mouseleave', () => { only = null; arrows(); });
}

function arrows() {
  for (const old of [...view.querySelectorAll('.arrow')]) old.remove();
  const now = Number(byId('slider').value);
  if (now === 0) return;
  const moves = data.steps[now - 1].moves.filter(m => only === null || m[0] === only || m[1] === only);
  const most = Math.max(...moves.map(m => m[2]), 1);
  for (const [from, to, size] of moves) {
    const [x, y] = place[from].map(v => v + tile / 2 - 10), [X, Y] = place[to].map(v => v + tile / 2 - 10);
    const bend = 0.14, mx = (x + X) / 2 - (Y - y) * bend, my = (y + Y) / 2 + (X - x) * bend;
    const path = svgNode('path', { class: 'arrow', d: `M${x} ${y} Q${mx} ${my} ${X} ${Y}`, stroke: colour(from, 45),
      'stroke-width': (0.6 + 2.2 * Math.sqrt(size / most)).toFixed(2), 'marker-end': 'url(#tip)' }, view);
    svgNode('title', {}, path).textContent = `${from} → ${to}: ${bytes(size)}`;
  }
}

function show(number) {
  const now = Math.min(Math.max(number, 0), data.steps.length);
  byId('slider').value = now;
  view.replaceChildren();
  const defs = svgNode('defs', {}, view);
  const tip = svgNode('marker', { id: 'tip', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 5, markerHeight: 5, orient: 'auto' }, defs);
  svgNode('path', { d: 'M0 0L8 4L0 8z', fill: 'context-stroke' }, tip);
  const stripes = svgNode('pattern', { id: 'stripes', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, defs);
  svgNode('rect', { width: 2.4, height: 6, fill: 'rgba(255,255,255,.6)' }, stripes);
  for (const r of data.ranks) drawRank(r.rank, data.stages[now].parts[r.rank]);
  arrows();
  byId('where').textContent = (now === 0 ? 'before: ' : `after step ${now}: `) + data.stages[now].layout;
  document.querySelectorAll('#steps tr.step').forEach((row, i) => row.classList.toggle('now', i + 1 === now));
  document.body.dataset.step = now;
}

byId('head').textContent = data.head;
byId('sum').textContent = data.summary;
const table = byId('steps');
table.innerHTML = '<tr><th>step<th>moves<th class="n">time<th class="n">busiest rank<th class="n">peak memory';
data.steps.forEach((step, i) => {
  const row = table.insertRow();
  row.className = 'step';
  const cells = [step.what, step.layouts, step.cost_us.toFixed(2) + ' µs', bytes(step.bytes), bytes(step.peak_bytes)];
  cells.forEach((text, c) => { const cell = row.insertCell(); cell.textContent = text; if (c > 1) cell.className = 'n'; });
  row.addEventListener('click', () => show(i + 1));
});
byId('slider').max = data.steps.length;
byId('slider').addEventListener('input', event => show(Number(event.target.value)));
byId('back').addEventListener('click', () => show(Number(byId('slider').value) - 1));
byId('on').addEventListener('click', () => show(Number(byId('slider').value) + 1));
show(Number((location.hash.match(/step=(\d+)/) || [0, 0])[1]));
document.body.dataset.ready = 'yes';
</script>
</body>
</html>
)page";

}  // namespace tessera
