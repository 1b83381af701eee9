"use strict";
// The script of view/page.py's page. Texts of documents become text nodes only, and sizes attributes or style properties.

const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const LEAST = 0.01;                                   // of z: a smaller r × e has no arrow
const PRINT = { clientWidth: 734, clientHeight: 524 };         // what the graph takes on a printed page
const PLOT = { left: 26, width: 298, bottom: 84, height: 76 };

let query, graph, at = 0, exponent = 0, boxes = [], buttons = [], printing = false;
let struck = new Set(), limits = {};                  // what the reader has changed: chips, and t_p and t_n

// --- small helpers ---------------------------------------------------------------------------------------------------

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(text);
  return made;
}

// Four significant digits, so that a product can be checked by hand.
function figure(value) {
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) < 0.001 ? value.toExponential(3) : Number(value.toPrecision(4)).toString();
}

// A share of 1, with two digits: .90
function short(e) {
  return e.toFixed(2).replace(/^0/, "");
}

function shown(value, name) {
  return element("span", name, figure(value));
}

// Amounts of attention (r, z) are given in units of a power of ten.
function attention(value, name) {
  return shown(value / 10 ** exponent, name);
}

function power() {
  return "10" + String(exponent).replace(/./g, sign => "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign] || "⁻");
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function nodeButton(node, ...more) {
  const made = element("button", "", "#" + node, ...more);
  made.title = graph.texts[node];
  made.addEventListener("click", () => details(node));
  return made;
}

// A line of a list: the node, a bar of parts, and figures.
function item(now, button, parts, ...figures) {
  const bar = element("span", "bar", ...parts.map(([name]) => element("i", name)));
  parts.forEach(([, share], k) => { bar.children[k].style.width = share * 100 + "%"; });
  return element("li", now ? "now" : "", button, bar, element("span", "figure", ...figures));
}

function tableRow(name, cells) {
  return element("tr", "", element("th", "", name), ...cells);
}

// --- the method ------------------------------------------------------------------------------------------------------

// What enters the node of a step from the nodes read before it: [node, r, e], the largest r × e first.
function inflow(number = at) {
  const step = query.steps[number - 1];
  if (!step?.candidates) return [];
  const r = new Map(query.steps.slice(0, number - 1).map(s => [s.node, s.r]));
  return graph.above[step.node].filter(([i]) => r.has(i)).map(([i, e]) => [i, r.get(i), e]).sort((a, b) => b[1] * b[2] - a[1] * a[2]);
}

// pecan.final_scores before this step, for all nodes, without what is in `off`.
function scores(off) {
  const now = query.steps[at - 1].node, [strongest] = inflow(), r = new Map(), z = graph.texts.map(() => 0);
  for (const step of query.steps.slice(0, at - 1)) r.set(step.node, off.has("position") ? step.to_query : step.r);
  for (const [i, j, e] of graph.edges) {
    const cut = off.has("edge") && i === strongest?.[0] && j === now;
    if (r.has(i) && !cut) z[j] += r.get(i) * e;
  }
  const c = query.c.map(cosine => Math.max(cosine, 0)), sumZ = sum(z), sumC = sum(c);
  const score = off.has("attention") ? query.c : off.has("similarity") ? z : z.map((value, i) => value / (sumZ || 1) + c[i] / (sumC || 1));
  return { r, score, sumZ, sumC };
}

// The node that pecan.Search.next would read at this step without what is struck out; undefined if nothing chooses.
// More cannot be said: r of a node that was not read needs the model.
function winner() {
  if (struck.has("attention") && struck.has("similarity")) return undefined;
  const { r, score } = scores(struck), room = query.room - sum([...r.keys()].map(i => query.lengths[i]));
  const fit = [...score.keys()].filter(i => !r.has(i) && query.lengths[i] <= room);
  return fit.reduce((best, i) => score[i] > score[best] ? i : best, fit[0]);
}

// After how many nodes reading ends with other limits: at the t_n-th check above t_p, or else where this search ended.
function stop({ confidence, patience }) {
  let yes = 0;
  const found = query.steps.findIndex(step => step.p_yes !== null && step.p_yes > confidence && ++yes >= patience);
  return found < 0 ? query.steps.length : found + 1;
}

// The part of a recorded score that is from c. An ablation has only one part.
function fromC(node) {
  const { attention, similarity } = query.settings, c = Math.max(query.c[node], 0);
  return !similarity ? 0 : attention ? c / (sum(query.c.map(other => Math.max(other, 0))) || 1) : query.c[node];
}

// Whether z chose a node, more than c.
function led(step) {
  return query.settings.attention && step.candidates && step.score >= 2 * fromC(step.node);
}

// The nodes that were read and have the answer as whole words, the largest r first. Yes, No and N/A prove nothing.
function evidence() {
  const words = query.answer.text.replace(/^[\s\p{P}]+|[\s\p{P}]+$/gu, ""), escaped = words.replace(/[^\p{L}\p{N}\s]/gu, sign => `\\u{${sign.codePointAt(0).toString(16)}}`);
  if (/^(yes|no|n\/?a|)$/i.test(words)) return { nodes: [] };
  const whole = new RegExp(`(?<![\\p{L}\\p{N}])${escaped}(?![\\p{L}\\p{N}])`, "iu");
  const nodes = query.steps.filter(step => whole.test(graph.texts[step.node])).sort((a, b) => b.r - a.r).map(step => step.node);
  return { words, whole, nodes };
}

// --- the graph -------------------------------------------------------------------------------------------------------

// Level 1 is the left column, as in Figure A1. A point is at the mean height of its sources, if there is room. Rows are low,
// so that one sees the graph whole; what was read has a line of text, what belongs to the step has several.
function layout() {
  const { columns, below } = graph, view = printing ? PRINT : by("scroll"), top = columns.length;
  const row = Math.max(3, Math.min(24, (view.clientHeight - 124) / Math.max(...columns.map(nodes => nodes.length)) - 1)), gap = row > 18 ? 4 : 1;
  const width = Math.max(view.clientWidth - 44, top * 84), wide = Math.min(0.68 * width / top, 360), shift = (width - wide) / Math.max(top - 1, 1);
  const canvas = by("canvas"), middle = [], tops = [];
  canvas.className = [wide < 90 ? "narrow" : "", row < 11 ? "low" : ""].join(" ");
  canvas.style.setProperty("--row", row + "px");
  for (const button of buttons) Object.assign(button.style, { width: wide + "px", height: "" });
  const heights = buttons.map(button => Math.max(row, button.matches(".open, .read") ? button.offsetHeight : 0));

  for (const nodes of columns) {
    const mean = [];
    for (const i of nodes) mean[i] = sum(below[i].map(([j, e]) => e * middle[j])) / (sum(below[i].map(([, e]) => e)) || 1);
    spread([...nodes].sort((a, b) => mean[a] - mean[b] || a - b), mean, heights, gap, tops);
    for (const i of nodes) middle[i] = tops[i] + heights[i] / 2;
  }
  const highest = Math.min(...tops);
  boxes = buttons.map((button, i) => {
    const box = { left: (graph.levels[i] - 1) * shift, top: tops[i] - highest + 3, height: heights[i] };
    for (const [name, value] of Object.entries(box)) button.style[name] = value + "px";
    return { ...box, right: box.left + wide, middle: box.top + heights[i] / 2 };
  });
  canvas.style.width = width - 2 + "px";
  canvas.style.height = Math.max(...boxes.map(box => box.top + box.height)) + 6 + "px";
  by("heads").replaceChildren(...columns.map((nodes, n) => {
    const head = element("span", "", `level ${n + 1}: ${nodes.length} ${n ? "points" : "chunks"}`);
    Object.assign(head.style, { left: n * shift + "px", maxWidth: (shift || width) - 4 + "px" });
    return head;
  }));
}

// The tops of a column, at the wanted middles or as near as possible without an overlap (least squares). Neighbours that
// would overlap become one block.
function spread(order, wanted, heights, gap, tops) {
  const blocks = [], offsets = [];
  let offset = 0;
  for (const i of order) {
    let block = { sum: wanted[i] - heights[i] / 2 - offset, count: 1 };
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).count >= block.sum / block.count) {
      const before = blocks.pop();
      block = { sum: before.sum + block.sum, count: before.count + block.count };
    }
    blocks.push(block);
    offsets.push(offset);
    offset += heights[i] + gap;
  }
  const starts = blocks.flatMap(block => Array(block.count).fill(block.sum / block.count));
  order.forEach((i, n) => { tops[i] = starts[n] + offsets[n]; });
}

