"use strict";
// Draws every candidate on a canvas: across the order of proposals, up fitness, failures in a band below.
const data = JSON.parse(document.getElementById("data").textContent);
const [INDEX, PARENTS, KIND, PROPOSER, DETAIL, GENERATION, ISLAND, VERDICT, FITNESS, REASON, FIGURES, PARAMS] =
  [...Array(12).keys()];
const rows = data.rows, count = rows.length;
const canvas = document.getElementById("graph");
let pen = null;
const panel = document.getElementById("panel"), legend = document.getElementById("legend");
const style = () => getComputedStyle(document.documentElement);
const children = rows.map(() => []);
rows.forEach((row, n) => row[PARENTS].forEach((p) => children[p].push(n)));
const gains = rows.map((row) => {
  const known = row[PARENTS].map((p) => rows[p][FITNESS]).filter((f) => f);
  return row[FITNESS] && known.length ? row[FITNESS] / Math.max(...known) : null;
});
const fits = rows.map((row) => row[FITNESS]).filter((f) => f);
const low = Math.min(...fits, Infinity), high = Math.max(...fits, -Infinity);
const islands = [...new Set(rows.map((row) => row[ISLAND]))].sort((a, b) => a - b);
const failed = rows.map((row) => data.texts[row[VERDICT]]);
const bands = [...new Set(failed.filter((v) => v !== "ok"))].sort();
const EDGE = 92, BAND = bands.length ? 0.2 : 0.02, MANY = 2000;
const base = document.createElement("canvas"), screen = canvas.getContext("2d");
const view = { x: 0, y: 0, scale: 1, tall: 1 };
let colour = "mutation", chosen = -1, hovered = -1, line = new Set(), after = new Set(), waiting = false, stale = true, palette = {};
const xs = new Float64Array(count), ys = new Float64Array(count);
rows.forEach((row, n) => {
  xs[n] = count > 1 ? n / (count - 1) : 0.5;
  ys[n] = row[FITNESS] ? (1 - BAND) * (1 - (high > low ? (row[FITNESS] - low) / (high - low) : 0.5))
    : 1 - BAND + 0.05 + (BAND - 0.07) * (bands.indexOf(failed[n]) + 0.5) / Math.max(1, bands.length);
});

function colours() {
  const s = style(), v = (name) => s.getPropertyValue("--" + name).trim();
  palette = {
    ground: v("ground"), ink: v("ink"), quiet: v("quiet"), rule: v("rule"), dot: v("dot"), winner: v("winner"),
    mutation: { seed: v("seed"), parameter: v("winner"), rewrite: v("good"), crossover: v("baseline"), llm: v("model") },
    verdict: { ok: v("good"), incorrect: v("bad"), compile_error: v("seed"), resource_error: v("model"), timeout: v("baseline"),
      duplicate: v("dot"), outpaced: v("dot"), rejected: v("quiet"), crashed: v("bad"), implausible: v("bad"), pending: v("rule") },
    gain: { "faster than its parent": v("good"), "equal within 0.1 %": v("dot"), slower: v("bad"), "no figure": v("quiet") },
    island: Object.fromEntries(islands.map((n, k) => ["island " + n, [v("winner"), v("seed"), v("good"), v("baseline"), v("bad"), v("model")][k % 6]])),
  };
}
function group(n) {
  const row = rows[n];
  if (colour === "mutation") return data.texts[row[KIND]];
  if (colour === "verdict") return failed[n];
  if (colour === "island") return "island " + row[ISLAND];
  const gain = gains[n];
  return gain === null ? "no figure" : gain > 1.001 ? "faster than its parent" : gain < 0.999 ? "slower" : "equal within 0.1 %";
}
// The canvas's size as of the last drawing: asking the page for it costs more than the arithmetic.
let across = canvas.clientWidth, down = canvas.clientHeight;
const sx = (n) => EDGE + (xs[n] * view.scale - view.x) * (across - 2 * EDGE);
const sy = (n) => 34 + (ys[n] * view.tall - view.y) * (down - 64);

