"use strict";
// The explorer: a form made from the table of options, one question at a time, its answer drawn.
const at = (id) => document.getElementById(id);
const later = 120; // from the last key to the question [ms]
const settled = 250; // from an answer to its sections: not for one that is changed at once [ms]
const most = 6; // pinned plans
let catalog, answer = null, asked = "", controller = null, timer = 0, front = null;
let pins = [];

// ---------------------------------------------------------------------------------- the form

function field(option) {
  const id = `option-${option.name}`, help = `${id}-help`;
  const shared = { id, name: option.name, "aria-describedby": help };
  const about = element("p", { class: "help", id: help }, option.help);
  const isLong = option.group === "Question" && !["seq", "global_batch", "framework", "precision"].includes(option.name);
  if (option.kind === "flag") {
    return element("div", { class: "field check long" },
      element("label", {}, element("input", { ...shared, type: "checkbox" }), option.label), about);
  }
  const label = element("label", { for: id }, option.label);
  if (option.choices.length) {
    const choices = option.choices.map((text) => element("option", { value: text }, text));
    const free = new Option("", "");
    return element("div", { class: "field" }, label, element("select", shared, free, ...choices), about);
  }
  const list = option.names.length ? `${id}-names` : "";
  const names = list ? [element("datalist", { id: list }, ...option.names.map((name) => element("option", { value: name })))] : [];
  const input = element("input", { ...shared, type: "text", list, placeholder: option.metavar, spellcheck: "false" });
  return element("div", { class: isLong ? "field long" : "field" }, label, input, ...names, about);
}

function buildForm() {
  for (const group of ["Question", "Strategy"]) {
    const own = catalog.options.filter((option) => option.group === group);
    const first = own.filter((option) => option.is_first), rest = own.filter((option) => !option.is_first);
    at("question").append(element("fieldset", {}, element("legend", {}, group),
      element("div", { class: "fields" }, ...first.map(field)),
      element("details", {}, element("summary", {}, `${rest.length} more`), element("div", { class: "fields" }, ...rest.map(field)))));
  }
}

const input = (name) => at(`option-${name}`);

function stated() {
  const found = {};
  for (const option of catalog.options) {
    const entry = input(option.name);
    const text = option.kind === "flag" ? (entry.checked ? "on" : "") : entry.value.trim();
    if (text) found[option.name] = text;
  }
  return found;
}

function fill(options) {
  for (const option of catalog.options) {
    const entry = input(option.name), text = options[option.name] || "";
    if (option.kind === "flag") entry.checked = text === "on";
    else entry.value = text;
    if (text && !option.is_first) entry.closest("details").open = true;
  }
}

const isStrategy = new Set();
const only = (options, wanted) => Object.fromEntries(
  Object.entries(options).filter(([name]) => isStrategy.has(name) === wanted));

const mode = () => at("question").elements.mode.value;
function setMode(value) { at("question").elements.mode.value = value; }

// ------------------------------------------------------------------------- the state, as a URL

function writeState() {
  const words = new URLSearchParams({ mode: mode(), ...stated() });
  for (const pin of pins) words.append("pin", new URLSearchParams(pin).toString());
  history.replaceState(null, "", `#${words}`);
}

function readState() {
  const words = new URLSearchParams(location.hash.slice(1));
  const known = (pairs) => Object.fromEntries([...pairs].filter(([name]) => catalog.options.some((option) => option.name === name)));
  const options = known(words), isEmpty = !Object.keys(options).length;
  fill(isEmpty ? catalog.start : options);
  pins = words.getAll("pin").slice(0, most).map((text) => known(new URLSearchParams(text)));
  const start = Object.keys(catalog.start).some((name) => isStrategy.has(name)) ? "estimate" : "search";
  setMode(words.get("mode") === "estimate" || words.get("mode") === "search" ? words.get("mode") : start);
}

// -------------------------------------------------------------------------------- asking