function makeNodes() {
  buttons.forEach(button => button.remove());
  buttons = graph.texts.map((text, i) => {
    const button = nodeButton(i);
    button.className = "node";
    button.replaceChildren(element("span", "", element("b", "", "#" + i), " ", element("i", "", text)));
    button.dir = "auto";
    button.tabIndex = -1;                             // the lists lead to the same texts
    return button;
  });
  by("canvas").append(...buttons);
}

// The heaviest edges, as many as nodes; above them the arrows of a step with their e, or the path to the answer.
function drawEdges(step) {
  const parts = inflow(), z = sum(parts.map(([, r, e]) => r * e)), { attention } = query.settings;
  const arrows = step ? parts.filter(([, r, e]) => attention && r * e >= LEAST * z).map(([i, r, e]) => [i, step.node, r * e / z, e])
    : at ? query.steps.flatMap((s, k) => led(s) ? [[inflow(k + 1)[0][0], s.node, 0.3]] : []) : [];
  const path = (i, j, width, name, opacity) => {
    const a = boxes[i], b = boxes[j], bend = (a.left + b.right) / 2;
    return shape("path", { class: name, opacity, "stroke-width": width, d: `M${a.left} ${a.middle}C${bend} ${a.middle} ${bend} ${b.middle} ${b.right} ${b.middle}` });
  };
  by("edges").replaceChildren(...graph.drawn.map(([i, j, e]) => path(i, j, 4 * e, "", (at ? 0.3 : 0.8) * e)),
                              ...arrows.map(([i, j, share]) => path(i, j, 1 + 5 * share, "flow", 1)));
  by("figures").replaceChildren(...arrows.filter(arrow => arrow[3]).map(([i, j, , e]) => {
    const y = boxes[i].middle + (boxes[j].middle < boxes[i].middle ? 15 : -6);         // on the side where the arrow is not
    return shape("text", { x: boxes[i].left - 4, y }, "× " + short(e));
  }));
}

