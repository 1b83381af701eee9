"use strict";
// The script of view/page.py's page. It sets texts of documents by textContent only, and sizes by style properties.

const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const BUCKETS = 10;                                   // edges with similar weights are drawn as one path

let query, graph, place, at = 0, below = [], above = [], maximum = 1, boxes = [], buttons = [], walkOrder = [];

// --- small helpers ---------------------------------------------------------------------------------------------------

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// Three significant digits of a number, with an exponent below .001, or all digits if it is whole. `shown` keeps the full
// value in data-value.
function figure(value) {
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) < 0.001 ? value.toExponential(2) : Number(value.toPrecision(3)).toString();
}

// A share of 1, with two digits: .90
function short(e) {
  return e.toFixed(2).replace(/^0/, "");
}

function shown(value, name) {
  const made = element("span", figure(value), name);
  made.dataset.value = String(value);
  return made;
}

function nodeButton(node) {
  const made = element("button", "#" + node);
  made.title = graph.texts[node];
  made.addEventListener("click", () => details(node));
  return made;
}

// --- the graph -------------------------------------------------------------------------------------------------------

// Level 1 is the left column, as in Figure A1. A point is at the mean height of its sources, if there is room.
function layout() {
  const levels = graph.levels, top = Math.max(...levels), row = Number(by("height").value), gap = row > 12 ? 5 : row > 3 ? 1 : 0.4;
  const width = Math.max(by("scroll").clientWidth - 44, top * 190), wide = widthOf(width, top);
  const column = top > 1 ? (width - wide) / (top - 1) : 0;
  const middle = [];
  boxes = [];
  for (let level = 1; level <= top; level++) {
    const nodes = [...levels.keys()].filter(i => levels[i] === level);
    for (const i of nodes) {
      const sum = below[i].reduce((total, [, e]) => total + e, 0);
      middle[i] = sum ? below[i].reduce((total, [j, e]) => total + e * middle[j], 0) / sum : 0;
    }
    const order = level === 1 ? nodes : [...nodes].sort((a, b) => middle[a] - middle[b] || a - b);
    spread(order, middle, row + gap, level === 1);
    for (const i of nodes) boxes[i] = { x: (level - 1) * column, y: middle[i], width: wide, height: row };
  }
  const lowest = Math.min(...boxes.map(box => box.y));
  for (const box of boxes) box.y += 3 - lowest;
  by("canvas").style.width = width - 2 + "px";
  by("canvas").style.height = Math.max(...boxes.map(box => box.y)) + row + 6 + "px";

  by("heads").replaceChildren();
  for (let level = 1; level <= top; level++) {
    const count = levels.filter(l => l === level).length;
    const head = element("span", level === 1 ? `level 1 · ${count} chunks` : `level ${level} · ${count} points`);
    head.style.left = (level - 1) * column + "px";
    by("heads").append(head);
  }
}

function widthOf(width, top) {
  return Math.min(0.68 * width / top, 360);           // the rest is for the figures on the arrows
}

// Set the heights of a column at least `pitch` apart, as near to the wanted heights as possible (least squares).
// Neighbours that would overlap become one block at their mean.
function spread(order, middle, pitch, exactly) {
  if (exactly) return order.forEach((i, n) => { middle[i] = n * pitch; });
  const blocks = [];
  order.forEach((i, n) => {
    let block = { sum: middle[i] - n * pitch, count: 1 };
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).count >= block.sum / block.count) {
      const before = blocks.pop();
      block = { sum: before.sum + block.sum, count: before.count + block.count };
    }
    blocks.push(block);
  });
  const heights = blocks.flatMap(({ sum, count }) => Array(count).fill(sum / count));
  order.forEach((i, n) => { middle[i] = heights[n] + n * pitch; });
}