// The token of the printed address leaves it for this tab's storage, which no other port can read.
function enter() {
  const words = new URLSearchParams(location.hash.slice(1));
  if (!words.has("token")) return;
  sessionStorage.setItem("token", words.get("token"));
  words.delete("token");
  history.replaceState(null, "", `#${words}`);
}

async function send(path, request = {}) {
  const reply = await fetch(path, {
    ...request, headers: { ...request.headers, Authorization: `Bearer ${sessionStorage.getItem("token")}` },
  });
  if (reply.status === 401) throw new Error(await reply.text());
  return reply;
}

const post = (path, body, signal) => send(path, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
});

async function lines(path, body, signal, each) {
  const reader = (await post(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", last = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return last;
    text += value;
    const whole = text.split("\n");
    text = whole.pop();
    for (const line of whole) {
      last = JSON.parse(line);
      if (last.progress) each(last.progress);
    }
  }
}

function say(text, state) {
  at("status").textContent = text;
  if (state) document.body.dataset.state = state;
}

function tellFaults(error) {
  at("faults").hidden = !error;
  for (const option of catalog.options) input(option.name).removeAttribute("aria-invalid");
  if (!error) return;
  const faults = error.faults.length ? error.faults : [{ path: "", message: error.message, fix: "" }];
  at("faults").replaceChildren(
    element("strong", {}, faults.length > 1 ? `${faults.length} faults` : "This cannot be answered"),
    element("ul", {}, ...faults.map((fault) => element("li", {},
      [fault.path, fault.message].filter(Boolean).join(": ") + (fault.fix ? ` (${fault.fix})` : "")))));
  for (const fault of faults) {
    const option = catalog.options.find((entry) => entry.flag === fault.path);
    if (option) input(option.name).setAttribute("aria-invalid", "true");
  }
}

// A new question ends the one before: the server sees the connection close, and stops.
async function ask() {
  if (controller) controller.abort();
  const own = controller = new AbortController();
  const options = stated(), what = mode(), started = performance.now();
  clearTimeout(timer);
  asked = JSON.stringify([what, options]);
  writeState();
  say(what === "search" ? "searching" : "pricing", "busy");
  at("answer").classList.add("stale");
  try {
    const progress = (text) => say(`searching: ${text}`);
    const search = at("stop").value = crypto.randomUUID();
    at("stop").hidden = what !== "search";
    const found = what === "search"
      ? await lines("/api/search", { options, search }, own.signal, progress)
      : await (await post("/api/estimate", { options }, own.signal)).json();
    if (own.signal.aborted) return;
    at("stop").hidden = true;
    tellFaults(found.error);
    if (found.error) return say("", "failed");
    show(found);
    performance.measure(what, { start: started, end: performance.now() });
    say(`${what === "search" ? "searched" : "priced"} in ${Math.round(performance.now() - started)} ms`, "done");
    await drawSections(found, own.signal);
    if (!own.signal.aborted && what === "search") await findFront(options, own.signal);
  } catch (fault) {
    if (own.signal.aborted) return;
    at("stop").hidden = true;
    say("", "failed");
    tellFaults({ faults: [], message: `the explorer does not answer: ${fault.message}` });
  }
}

function askSoon() {
  if (asked === JSON.stringify([mode(), stated()])) return;
  if (controller) controller.abort();
  clearTimeout(timer);
  document.body.dataset.state = "busy";
  timer = setTimeout(ask, later);
}

// ------------------------------------------------------------------------------ the answer

function show(found) {
  answer = found;
  at("title").textContent = found.page.title;
  at("asked").textContent = found.page.subtitle;
  document.title = `${found.page.title}: meshwright explore`;
  for (const [name, text] of Object.entries(found.texts)) {
    const entry = input(name);
    if (entry instanceof HTMLSelectElement) entry.options[0].text = mode() === "estimate" ? `(${text})` : "(any)";
    else entry.placeholder = mode() === "estimate" ? text : "any";
  }
  at("answer").classList.remove("stale");
  at("answer").replaceChildren(
    element("p", { class: "string" }, found.plans[0].plan), ...warnings({ warnings: [...catalog.notes, ...found.page.warnings] }), tiles(found.page),
    ...(found.plans.length > 1 ? [plansTable(found.plans, "Leading plans")] : []));
  at("keep").hidden = false;
  at("verified").textContent = "";
  if (found.target) at("target").value = found.target;
  if (front && front.key !== JSON.stringify(only(stated(), false))) at("front").hidden = true;
}

async function drawSections(found, signal) {
  await new Promise((resume) => setTimeout(resume, settled));
  if (signal.aborted) return;
  const plan = JSON.stringify(found.answer);
  const { sections, error } = await (await post("/api/sections", { plan }, signal)).json();
  if (signal.aborted) return;
  if (error) tellFaults(error);
  else await redraw(at("sections"), sectionsOf(sections));
  if (signal.aborted) return;
  at("wafer").hidden = !found.answer.best.placement;
  if (found.answer.best.placement) await drawMap("", signal);
}

// Replace what is drawn; the page keeps its height meanwhile, so that it does not jump.
async function redraw(place, nodes) {
  for (const old of place.querySelectorAll(".chart")) if (old.view) old.view.finalize();
  place.style.minHeight = `${place.offsetHeight}px`;
  place.replaceChildren(...nodes);
  await draw(false, place);
  place.style.minHeight = "";
}

function plansTable(plans, caption) {
  const head = ["plan", "step", "memory", "MFU"].map((name, index) => element("th", { scope: "col", class: index ? "number" : "" }, name));
  return element("div", { class: "wide", tabindex: "0", role: "group", "aria-label": caption }, element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head, element("th", { scope: "col" }, "do"))),
    element("tbody", {}, ...plans.map((entry) => element("tr", {},
      element("td", { class: "string" }, entry.plan),
      ...entry.cells.map((text) => element("td", { class: "number" }, text)),
      element("td", {},
        element("button", { type: "button", click: () => edit(entry.options), "aria-label": `Change ${entry.plan}` }, "Change"),
        element("button", { type: "button", click: () => pin(entry.options), "aria-label": `Pin ${entry.plan}` }, "Pin")))))));
}