// --- a step ----------------------------------------------------------------------------------------------------------

// The address of the page names question and step, so that a link can lead there.
function follow() {
  const found = new URLSearchParams(location.hash.slice(1)), n = (Number(found.get("question")) || 1) - 1;
  choose(data.questions[n] ? n : 0, location.hash ? Number(found.get("step")) || 0 : data.start);
}

function show(wanted) {
  const n = query.steps.length, ended = stop(limits), { answer } = query;
  at = Math.max(0, Math.min(n + 1, wanted));
  const done = at > n, step = query.steps[at - 1], candidates = step?.candidates ?? [], last = query.steps[Math.min(at, n) - 1];
  const found = done ? evidence() : { nodes: [] }, now = done ? found.nodes[0] : step?.node, [instead] = candidates.length ? [winner()] : [];
  by("step").textContent = at === 0 ? "start" : done ? "answer" : `step ${at} of ${n}`;
  by("back").disabled = by("first").disabled = at === 0;
  by("forward").disabled = by("last").disabled = done;
  by("hint").hidden = at > 0;
  by("answer-box").hidden = !done;
  by("answer").classList.toggle("long", answer.text.length > 60);
  by("answer").textContent = ended < n ? "" : answer.text;
  by("end").textContent = ended < n ? `An answer after step ${ended} needs the model.` : answer.end;

  const order = new Map(query.steps.slice(0, at).map((s, k) => [s.node, k + 1])), open = new Set(candidates.map(([node]) => node));
  const sources = new Set(inflow().filter(([, r, e]) => query.settings.attention && r * e >= LEAST * step.z).map(([node]) => node));
  buttons.forEach((button, i) => {
    const states = { read: order.has(i), now: now === i, holds: done && now === i, candidate: open.has(i) && now !== i,
                     source: sources.has(i), instead: i === instead && i !== now, behind: order.get(i) > ended };
    states.open = states.now || states.source || states.instead;
    for (const [name, on] of Object.entries(states)) button.classList.toggle(name, Boolean(on));
    button.dataset.order = order.get(i) || "";
    const said = Object.keys(states).filter(name => states[name] && name !== "open").join(", ") || "not read";
    button.setAttribute("aria-label", `Node ${i} of level ${graph.levels[i]}, ${said}: ${button.title}`);
  });
  layout();
  drawEdges(step);
  if (now !== undefined) reveal(now);

  by("says").replaceChildren(...sentence(step, done, found));
  quote(now, found.whole);
  drawWhatIf(step, instead);
  drawCurve(ended, last);
  drawCandidates(candidates, step);
  drawInflow(step);
  drawTwins(step);
  drawRelevance(step);
  const { tokens, flops, cached } = done ? answer : last || {};
  by("spent").replaceChildren(...(at ? [shown(Math.min(at, n)), " nodes, ", shown(tokens), " tokens with the checks, ", shown(flops / 1e9), " GFLOPs",
                                        ...(done ? [] : ["; ", shown(cached), " tokens in the cache"])] : []));
  by("settings").textContent = Object.entries(WORDS).map(([name, words]) => words(query.settings)).filter(Boolean).join(", ");
  history.replaceState(null, "", `#question=${data.questions.indexOf(query) + 1}&step=${at}`);
}