// What hovering changes is drawn over a picture of the rest.
function draw() {
  waiting = false;
  const ratio = window.devicePixelRatio || 1, w = across = canvas.clientWidth, h = down = canvas.clientHeight;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = base.width = Math.round(w * ratio); canvas.height = base.height = Math.round(h * ratio);
    stale = true;
  }
  if (stale) { pen = base.getContext("2d"); pen.setTransform(ratio, 0, 0, ratio, 0, 0); paint(w, h); stale = false; }
  pen = screen;
  pen.setTransform(1, 0, 0, 1, 0, 0); pen.drawImage(base, 0, 0); pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (line.size) names(w);
  for (const n of [data.winner, chosen, hovered]) if (n >= 0) ring(n, radius());
  if (hovered >= 0) tip(hovered, w);
}
const radius = () => Math.max(2, Math.min(6, 90 / Math.sqrt(count) * Math.sqrt(view.scale)));
function paint(w, h) {
  pen.fillStyle = palette.ground; pen.fillRect(0, 0, w, h);
  axes(w, h);
  const focus = line.size > 0;
  edges(w, focus);
  const size = radius(), groups = new Map();
  for (let n = 0; n < count; n++) {
    const x = sx(n);
    if (x < -9 || x > w + 9) continue;
    const name = group(n) + (focus && !line.has(n) && !after.has(n) ? " " : "");
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(n);
  }
  for (const [name, members] of groups) {
    pen.fillStyle = palette[colour][name.trimEnd()] || palette.dot;
    pen.globalAlpha = name.endsWith(" ") ? 0.18 : 0.9;
    pen.beginPath();
    for (const n of members) {
      const x = sx(n), y = sy(n);
      if (size < 3) pen.rect(x - size, y - size, 2 * size, 2 * size);
      else { pen.moveTo(x + size, y); pen.arc(x, y, size, 0, 6.2832); }
    }
    pen.fill();
  }
  pen.globalAlpha = 1;
}
function axes(w, h) {
  pen.font = "12px system-ui, sans-serif"; pen.fillStyle = palette.quiet; pen.strokeStyle = palette.rule; pen.lineWidth = 1;
  const at = (y) => 34 + (y * view.tall - view.y) * (h - 64);
  if (fits.length) for (let k = 0; k <= 4; k++) {
    const y = at((1 - BAND) * (1 - k / 4));
    pen.beginPath(); pen.moveTo(EDGE - 6, y); pen.lineTo(w, y); pen.stroke();
    const value = low + (high - low) * k / 4;
    pen.textAlign = "right"; pen.fillText(value >= 100 ? value.toFixed(0) : value.toPrecision(3), EDGE - 9, y + 4);
  }
  pen.textAlign = "left";
  bands.forEach((name, k) => pen.fillText(name.replace("_", " "), 6, at(1 - BAND + 0.05 + (BAND - 0.07) * (k + 0.5) / bands.length) + 4));
  pen.fillText(data.unit + ", geometric mean (" + data.target + ")", EDGE, 13);
  pen.textAlign = "right"; pen.fillText("candidates in the order of proposals \u2192", w - 8, h - 8);
}
function edges(w, focus) {
  pen.lineWidth = 1; pen.strokeStyle = palette.quiet; pen.globalAlpha = focus ? 0.05 : Math.min(0.35, 120 / count + 0.04);
  pen.beginPath();
  for (let n = 0; n < count; n++) if (count < MANY || rows[n][FITNESS]) for (const p of rows[n][PARENTS]) segment(p, n, w);
  pen.stroke(); pen.globalAlpha = 1;
  if (!focus) return;
  for (const [members, ink, wide] of [[after, palette.dot, 1], [line, palette.winner, 2]]) {
    pen.strokeStyle = ink; pen.lineWidth = wide; pen.beginPath();
    for (const n of members) for (const p of rows[n][PARENTS]) if (members.has(p) || p === chosen) segment(p, n, w);
    pen.stroke();
  }
}
function segment(a, b, w) {
  const x1 = sx(a), x2 = sx(b);
  if (x2 < 0 || x1 > w) return;
  pen.moveTo(x1, sy(a)); pen.lineTo(x2, sy(b));
}
// Numbers of the chosen candidate's ancestors, the newest first; a number that would cover another is left out.
function names(w) {
  const placed = [];
  pen.font = "600 12px system-ui, sans-serif"; pen.textAlign = "center"; pen.fillStyle = palette.ink;
  pen.strokeStyle = palette.ground; pen.lineWidth = 3;
  for (const n of [...line].sort((a, b) => b - a)) {
    const text = "#" + rows[n][INDEX], x = sx(n), above = sy(n) - radius() - 7, y = above > 26 ? above : sy(n) + radius() + 17;
    if (x < 0 || x > w || placed.some(([px, py]) => Math.abs(px - x) < 34 && Math.abs(py - y) < 14)) continue;
    placed.push([x, y]); pen.strokeText(text, x, y); pen.fillText(text, x, y);
  }
}
function ring(n, size) {
  pen.strokeStyle = n === data.winner ? palette.winner : palette.ink; pen.lineWidth = 2;
  pen.beginPath(); pen.arc(sx(n), sy(n), size + 4, 0, 6.2832); pen.stroke();
}
function tip(n, w) {
  const row = rows[n], text = "#" + row[INDEX] + "  " + row[DETAIL].slice(0, 80) + (row[FITNESS] ? "  " + row[FITNESS].toFixed(1) + " " + data.unit : "  " + failed[n]);
  pen.font = "13px system-ui, sans-serif";
  const wide = pen.measureText(text).width + 14, x = Math.max(2, Math.min(sx(n) + 10, w - wide - 2)), y = Math.max(24, sy(n) - 14);
  pen.fillStyle = palette.ground; pen.strokeStyle = palette.rule; pen.lineWidth = 1;
  pen.beginPath(); pen.rect(x, y - 18, wide, 24); pen.fill(); pen.stroke();
  pen.fillStyle = palette.ink; pen.textAlign = "left"; pen.fillText(text, x + 7, y - 1);
}
function redraw(again = true) { stale = stale || again !== false; if (!waiting) { waiting = true; requestAnimationFrame(draw); } }