function drawNodes() {
  const canvas = by("canvas"), row = Number(by("height").value), bare = row < 14;
  buttons.forEach(button => button.remove());
  buttons = graph.texts.map((text, i) => {
    const button = element("button", "", bare ? "node bare" : "node");
    const label = element("span");
    label.append(element("b", "#" + i), text);
    label.style.setProperty("--lines", Math.max(1, Math.floor((row - 4) / 16)));
    button.append(label);
    button.tabIndex = -1;
    button.dir = "auto";
    button.title = text;
    const { x, y, width, height } = boxes[i];
    Object.assign(button.style, { left: x + "px", top: y + "px", width: width + "px", height: height + "px" });
    button.addEventListener("click", () => details(i));
    button.addEventListener("focus", () => tabTo(i));
    return button;
  });
  walkOrder = [...boxes.keys()].sort((a, b) => boxes[a].x - boxes[b].x || boxes[a].y - boxes[b].y);
  tabTo(walkOrder[0]);
  canvas.append(...buttons);
}

// The tab key reaches one node. From there, arrow up and arrow down reach the others, column by column.
function tabTo(node) {
  buttons.forEach((button, i) => { button.tabIndex = i === node ? 0 : -1; });
}

function walk(from, by) {
  const to = walkOrder[walkOrder.indexOf(from) + by];
  if (to !== undefined) buttons[to].focus();
}

function curveOf(i, j) {
  const a = boxes[i], b = boxes[j], u = b.x + b.width, y = a.y + a.height / 2, v = b.y + b.height / 2, bend = (a.x - u) / 2;
  return `M${a.x.toFixed(1)} ${y.toFixed(1)}C${(a.x - bend).toFixed(1)} ${y.toFixed(1)} ${(u + bend).toFixed(1)} ` +
         `${v.toFixed(1)} ${u.toFixed(1)} ${v.toFixed(1)}`;
}

function drawEdges() {
  const least = threshold(), paths = Array.from({ length: BUCKETS }, () => []);
  for (const [i, j, e] of graph.edges) {
    if (e >= least) paths[Math.min(BUCKETS - 1, Math.floor(e / maximum * BUCKETS))].push(curveOf(i, j));
  }
  const style = getComputedStyle(document.documentElement);
  const [weak, strong] = ["--edge-weak", "--edge-strong"].map(name => style.getPropertyValue(name).trim().split(" ").map(Number));
  by("edges").replaceChildren(...paths.map((curves, n) => {
    const t = (n + 0.5) / BUCKETS, path = shape("path", { d: curves.join("") });
    path.style.stroke = `rgb(${weak.map((from, k) => Math.round(from + t * (strong[k] - from))).join(" ")})`;
    path.style.strokeWidth = 0.6 + 3.4 * t + "px";
    path.style.opacity = 0.45 + 0.45 * t;
    return path;
  }));
  by("threshold-value").textContent = figure(least);
  drawFlow();
}

// What enters the node of this step from the nodes read before it: [node, r, e], the largest r x e first. The sum of r x e
// is its z (equation 1).
function inflow() {
  const step = query.steps[at - 1];
  if (!step || !step.candidates) return [];
  const r = new Map(query.steps.slice(0, at - 1).map(s => [s.node, s.r]));
  return above[step.node].filter(([i]) => r.has(i)).map(([i, e]) => [i, r.get(i), e]).sort((a, b) => b[1] * b[2] - a[1] * a[2]);
}

function drawFlow() {
  document.querySelectorAll("#edges .flow, #figures text").forEach(part => part.remove());
  const step = query.steps[at - 1], parts = inflow(), sum = parts.reduce((total, [, r, e]) => total + r * e, 0);
  by("edges").classList.toggle("calm", Boolean(step));
  for (const [i, r, e] of parts) {
    const path = shape("path", { d: curveOf(i, step.node), class: "flow" });
    path.style.strokeWidth = 1 + 5 * r * e / sum + "px";
    by("edges").append(path);
    if (r * e < 0.01 * sum) continue;                 // the list beside the graph has all figures
    const x = (boxes[i].x + boxes[step.node].x + boxes[step.node].width) / 2;         // between the columns
    const { y } = path.getPointAtLength(path.getTotalLength() * 0.35);
    by("figures").append(shape("text", { x, y: y - 6 }, `${figure(r)} × ${short(e)}`));
  }
}