// The text of a node, with the answer in it marked.
function quote(node, words) {
  const text = node === undefined ? "" : graph.texts[node], found = words?.exec(text);
  by("reads").replaceChildren(...(found ? [text.slice(0, found.index), element("mark", "", found[0]), text.slice(found.index + found[0].length)] : [text]));
}

function sentence(step, done, { words, nodes }) {
  if (done) {
    const [first, ...others] = nodes.map(node => "#" + node), also = others.length ? ", also in " + others.join(", ") : "";
    return [`${query.steps.length} of ${graph.texts.length} nodes were read; ${query.answer.end}.`, first ? ` "${words}" stands in ${first}${also}.` : ""];
  }
  if (!step) return ["The question is read. Nothing of the document is known yet."];
  const { node, score } = step, [source] = inflow(), c = fromC(node), { attention: uses, similarity } = query.settings;
  if (!step.candidates) return [`#${node} belongs to the top level, where every search starts.`];
  const why = led(step) ? [`#${node} is read because of what enters it, above all from #${source[0]}, which looks back at the question, r `, attention(source[1]), ` × ${power()}. While the model wrote #${source[0]}, `, shown(source[2]), ` of its attention to level ${graph.levels[node]} went to #${node}.`]
    : [`#${node} is read because its text is similar to the question, c `, shown(query.c[node]), "."];
  return [...why, ...(uses && similarity ? [" Its score, ", shown(score), ", is ", shown(score - c), " from z plus ", shown(c), " from c."] : [])];
}

function reveal(node) {
  const { top, height, left, right } = boxes[node], view = by("scroll");
  if (top < view.scrollTop || top + height > view.scrollTop + view.clientHeight) view.scrollTop = top - view.clientHeight / 2;
  if (left < view.scrollLeft || right > view.scrollLeft + view.clientWidth) view.scrollLeft = left - 20;
}

// --- when it stops ---------------------------------------------------------------------------------------------------