function edit(strategy) {
  fill({ ...only(stated(), false), ...strategy });
  setMode("estimate");
  ask();
}

// -------------------------------------------------------------------------- the Pareto chart

async function findFront(options, signal) {
  const key = JSON.stringify(only(options, false)) + JSON.stringify(only(options, true));
  if (!front || front.all !== key) {
    const found = await lines("/api/front", { options }, signal, (text) => say(`Pareto front: ${text}`));
    if (signal.aborted || found.error) return;
    front = { ...found, all: key, key: JSON.stringify(only(options, false)) };
    at("front").hidden = false;
    await redraw(at("front-chart"), drawn([found.chart]));
    at("front-chart").querySelector(".chart").view.addSignalListener("brush", (name, area) => brush(area));
    brush({});
    say(`${found.plans.length} plans on the Pareto front`);
  }
  at("front").hidden = false;
  document.body.dataset.front = front.plans.length;
}

function brush(area) {
  const placed = Object.fromEntries(front.chart.spec.data.values.map((point) => [point.label, point])), isIn = (range, value) => !range || (value >= Math.min(...range) && value <= Math.max(...range));
  const inside = front.plans.filter((entry) => isIn(area.x, placed[entry.plan].x) && isIn(area.y, placed[entry.plan].y));
  at("brushed").textContent = `${inside.length} of ${front.plans.length} plans`;
  at("front-plans").replaceChildren(plansTable(inside, "Plans in the area"));
}

// ------------------------------------------------------------------------------- the wafer

async function drawMap(axis, signal) {
  const found = await (await post("/api/picture", { plan: JSON.stringify(answer.answer), axis }, signal)).json();
  if (found.error) { at("wafer").hidden = true; return; }
  await redraw(at("map"), drawn([found.part]));
  if (!axis) at("axis").replaceChildren(...found.axes.map((name) => element("option", { value: name }, name)));
}

// -------------------------------------------------------------------------------- pinned plans