function threshold() {
  return Number(by("threshold").value) ** 2 * maximum;
}

// --- a step ----------------------------------------------------------------------------------------------------------

// The address of the page names question and step, so that a link can lead there.
function address() {
  const found = new URLSearchParams(location.hash.slice(1));
  return [(Number(found.get("question")) || 1) - 1, Number(found.get("step")) || 0];
}

function follow() {
  const [n, step] = address();
  choose(data.questions[n] ? n : 0, step);
}

function show(wanted) {
  at = Math.max(0, Math.min(query.steps.length + 1, wanted));
  const step = query.steps[Math.min(at, query.steps.length) - 1], done = at > query.steps.length;
  const candidates = (step && !done && step.candidates) || [];

  by("step").textContent = at === 0 ? "start" : done ? "answer" : `step ${at} of ${query.steps.length}`;
  by("back").disabled = by("first").disabled = at === 0;
  by("forward").disabled = by("last").disabled = done;
  by("says").textContent = sentence(step, done);
  by("hint").hidden = at > 0;
  by("answer-box").hidden = !done;
  by("answer").classList.toggle("long", query.answer.text.length > 60);
  by("answer").textContent = query.answer.text;
  by("end").textContent = query.answer.end;

  const order = new Map(query.steps.slice(0, at).map((s, k) => [s.node, k + 1]));
  const open = new Set(candidates.map(([node]) => node)), sources = new Set(inflow().map(([node]) => node));
  const found = done ? query.steps.find(s => holds(s.node)) : undefined;
  buttons.forEach((button, i) => {
    const now = done ? found && found.node === i : step && step.node === i;
    const state = now && done ? "has the answer" : now ? "read now" : order.has(i) ? "read" : open.has(i) ? "candidate" : "not read";
    button.classList.toggle("read", order.has(i));
    button.classList.toggle("now", Boolean(now));
    button.classList.toggle("source", sources.has(i));
    button.classList.toggle("candidate", open.has(i) && !now);
    button.dataset.order = order.get(i) || "";
    button.setAttribute("aria-label", `Node ${i} of level ${graph.levels[i]}, ${state}: ${button.title}`);
  });
  quote(done ? found && found.node : step && step.node, done ? query.answer.text : "");
  const shownNode = done ? found && found.node : step && step.node;
  if (shownNode !== undefined) {
    reveal(shownNode);
    tabTo(shownNode);
  }
  drawFlow();
  drawCurve();
  drawCandidates(candidates, step);
  drawInflow(step);
  drawRelevance(query.steps.slice(0, at), done ? null : step && step.node);
  drawSpent(done ? query.answer : step);
  drawSettings();
  history.replaceState(null, "", `#question=${data.questions.indexOf(query) + 1}&step=${at}`);
}

// Whether a node's text has the answer, word for word.
function holds(node) {
  return graph.texts[node].toLowerCase().includes(query.answer.text.toLowerCase());
}

// The text of a node, with the answer in it marked.
function quote(node, words) {
  const text = node === undefined ? "" : graph.texts[node], start = words ? text.toLowerCase().indexOf(words.toLowerCase()) : -1;
  const end = start < 0 ? text.length : start + words.length;
  by("reads").replaceChildren(text.slice(0, Math.max(start, 0)), start < 0 ? text : element("mark", text.slice(start, end)), text.slice(end));
}