function drawCurve(ended, last) {
  const { left, width, bottom, height } = PLOT, n = query.steps.length, { fixed_nodes: fixed, confidence, patience } = query.settings;
  const x = k => left + width * (k - 1) / Math.max(n - 1, 1), y = p => bottom - height * p;
  const line = (p, name) => shape("line", { class: name, x1: left, x2: left + width, y1: y(p), y2: y(p) });
  const checks = query.steps.map((step, k) => [k + 1, step.p_yes]).filter(([, p]) => p !== null);
  const ticks = [...query.steps.keys()].map(k => k + 1).filter(k => k === 1 || k % 5 === 0);
  by("curve").replaceChildren(
    line(0, "axis"), line(1, "axis"), ...[0, 1].map(p => shape("text", { x: 6, y: y(p) + 4 }, p)),
    ...ticks.map(k => shape("text", { x: x(k), y: bottom + 20 }, k === 1 ? "step 1" : k)),
    shape("path", { d: checks.map(([k, p], m) => `${m ? "L" : "M"}${x(k)} ${y(p)}`).join("") }),
    ...checks.map(([k, p]) => shape("circle", { class: p > limits.confidence ? "yes" : "", opacity: k > Math.min(at, ended) ? 0.3 : 1, cx: x(k), cy: y(p), r: k === at ? 5 : 3 })),
    line(limits.confidence, "limit"), shape("text", { x: left + 12, y: y(limits.confidence) - 4 }, "t_p"), line(limits.confidence, "grip"));
  for (const id of ["curve", "limits"]) by(id).toggleAttribute("hidden", Boolean(fixed));

  // A search that stopped by itself has read no further, so less patience or confidence is all that can be tried.
  const itself = query.steps.filter(step => step.verdict === "Yes").length >= patience, starting = query.steps.filter(step => !step.candidates).length;
  Object.assign(by("confidence"), { max: itself ? confidence : 0.9999, value: limits.confidence });
  Object.assign(by("patience"), { max: itself ? patience : checks.length, value: limits.patience });
  by("stop").textContent = fixed ? `This search read a fixed number of nodes, ${fixed}, without checks: it has no p_yes.`
    : `With this t_p and t_n, reading ends after step ${ended}${ended === n ? ": " + query.answer.end : ""}.` +
      (starting > 1 ? ` Steps 1 to ${starting} are the top level, which has one check.` : "") +
      (itself ? " This search stopped by itself, so the line can only be lowered: what comes later needs the model." : "");
  by("verdict").replaceChildren(...(last?.verdict ? [shown(last.p_yes, "p_yes"), " " + last.verdict] : []));
  by("verdict").className = last?.verdict === "Yes" ? "yes" : "";
}

function limit(name, value) {
  const { min, max } = by(name);
  limits[name] = Math.max(min, Math.min(max, value));
  show(at);
}

// --- why this node ---------------------------------------------------------------------------------------------------

// What chose: z, c, or both.
function drawCandidates(candidates, step) {
  const { attention: uses, similarity } = query.settings, highest = Math.max(...candidates.map(([, , score]) => score), 1e-300);
  by("choice").hidden = candidates.length === 0;
  if (candidates.length) {
    const { sumZ, sumC } = scores(new Set());
    by("choice-title").textContent = "Candidates, by " + (!uses ? "c" : !similarity ? "z" : "their shares of z and c");
    by("formula").replaceChildren(...(!uses ? ["score = c"] : !similarity ? [`score = z, in ${power()}`]
      : ["score = z / ", attention(sumZ, "sum-z"), " + max(c, 0) / ", shown(sumC, "sum-c"), `; z in ${power()}, the sums are over all nodes`]));
  }
  by("candidates").replaceChildren(...candidates.map(([node, z, score]) => {
    const c = Math.max(fromC(node), 0);
    return item(node === step.node, nodeButton(node, element("span", "", graph.texts[node])), [["z", Math.max(0, score - c) / highest], ["c", c / highest]],
                (similarity || !uses ? shown : attention)(score, "score"), attention(z, "z-value"), shown(query.c[node], "c-value"));
  }));
}

// z of the node that is read, as a sum.
function drawInflow(step) {
  const parts = inflow();
  by("inflow-box").hidden = parts.length === 0;
  by("heat").replaceChildren();
  by("inflow-title").textContent = step ? `What enters #${step.node}: r × e, in ${power()}` + (query.settings.attention ? "" : " (not used in this search)") : "";
  by("inflow").replaceChildren(...parts.map(([i, r, e]) => item(false, nodeButton(i), [["z", r * e / (step.z || 1)]],
    attention(r, "r"), " × ", weight(i, step.node, e, by("heat")), " = ", attention(r * e, "part"))));
  by("inflow-sum").replaceChildren(...(parts.length ? ["Together they are its z, ", attention(step.z, "z-sum"), "."] : []));
}

// An edge weight. If the page knows the attention that it comes from, pointing at it shows that in `table`.
function weight(i, j, e, table) {
  if (!graph.heat[i]) return shown(e, "weight");
  const button = element("button", "weight", figure(e));
  for (const event of ["click", "pointerenter", "focus"]) button.addEventListener(event, () => drawHeat(i, j, table));
  return button;
}