function pin(strategy) {
  const all = { ...only(stated(), false), ...strategy };
  const whole = Object.fromEntries(catalog.options.filter(({ name }) => all[name]).map(({ name }) => [name, all[name]]));
  const text = JSON.stringify(whole);
  if (pins.some((other) => JSON.stringify(other) === text)) return;
  pins = [...pins, whole].slice(-most);
  writeState();
  showPins();
}

async function showPins() {
  at("pins").hidden = !pins.length;
  at("pinned").replaceChildren(...pins.map((options, index) => {
    const name = String.fromCharCode(65 + index);
    const words = `${name}: ${options.model} on ${options.on}, ${Object.entries(only(options, true)).map(([key, text]) => `${key} ${text}`).join(", ") || "as usual"}`;
    return element("li", {},
      words,
      element("button", { type: "button", "aria-label": `Show ${name}`, click: () => { fill(options); setMode("estimate"); ask(); } }, "Show"),
      element("button", { type: "button", "aria-label": `Unpin ${name}`, click: () => { pins = pins.filter((other) => other !== options); writeState(); showPins(); } }, "Unpin"));
  }));
  if (pins.length < 2) return redraw(at("beside"), []);
  const own = pins;
  const found = await (await post("/api/side_by_side", { questions: pins })).json();
  if (own !== pins) return;
  if (found.error) tellFaults(found.error);
  else await redraw(at("beside"), drawn(found.parts));
}

// --------------------------------------------------------------------------------- downloads

function save(name, blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

async function saveFrom(path, more, name) {
  const reply = await post(path, { plan: JSON.stringify(answer.answer), ...more });
  if (reply.headers.get("Content-Type") === "application/json") return tellFaults((await reply.json()).error);
  tellFaults(null);
  save(name, await reply.blob());
}

// --------------------------------------------------------------------------------- dry runs

async function verify() {
  const plan = answer.answer;
  at("verify").disabled = true;
  at("verified").textContent = "Running the plan dry ...";
  try {
    const found = await (await post("/api/verify", { plan: JSON.stringify(plan) })).json();
    if (answer.answer === plan) at("verified").textContent = found.error ? found.error.message : found.verified;
  } finally {
    at("verify").disabled = false;
  }
}

// ------------------------------------------------------------------------------------ start

async function begin() {
  enter();
  try {
    catalog = await (await send("/api/catalog")).json();
  } catch (fault) {
    window.addEventListener("hashchange", () => location.reload());
    return say(fault.message, "failed");
  }
  for (const option of catalog.options) if (option.group === "Strategy") isStrategy.add(option.name);
  buildForm();
  at("target").append(...catalog.targets.map((target) => element("option", { value: target.name, title: target.title }, target.name)));
  readState();
  for (const event of ["input", "change"]) at("question").addEventListener(event, askSoon);
  at("question").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  at("stop").addEventListener("click", () => post("/api/stop", { search: at("stop").value }));
  at("edit").addEventListener("click", () => edit(answer.plans[0].options));
  at("pin").addEventListener("click", () => pin(answer.plans[0].options));
  at("verify").addEventListener("click", verify);
  at("json").addEventListener("click", () => save("plan.json", new Blob([JSON.stringify(answer.answer, null, 2)], { type: "application/json" })));
  at("report").addEventListener("click", () => saveFrom("/api/report", {}, "plan.html"));
  at("export").addEventListener("click", () => saveFrom("/api/export", { target: at("target").value }, `${at("target").value}.zip`));
  at("axis").addEventListener("change", () => drawMap(at("axis").value));
  at("answer").addEventListener("click", (event) => {
    const key = event.target.dataset.section;
    if (!key || !at(key)) return;
    event.preventDefault();
    at(key).scrollIntoView();
    at(key).focus({ preventScroll: true });
  });
  window.addEventListener("hashchange", () => {
    if (!location.hash.includes("=")) return writeState(); // a place on the page, no question
    enter();
    readState();
    showPins();
    ask();
  });
  showPins();
  ask();
}

begin();