function sentence(step, done) {
  if (!step) return "The question is read. Nothing of the document is known yet.";
  if (done) {
    const found = query.steps.find(s => holds(s.node));
    const where = found ? `#${found.node} has the answer, word for word.` : "No node that was read has the answer word for word.";
    return `${query.steps.length} of ${graph.texts.length} nodes were read. ${where}`;
  }
  if (!step.candidates) return `#${step.node} belongs to the top level, where every search starts.`;
  const [source] = inflow(), fromC = shareOfC(step.node), fromZ = step.score - fromC;
  const why = source && fromZ >= fromC
    ? `#${step.node} is read because #${source[0]} matters to the question (r ${figure(source[1])}), and ${short(source[2])} of #${source[0]}'s attention to its chunks went to #${step.node} while it was written.`
    : `#${step.node} is read because its text is similar to the question (c ${figure(step.c)}).`;
  const { attention, similarity } = query.settings;
  return attention && similarity ? `${why} Of its score of ${figure(step.score)}, ${figure(fromZ)} is from z and ${figure(fromC)} from c.` : why;
}

function reveal(node) {
  const box = boxes[node], view = by("scroll");
  if (box.y < view.scrollTop || box.y + box.height > view.scrollTop + view.clientHeight) view.scrollTop = box.y - view.clientHeight / 2;
  if (box.x < view.scrollLeft || box.x + box.width > view.scrollLeft + view.clientWidth) view.scrollLeft = box.x - 20;
}

function drawCurve() {
  const svg = by("curve"), W = 330, H = 92, limit = query.settings.confidence, n = query.steps.length;
  const x = k => 26 + (W - 34) * (n === 1 ? 0.5 : k / (n - 1)), y = p => 8 + (H - 16) * (1 - p);
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  const parts = [shape("line", { class: "axis", x1: 26, x2: W - 6, y1: y(0), y2: y(0) }),
                 shape("line", { class: "axis", x1: 26, x2: W - 6, y1: y(1), y2: y(1) }),
                 shape("line", { class: "limit", x1: 26, x2: W - 6, y1: y(limit), y2: y(limit) }),
                 shape("text", { x: 0, y: y(1) + 4 }, "1"), shape("text", { x: 0, y: y(0) + 3 }, "0"),
                 shape("text", { x: 0, y: y(limit) + 4 }, figure(limit))];
  const checks = query.steps.map((step, k) => [k, step]).filter(([, step]) => step.p_yes !== null);
  const line = points => points.map(([k, s], m) => `${m ? "L" : "M"}${x(k)} ${y(s.p_yes)}`).join("");
  parts.push(shape("path", { class: "line", d: line(checks.filter(([k]) => k < at)) }),
             shape("path", { class: "line later", d: line(checks.filter(([k]) => k >= at - 1)) }));
  for (const [k, step] of checks) {
    const later = k + 1 > at ? " later" : "";
    parts.push(shape("circle", { class: step.verdict.toLowerCase() + later, cx: x(k), cy: y(step.p_yes), r: k + 1 === at ? 5 : 3 }));
  }
  svg.replaceChildren(...parts);

  const step = query.steps[Math.min(at, n) - 1], verdict = by("verdict");
  verdict.replaceChildren();
  verdict.className = "";
  if (step && step.p_yes !== null) {
    verdict.append(shown(step.p_yes, "p_yes"), " ", element("span", step.verdict, "word"));
    verdict.className = step.verdict.toLowerCase();
  }
  svg.setAttribute("aria-label", "p_yes: " + checks.filter(([k]) => k < at).map(([k, s]) => `after node ${k + 1} ${figure(s.p_yes)} ${s.verdict}`).join(", "));
}

// The final score is the share of z plus the share of c; an ablation has only one of them.
function shareOfC(node) {
  const { attention, similarity } = query.settings, c = Math.max(query.c[node], 0);
  const sum = query.c.reduce((total, other) => total + Math.max(other, 0), 0) || 1;
  return !similarity ? 0 : attention ? c / sum : c;
}