// The rows of the heat table that belong to point i: a(x, j) of each token.
function drawHeat(i, j, table) {
  const { tokens, rows } = graph.heat[i], columns = [...graph.below[i]].sort((a, b) => a[0] - b[0]);
  const line = (name, texts) => tableRow(name, texts.map((text, k) => element("td", columns[k][0] === j ? "column" : "", text)));
  table.replaceChildren(
    element("caption", "", `What the model looked at while it wrote #${i}: a(x, j) × 10,000. e is the mean of a column, divided by the sum of the means.`),
    line("", columns.map(([node]) => "#" + node)), ...rows.map((row, x) => line(tokens[x], row.map(a => a ? figure(a / 10) : ""))),
    line("e", columns.map(([node, e]) => node === j ? figure(e) : short(e))));
}

// What the settings strike out, then what the reader does.
function off() {
  return ["attention", "similarity"].filter(name => !query.settings[name]);
}

function drawWhatIf(step, node) {
  by("whatif-box").hidden = !step?.candidates;
  if (by("whatif-box").hidden) return;
  for (const chip of by("chips").querySelectorAll("button")) chip.setAttribute("aria-pressed", !struck.has(chip.value));
  by("edge").disabled = inflow().length === 0;
  by("whatif").textContent = node === undefined ? "Then nothing would choose the next node."
    : node !== step.node ? `Then #${node} would be read next: "${graph.texts[node].replace(/(.{99}).+/u, "$1…")}"`
    : String([...struck].sort()) === String(off()) ? "" : `Then it would still be #${node}.`;
}

function strike(name) {
  if (!struck.delete(name)) struck.add(name);
  show(at);
  const node = winner();
  if (node !== undefined) buttons[node].scrollIntoView({ block: "nearest", inline: "nearest" });
}

function drawRelevance(step) {
  const steps = query.steps.slice(0, at).reverse(), highest = Math.max(...steps.map(row => row.r), 1e-300);
  by("relevance-box").hidden = steps.length === 0;
  by("relevance-title").textContent = `Relevance r = position × attention, in ${power()}`;
  by("relevance").replaceChildren(...steps.map(({ node, position, to_query, r }) =>
    item(node === step?.node, nodeButton(node), [["z", r / highest]], attention(r, "r"), ` = ${position} × `, attention(to_query, "attention"))));
}

// --- the same question, searched in other ways -----------------------------------------------------------------------

const WORDS = {
  limits: ({ fixed_nodes: fixed, confidence, patience }) => fixed ? `${fixed} nodes` : `t_p ${confidence}` + (patience > 1 ? `, t_n ${patience}` : ""),
  attention: ({ attention }) => attention ? "" : "without attention", similarity: ({ similarity }) => similarity ? "" : "without similarity",
  tree: ({ tree }) => tree ? "without the IP-based graph" : "", window: ({ window }) => `window ${window}`, chunk: ({ chunk }) => `chunks of ${chunk}`,
};

// In what its settings differ from those of other searches of the same question.
function differences(search) {
  const twins = data.questions.filter(other => other.question === search.question);
  return Object.values(WORDS).filter(words => twins.some(other => words(other.settings) !== words(search.settings)))
    .map(words => words(search.settings)).filter(Boolean).join(", ");
}

function drawTwins(step) {
  const twins = data.questions.filter(other => other.question === query.question && other.graph === query.graph);
  by("twins-box").hidden = twins.length < 2;
  const line = (name, texts) => tableRow(name, texts.map(text => element("td", "", text)));
  by("twins").replaceChildren(
    line("", twins.map(differences)), line("answer", twins.map(twin => twin.answer.text)), line("end", twins.map(twin => twin.answer.end)),
    ...Array.from({ length: Math.max(...twins.map(twin => twin.steps.length)) }, (_, k) => line(k + 1, twins.map(twin => {
      if (!twin.steps[k]) return "";
      const { node } = twin.steps[k], button = element("button", node === step?.node ? "now" : "", "#" + node);
      button.title = graph.texts[node];
      button.addEventListener("click", () => choose(data.questions.indexOf(twin), k + 1));
      return button;
    }))));
}