function reach(start, next) {
  const seen = new Set(), queue = [start];
  while (queue.length) { const n = queue.pop(); if (seen.has(n)) continue; seen.add(n); queue.push(...next(n)); }
  return seen;
}
function choose(n) {
  chosen = n;
  line = n < 0 ? new Set() : reach(n, (k) => rows[k][PARENTS]);
  after = n < 0 ? new Set() : reach(n, (k) => children[k]);
  describe(n); redraw();
}
function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
function table(lines) {
  const made = element("table");
  for (const cells of lines) {
    const tr = element("tr");
    for (const cell of cells) { const td = element("td"); td.append(cell); tr.append(td); }
    made.append(tr);
  }
  return made;
}
function describe(n) {
  panel.replaceChildren();
  if (n < 0) { panel.append(element("p", "Click a candidate to see its changes and figures.")); return; }
  const row = rows[n], gain = gains[n];
  panel.append(element("h2", "#" + row[INDEX] + (n === data.winner ? " (winner)" : "")), element("p", row[DETAIL]));
  panel.append(element("p", data.texts[row[KIND]] + " by " + data.texts[row[PROPOSER]] + ", generation " + row[GENERATION] +
    ", island " + row[ISLAND], "quiet"));
  panel.append(element("p", failed[n] + (row[REASON] >= 0 ? ": " + data.texts[row[REASON]] : "")));
  if (row[FITNESS]) panel.append(element("p", row[FITNESS].toFixed(2) + " " + data.unit + " (" + data.target + ")" + (gain === null ? "" : ", " + gain.toFixed(3) + " \u00d7 its fittest parent")));
  if (row[FIGURES].length) panel.append(element("h3", "\u00b5s for one call"), table(row[FIGURES].map(([w, s]) => [data.workloads[w], (s * 1e6).toFixed(2)])));
  const parent = row[PARENTS].length ? row[PARENTS][0] : -1;
  const mine = new Map(row[PARAMS]), theirs = new Map(parent >= 0 ? rows[parent][PARAMS] : []);
  const changes = [...new Set([...mine.keys(), ...theirs.keys()])].filter((k) => parent >= 0 && mine.get(k) !== theirs.get(k));
  if (changes.length) panel.append(element("h3", "changed from #" + rows[parent][INDEX]), table(changes.map((k) => {
    const cell = element("span");
    cell.append(element("del", theirs.has(k) ? data.values[theirs.get(k)] : "-"), " \u2192 ", element("ins", mine.has(k) ? data.values[mine.get(k)] : "-"));
    return [data.names[k], cell];
  })));
  if (data.diffs[n] !== undefined) {
    const pre = element("pre");
    for (const text of data.diffs[n].split("\n")) pre.append(element("span", text + "\n", { "+": "add", "-": "cut", "@": "hunk" }[text[0]]));
    panel.append(element("h3", "source"), pre);
  }
  panel.append(element("h3", "parameters"), table(row[PARAMS].map(([k, v]) => [data.names[k], data.values[v]])));
  panel.scrollTop = 0;
}
function nearest(x, y) {
  let best = -1, least = 18 * 18;
  for (let n = 0; n < count; n++) {
    const dx = sx(n) - x, dy = sy(n) - y, d = dx * dx + dy * dy;
    if (d < least) { least = d; best = n; }
  }
  return best;
}
function show() {
  legend.replaceChildren();
  const seen = new Set(rows.map((row, n) => group(n)));
  for (const [name, ink] of Object.entries(palette[colour])) if (seen.has(name)) {
    const item = element("span"), dot = element("i");
    dot.style.background = ink; item.append(dot, name.replace("_", " ")); legend.append(item);
  }
  document.querySelectorAll("[data-colour]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.colour === colour)));
  redraw();
}
function zoom(factor, x, y) {
  const w = canvas.clientWidth - 2 * EDGE, h = canvas.clientHeight - 64, fx = (x - EDGE) / w, fy = (y - 34) / h;
  const scale = Math.max(1, Math.min(count / 4 + 1, view.scale * factor)), tall = Math.max(1, Math.min(12, view.tall * Math.sqrt(factor)));
  view.x = (view.x + fx) * scale / view.scale - fx; view.y = (view.y + fy) * tall / view.tall - fy;
  view.scale = scale; view.tall = tall; bound(); redraw();
}
function bound() {
  view.x = Math.max(-0.1, Math.min(view.scale - 0.9, view.x)); view.y = Math.max(-0.1, Math.min(view.tall - 0.9, view.y));
}
let drag = null;
canvas.addEventListener("wheel", (e) => { e.preventDefault(); zoom(Math.exp(-e.deltaY / 300), e.offsetX, e.offsetY); }, { passive: false });
canvas.addEventListener("pointerdown", (e) => { drag = { x: e.offsetX, y: e.offsetY, vx: view.x, vy: view.y, moved: false }; canvas.setPointerCapture(e.pointerId); });
canvas.addEventListener("pointermove", (e) => {
  if (drag) {
    const dx = e.offsetX - drag.x, dy = e.offsetY - drag.y;
    drag.moved = drag.moved || Math.abs(dx) + Math.abs(dy) > 4;
    if (drag.moved) { view.x = drag.vx - dx / (canvas.clientWidth - 2 * EDGE); view.y = drag.vy - dy / (canvas.clientHeight - 64); bound(); redraw(); }
    return;
  }
  const n = nearest(e.offsetX, e.offsetY);
  if (n !== hovered) { hovered = n; redraw(false); }
});
canvas.addEventListener("pointerup", (e) => { if (drag && !drag.moved) choose(nearest(e.offsetX, e.offsetY)); drag = null; });
canvas.addEventListener("pointerleave", () => { hovered = -1; redraw(false); });
canvas.addEventListener("keydown", (e) => {
  if (e.key === "ArrowLeft" || e.key === "ArrowRight") choose(Math.max(0, Math.min(count - 1, chosen + (e.key === "ArrowLeft" ? -1 : 1))));
  else if (e.key === "Escape") choose(-1);
  else if (e.key === "+" || e.key === "-") zoom(e.key === "+" ? 1.5 : 1 / 1.5, canvas.clientWidth / 2, canvas.clientHeight / 2);
});
document.querySelectorAll("[data-colour]").forEach((b) => b.addEventListener("click", () => { colour = b.dataset.colour; show(); }));
document.getElementById("reset").addEventListener("click", () => { Object.assign(view, { x: 0, y: 0, scale: 1, tall: 1 }); choose(-1); });
document.getElementById("winner").addEventListener("click", () => choose(data.winner));
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours(); show(); });
colours(); show(); choose(data.winner);