function drawCandidates(candidates, step) {
  const highest = Math.max(...candidates.map(([, , score]) => score), 1e-300);
  by("choice").hidden = candidates.length === 0;
  by("candidates").replaceChildren(...candidates.map(([node, z, score]) => {
    const row = element("li", "", node === step.node ? "now" : ""), bar = element("span", "", "bar"), figures = element("span", "", "figure");
    const c = element("i", "", "c"), ofZ = element("i", "", "z"), button = nodeButton(node);
    ofZ.style.width = Math.max(0, score - shareOfC(node)) / highest * 100 + "%";
    c.style.width = shareOfC(node) / highest * 100 + "%";
    bar.append(ofZ, c);
    figures.append(shown(score, "score"), shown(z, "z-value"), shown(query.c[node], "c-value"));
    figures.title = `final score ${score}, z ${z}, c ${query.c[node]}`;
    button.append(element("span", graph.texts[node]));
    row.append(button, bar, figures);
    return row;
  }));
}

// z of the node that is read, as a sum.
function drawInflow(step) {
  const parts = at > query.steps.length ? [] : inflow();
  by("inflow-box").hidden = parts.length === 0;
  by("inflow-title").textContent = step ? `What enters #${step.node}: r × e` : "";
  by("inflow").replaceChildren(...parts.map(([i, r, e]) => {
    const row = element("li"), bar = element("span", "", "bar"), figures = element("span", "", "figure"), filled = element("i", "", "z");
    filled.style.width = r * e / step.z * 100 + "%";
    bar.append(filled);
    figures.append(shown(r, "r"), " × ", shown(e, "weight"), " = ", shown(r * e, "part"));
    row.append(nodeButton(i), bar, figures);
    return row;
  }));
  by("inflow-sum").replaceChildren(...(parts.length ? ["Together they are its z, ", shown(step.z, "z-sum"), "."] : []));
}

function drawRelevance(steps, now) {
  const highest = Math.max(...steps.map(step => step.r), 1e-300);
  by("relevance-box").hidden = steps.length === 0;
  by("relevance").replaceChildren(...[...steps].reverse().map(({ node, position, to_query, r }) => {
    const row = element("li", "", node === now ? "now" : ""), bar = element("span", "", "bar"), figures = element("span", "", "figure");
    const filled = element("i", "", "z");
    filled.style.width = r / highest * 100 + "%";
    bar.append(filled);
    figures.append(shown(r, "r"), ` = ${position} × `, shown(to_query, "attention"));
    row.append(nodeButton(node), bar, figures);
    return row;
  }));
}

function terms(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value, id]) => {
    const term = element("dt", name), definition = element("dd");
    definition.append(shown(value, id));
    return [term, definition];
  }));
}

function drawSpent(row) {
  const rows = !row ? [] : [["nodes read", Math.min(at, query.steps.length), "read"], ["tokens, checks included", row.tokens, "tokens"],
                            ["GFLOPs", row.flops / 1e9, "flops"]];
  if (row && row.cached !== undefined) rows.push(["tokens in the cache", row.cached, "cached"]);
  by("spent-box").hidden = !row;
  terms(by("spent"), rows);
}

function drawSettings() {
  const { window, chunk, confidence, patience, fixed_nodes: fixed, attention, similarity, tree } = query.settings;
  const rows = [["window s, tokens", window, "window"], ["chunk, tokens", chunk, "chunk"]];
  if (fixed) rows.push(["nodes, without checks", fixed, "fixed"]);
  else rows.push(["confidence t_p", confidence, "confidence"], ["patience t_n", patience, "patience"]);
  terms(by("settings"), rows);
  by("without").textContent = [attention || "without attention-guided retrieval", similarity || "without embedding similarity",
                               !tree || "without IP-based graph"].filter(words => words !== true).join(", ");
}

// --- a node ----------------------------------------------------------------------------------------------------------

function listOf(list, title, words, rows) {
  title.textContent = rows.length ? words : "";
  list.replaceChildren(...[...rows].sort((a, b) => b[1] - a[1]).map(([node, e]) => {
    const row = element("li"), button = nodeButton(node);
    button.textContent = `#${node} ${graph.texts[node]}`;
    button.dir = "auto";
    row.append(shown(e, "weight"), button);
    return row;
  }));
}

