"use strict";
// Plays a walk: what members hold after each frame, and what travels between them during it.
for (const player of document.querySelectorAll(".player")) {
  const { members, tensors, frames, alone_bytes: alone, num_devices: devices } =
    JSON.parse(player.querySelector("script").textContent);
  const one = (selector) => player.querySelector(selector);
  const stage = one(".stage"), scrub = one(".scrub"), play = one(".play"), speed = one(".speed");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const frameMs = 1600, size = 44;
  const entries = [...player.querySelectorAll(".frames li")]; // every frame in words
  let at = 0, timer = 0, run = 0;

  function make(name, attributes = {}, ...inside) {
    const svg = ["svg", "path", "rect", "g", "text"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  }

  function bytes(value) {
    for (const [unit, of] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
      if (value >= of) return `${(value / of).toFixed(1)} ${unit}`;
    return `${Math.round(value)} B`;
  }

  for (const frame of frames)
    frame.messages = frame.messages.map(([source, destination, tensor, parts, adds]) => ({ source, destination, tensor, parts, adds }));

  // What every member holds after each frame: tensor -> groups of parts, from the changes.
  const states = [];
  for (const frame of frames) {
    const before = states.at(-1) || members.map(() => new Map());
    states.push(before.map((held, member) => {
      const now = new Map(held);
      for (const [tensor, groups] of Object.entries(frame.changes[member])) {
        if (groups.length) now.set(Number(tensor), groups); else now.delete(Number(tensor));
      }
      return now;
    }));
  }
  // Tensors that a member shows: those that anybody holds in the same phase.
  const phases = new Map();
  frames.forEach((frame, number) => {
    const seen = phases.get(frame.phase) || new Set();
    states[number].forEach((held) => held.forEach((_, tensor) => seen.add(tensor)));
    frame.messages.forEach((message) => seen.add(message.tensor));
    phases.set(frame.phase, seen);
  });

  const across = 1 + Math.max(...members.map((member) => member.column));
  const down = 1 + Math.max(...members.map((member) => member.row));
  const many = Math.max(...[...phases.values()].map((seen) => seen.size)) > 8;
  stage.classList.toggle("turns", across > down);
  stage.classList.toggle("many", many);
  for (const [name, value] of Object.entries({ across, down, gap: across > 5 ? "3.5rem" : "4.8rem" }))
    stage.style.setProperty(`--${name}`, value);
  const arrows = make("svg", { class: "arrows", "aria-hidden": "true" });
  const boxes = members.map((member, number) => {
    const box = make("div", { class: number < devices ? "member" : "member switch" });
    box.style.setProperty("--c", member.column + 1);
    box.style.setProperty("--r", member.row + 1);
    const bar = (kind) => make("div", { class: `bar ${kind}` }, make("i"), make("span"));
    box.append(make("strong", {}, member.name), make("div", { class: "bars" }, bar("held"), bar("sent")), make("p", { class: "does" }),
      make("div", { class: "slots" }));
    return box;
  });
  stage.append(...boxes, arrows);

  function cells(tensor, parts) {
    const wide = size / tensor.columns, high = size / tensor.rows;
    return parts.map((part) => {
      const x = (part % tensor.columns) * wide, y = Math.floor(part / tensor.columns) * high;
      return `M${x} ${y}h${wide}v${high}h${-wide}z`;
    }).join("");
  }

  // Which parts of a tensor: up to two by number, more (or a tile of a grid) as a count.
  function some(tensor, parts) {
    const isGrid = tensor.rows > 1 && tensor.columns > 1;
    return parts.length < 3 && !isGrid ? `[${parts.join(",")}]` : ` ${parts.length}/${tensor.rows * tensor.columns}`;
  }

  function label(tensor, groups) {
    const parts = groups.flatMap(([those]) => those).sort((a, b) => a - b), all = tensor.rows * tensor.columns;
    const terms = groups.filter(([, of]) => of > 0 && of < devices);
    let text = tensor.name;
    if (parts.length < all) text += some(tensor, parts);
    return terms.length ? `${text} Σ${Math.max(...terms.map(([, of]) => of))}` : text;
  }

  function slot(number, groups, fresh) {
    const tensor = tensors[number];
    const grid = cells(tensor, [...Array(tensor.rows * tensor.columns).keys()]);
    const drawing = make("svg", { viewBox: `-1 -1 ${size + 2} ${size + 2}`, class: tensor.role });
    for (const [parts, of] of groups)
      drawing.append(make("path", { d: cells(tensor, parts), class: of > 0 && of < devices ? "term" : "whole" }));
    drawing.append(make("path", { d: grid, class: "grid" }));
    const text = groups.length ? label(tensor, groups) : tensor.name;
    return make("div", { class: `slot${groups.length ? "" : " none"}${fresh ? " fresh" : ""}`, title: tensor.about },
      drawing, make("span", {}, text));
  }

  function fill(state, frame, isDone) {
    const shown = [...phases.get(frame.phase)].sort((a, b) => a - b);
    boxes.forEach((box, member) => {
      const held = state[member], changed = frame.changes[member];
      box.querySelector(".slots").replaceChildren(...shown.flatMap((tensor, place) => {
        const isNew = isDone && tensor in changed && held.has(tensor);
        const made = slot(tensor, held.get(tensor) || [], isNew);
        const breaks = many && place > 0 && tensors[tensor].role !== tensors[shown[place - 1]].role;
        return breaks ? [make("hr"), made] : [made];
      }));
      box.querySelector(".does").textContent = frame.computes[member] || "";
      for (const [kind, value] of [["held", frame.held[member]], ["sent", frame.sent[member]]]) {
        const share = alone ? value / alone : 0, bar = box.querySelector(`.bar.${kind}`);
        bar.querySelector("i").style.width = `${Math.min(100 * share, 100)}%`;
        const percent = alone && kind === "held" ? ` (${Math.round(100 * share)} %)` : "";
        bar.querySelector("span").textContent = `${kind} ${bytes(value)}${percent}`;
      }
    });
  }

  // The way of a message: straight from box to box, or in a bow past those in between.
  function way(message, lane) {
    const origin = stage.getBoundingClientRect();
    const areas = boxes.map((box) => {
      const { left, right, top, bottom } = box.getBoundingClientRect();
      return { l: left - origin.x, r: right - origin.x, t: top - origin.y, b: bottom - origin.y };
    });
    const from = areas[message.source], to = areas[message.destination];
    const [low, high] = [Math.max(from.l, to.l), Math.min(from.r, to.r)];
    const [upper, lower] = [Math.max(from.t, to.t), Math.min(from.b, to.b)];
    const crosses = (left, right, top, bottom) => areas.some((a) => a !== from && a !== to &&
      a.l < right && a.r > left && a.t < bottom && a.b > top);
    if (high > low) { // one above the other
      const x = (low + high) / 2, isDown = to.t > from.t, near = isDown ? from.b : from.t, far = isDown ? to.t : to.b;
      if (crosses(x, x, Math.min(near, far), Math.max(near, far))) {
        const right = Math.max(from.r, to.r) + 34 + 14 * lane, [y, end] = [from, to].map((a) => (a.t + a.b) / 2);
        return `M${from.r} ${y}C${right} ${y} ${right} ${end} ${to.r + 3} ${end}`;
      }
      const at = x + (isDown ? -1 : 1) * (34 + 66 * lane);
      return `M${at} ${near}L${at} ${far + (isDown ? -3 : 3)}`;
    }
    if (lower > upper) { // side by side
      const y = (upper + lower) / 2, isRight = to.l > from.l, near = isRight ? from.r : from.l, far = isRight ? to.l : to.r;
      if (crosses(Math.min(near, far), Math.max(near, far), y, y)) {
        const down = Math.max(from.b, to.b) + 34 + 14 * lane, [x, end] = [from, to].map((a) => (a.l + a.r) / 2);
        return `M${x} ${from.b}C${x} ${down} ${end} ${down} ${end} ${to.b + 3}`;
      }
      const at = y + (isRight ? 1 : -1) * (11 + 22 * lane);
      return `M${near} ${at}L${far + (isRight ? -3 : 3)} ${at}`;
    }
    const corner = (area, other) => [other.l > area.r ? area.r : area.l, other.t > area.b ? area.b : area.t];
    return `M${corner(from, to).join(" ")}L${corner(to, from).join(" ")}`;
  }

  function draw(frame) {
    arrows.replaceChildren();
    const lanes = new Map();
    return frame.messages.map((message) => {
      const pair = `${message.source}>${message.destination}`, lane = lanes.get(pair) || 0;
      lanes.set(pair, lane + 1);
      const tensor = tensors[message.tensor];
      const d = way(message, lane), [x, y, toX, toY] = d.match(/[-\d.]+/g).map(Number);
      const isSlanted = d.includes("L") && x !== toX && y !== toY; // two of them would rest on the same place
      const line = make("path", { d, class: `line ${tensor.role}`, "marker-end": "url(#arrow)" });
      const text = message.parts.length < tensor.rows * tensor.columns ? tensor.name + some(tensor, message.parts) : tensor.name;
      const wide = Math.max(28, 7 + 6.1 * (text.length + message.adds));
      const token = make("g", { class: `token ${tensor.role}${message.adds ? " adds" : ""}` },
        make("rect", { x: -wide / 2, y: -9, width: wide, height: 18, rx: 4 }), make("text", { y: 4 }, message.adds ? `+${text}` : text));
      arrows.append(line, token);
      return { line, token, length: line.getTotalLength(), rests: isSlanted ? 0.3 : 0.5 };
    });
  }

  // Without a share of the way, where tokens rest.
  function place(drawn, share) {
    for (const { line, token, length, rests } of drawn) {
      const { x, y } = line.getPointAtLength(length * (share ?? rests));
      token.setAttribute("transform", `translate(${x} ${y})`);
    }
  }

  function show(number, moves) {
    cancelAnimationFrame(run);
    at = Math.min(Math.max(number, 0), frames.length - 1);
    const frame = frames[at], travels = moves && at > 0 && frame.messages.length && !calm.matches;
    scrub.value = at;
    const [heading, caption] = ["button", ".text"].map((part) => entries[at].querySelector(part).textContent);
    scrub.setAttribute("aria-valuetext", `${at + 1} of ${frames.length}, ${heading}`);
    one(".count").textContent = `${at + 1} of ${frames.length}`;
    one(".phase").textContent = heading;
    one(".caption").textContent = caption;
    player.querySelectorAll(".frames [aria-current]").forEach((entry) => entry.removeAttribute("aria-current"));
    entries[at].querySelector("button").setAttribute("aria-current", "step");
    fill(states[travels ? at - 1 : at], frame, at > 0 && !travels);
    const drawn = draw(frame);
    place(drawn);
    if (!travels) return;
    const started = performance.now(), lasts = 0.7 * frameMs / Number(speed.value);
    const move = (now) => {
      const share = Math.min((now - started) / lasts, 1);
      place(drawn, share);
      if (share < 1) run = requestAnimationFrame(move);
      else { fill(states[at], frame, true); place(drawn); }
    };
    run = requestAnimationFrame(move);
  }

  function pause() {
    clearTimeout(timer);
    timer = 0;
    play.textContent = "Play";
    one(".told").setAttribute("aria-live", "polite");
  }

  function next() {
    if (at === frames.length - 1) { pause(); return; }
    show(at + 1, true);
    timer = setTimeout(next, frameMs / Number(speed.value));
  }

  function toggle() {
    if (timer) { pause(); return; }
    play.textContent = "Pause";
    one(".told").setAttribute("aria-live", "off");
    if (at === frames.length - 1) show(0, false);
    timer = setTimeout(next, 300);
  }

  function step(by) { pause(); show(at + by, by > 0); }

  play.addEventListener("click", toggle);
  one(".back").addEventListener("click", () => step(-1));
  one(".forward").addEventListener("click", () => step(1));
  scrub.max = frames.length - 1;
  scrub.addEventListener("input", () => { pause(); show(Number(scrub.value), false); });
  entries.forEach((entry, number) => entry.querySelector("button").addEventListener("click", () => {
    pause();
    show(number, true);
    one(".told").scrollIntoView({ block: "nearest" });
  }));
  // Keys work inside of the player; space and arrows also where nothing has the focus.
  document.addEventListener("keydown", (event) => {
    const target = event.target, isInside = player.contains(target);
    if (event.altKey || event.ctrlKey || event.metaKey || !(isInside || target === document.body)) return;
    const scrolls = target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight;
    if (target.matches("select") || (target.matches("[tabindex]") && scrolls)) return; // keys of its own
    if (event.key === " " && target.matches("button")) return;
    const anywhere = { " ": toggle, ArrowLeft: () => step(-1), ArrowRight: () => step(1) };
    const inside = { Home: () => step(-at), End: () => step(frames.length) };
    const does = anywhere[event.key] || (isInside && inside[event.key]);
    if (!does) return;
    event.preventDefault();
    does();
  });
  new ResizeObserver(() => place(draw(frames[at]))).observe(stage);
  show(0, false);
  player.dataset.state = "ready";
}