// --- a node ----------------------------------------------------------------------------------------------------------

function details(node) {
  const read = query.steps.slice(0, at).find(step => step.node === node);
  by("details-title").textContent = `Node #${node} of level ${graph.levels[node]}`;
  by("details-text").textContent = graph.texts[node];
  by("details-figures").replaceChildren("cosine c ", shown(query.c[node]), ` · ${query.lengths[node]} tokens`, ...(read ? [" · r ", attention(read.r), ` × ${power()}`] : []));
  by("details-heat").replaceChildren();
  const lists = { sources: graph.below[node].map(([j, e]) => [j, e, node, j]), targets: graph.above[node].filter(([, e]) => e >= 0.02).map(([i, e]) => [i, e, i, node]) };
  for (const [id, rows] of Object.entries(lists)) {
    by(id + "-title").hidden = rows.length === 0;
    by(id).replaceChildren(...rows.sort((a, b) => b[1] - a[1]).map(([other, e, i, j]) => element("li", "", weight(i, j, e, by("details-heat")), nodeButton(other, " " + graph.texts[other]))));
  }
  if (!by("details").open) by("details").showModal();
  by("details").scrollTop = 0;
}

// --- start -----------------------------------------------------------------------------------------------------------

function choose(n, step) {
  query = data.questions[n];
  graph = data.graphs[query.graph];
  struck = new Set(off());
  limits = { ...query.settings };
  exponent = Math.floor(Math.log10(Math.max(...query.steps.map(row => row.r)) || 10)) - 1;
  document.title = by("question").textContent = query.question;
  by("questions").value = n;
  makeNodes();
  show(step);
}

for (const found of data.graphs) {
  found.levels = found.nodes.map(node => node.level);
  found.texts = found.nodes.map(node => node.text);
  found.columns = Array.from({ length: Math.max(...found.levels) }, (_, n) => [...found.levels.keys()].filter(i => found.levels[i] === n + 1));
  found.below = found.texts.map(() => []);
  found.above = found.texts.map(() => []);
  for (const [i, j, e] of found.edges) {
    found.below[i].push([j, e]);
    found.above[j].push([i, e]);
  }
  found.drawn = [...found.edges].sort((a, b) => b[2] - a[2]).slice(0, found.texts.length);
}
data.questions.forEach((row, n) => {
  const words = differences(row), option = element("option", "", `${n + 1}. ${words ? words + ": " : ""}${row.question}`);
  option.value = n;
  by("questions").append(option);
});
by("questions-label").hidden = data.questions.length === 1;
by("questions").addEventListener("change", event => choose(Number(event.target.value), 0));
by("first").addEventListener("click", () => show(0));
by("back").addEventListener("click", () => show(at - 1));
by("forward").addEventListener("click", () => show(at + 1));
by("last").addEventListener("click", () => show(query.steps.length + 1));
by("chips").addEventListener("click", event => { if (event.target.value) strike(event.target.value); });
for (const name of ["confidence", "patience"]) by(name).addEventListener("change", event => limit(name, event.target.value));
by("curve").addEventListener("pointerdown", event => { if (event.target.matches(".grip")) by("curve").setPointerCapture(event.pointerId); });
by("curve").addEventListener("pointermove", event => {
  if (!by("curve").hasPointerCapture(event.pointerId)) return;
  const { top, height } = by("curve").getBoundingClientRect(), y = (event.clientY - top) / height * by("curve").viewBox.baseVal.height;
  limit("confidence", ((PLOT.bottom - y) / PLOT.height).toFixed(2));
});
by("scroll").addEventListener("scroll", () => { by("heads").style.setProperty("--x", -by("scroll").scrollLeft + "px"); });
addEventListener("resize", () => show(at));
addEventListener("hashchange", follow);
for (const event of ["beforeprint", "afterprint"]) addEventListener(event, () => {
  printing = event === "beforeprint";
  show(at);
});
document.addEventListener("keydown", event => {
  const typing = ["INPUT", "SELECT"].includes(event.target.tagName) || by("details").open;
  const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: query.steps.length + 1 };
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in moves)) return;
  event.preventDefault();
  show(moves[event.key]);
});
follow();