function details(node) {
  const read = query.steps.slice(0, at).find(step => step.node === node);
  by("details-title").textContent = `Node #${node} of level ${graph.levels[node]}`;
  by("details-text").textContent = graph.texts[node];
  by("details-figures").textContent = `cosine c ${figure(query.c[node])} · ${query.lengths[node]} tokens` + (read ? ` · r ${figure(read.r)}` : "");
  listOf(by("sources"), by("sources-title"), "Made from, by weight e", below[node]);
  listOf(by("targets"), by("targets-title"), "Used in, by weight e", above[node]);

  by("passage").replaceChildren();
  let chunk = node;
  while (below[chunk].length) chunk = below[chunk].reduce((best, edge) => edge[1] > best[1] ? edge : best)[0];
  const isChunk = chunk < graph.texts.length && graph.levels[chunk] === 1;
  by("passage-title").textContent = isChunk ? "In the document" + (chunk === node ? "" : `, down the strongest edges (chunk #${chunk})`) : "";
  if (isChunk) {
    const near = k => graph.levels[k] === 1 ? graph.texts[k] : "";
    by("passage").append(chunk ? near(chunk - 1) + " " : "", element("mark", graph.texts[chunk]), " " + near(chunk + 1));
  }
  if (!by("details").open) by("details").showModal();
  by("details").scrollTop = 0;
}

// --- start -----------------------------------------------------------------------------------------------------------

function draw() {
  layout();
  drawNodes();
  show(at);                                           // before styles are read, or a redraw would fade in
  drawEdges();
}

function choose(n, step = 0) {
  query = data.questions[n];
  at = step;
  document.title = query.question;
  by("question").textContent = query.question;
  by("questions").value = n;
  if (graph !== data.graphs[query.graph]) {
    graph = data.graphs[query.graph];
    below = graph.texts.map(() => []);
    above = graph.texts.map(() => []);
    for (const [i, j, e] of graph.edges) {
      below[i].push([j, e]);
      above[j].push([i, e]);
    }

    // At first, show about as many edges as nodes, and choose a row height that suits the window and the graph.
    const weights = graph.edges.map(edge => edge[2]).sort((a, b) => b - a);
    maximum = weights[0] || 1;
    by("threshold").value = Math.sqrt((weights[graph.texts.length] || 0) / maximum);
    const counts = {};
    for (const level of graph.levels) counts[level] = (counts[level] || 0) + 1;
    const fit = by("scroll").clientHeight / Math.max(...Object.values(counts)) - 9;
    const top = Math.max(...graph.levels), narrow = widthOf(by("scroll").clientWidth - 44, top) < 190;
    by("height").value = Math.max(graph.texts.length > 200 ? 6 : narrow ? 38 : 24, Math.min(38, fit));
  }
  draw();
}

data.questions.forEach((row, n) => {
  const option = element("option", row.question);
  option.value = n;
  by("questions").append(option);
});
by("questions-label").hidden = data.questions.length === 1;
by("questions").addEventListener("change", event => choose(Number(event.target.value)));
by("first").addEventListener("click", () => show(0));
by("back").addEventListener("click", () => show(at - 1));
by("forward").addEventListener("click", () => show(at + 1));
by("last").addEventListener("click", () => show(query.steps.length + 1));
by("threshold").addEventListener("input", drawEdges);
by("height").addEventListener("input", draw);
by("scroll").addEventListener("scroll", () => { by("heads").style.setProperty("--x", -by("scroll").scrollLeft + "px"); });
window.addEventListener("resize", draw);
window.addEventListener("hashchange", follow);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawEdges);
document.addEventListener("keydown", event => {
  const typing = ["INPUT", "SELECT"].includes(event.target.tagName) || by("details").open;
  const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: query.steps.length + 1 };
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const node = buttons.indexOf(event.target), along = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (node >= 0 && along) {
    event.preventDefault();
    walk(node, along);
  }
  if (!(event.key in moves)) return;
  event.preventDefault();
  show(moves[event.key]);
});
follow();
