"use strict";
// Draw the parts of a page (view/parts.py) from data. Every word goes in as text.

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== "") made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const drawers = {
  text: (part) => element("p", {}, part.text),
  code: (part) => element(
    "div", { class: "code" },
    ...(part.name ? [element("div", { class: "name" }, part.name)] : []),
    element("pre", { tabindex: "0", role: "group", "aria-label": part.name || "command" }, element("code", {}, part.text)),
  ),
  table: (part) => {
    const isNumber = part.head.map((name) => name.endsWith(">"));
    const cell = (value, at) => element("td", { class: isNumber[at] ? "number" : "" }, value);
    return element(
      "div", { class: "wide", tabindex: "0", role: "group", "aria-label": part.caption || "table" },
      element(
        "table", {},
        ...(part.caption ? [element("caption", {}, part.caption)] : []),
        element("thead", {}, element("tr", {}, ...part.head.map((name, at) => heading(name.replace(/>$/, ""), isNumber[at])))),
        element("tbody", {}, ...part.rows.map((row) => element("tr", {}, ...row.map(cell)))),
      ),
    );
  },
  chart: (part) => element(
    "figure", {},
    element("figcaption", {}, part.title),
    element(
      "div", { class: "chart", role: "img", "aria-label": part.says, ...(part.spec.width > 0 && { tabindex: "0" }) },
      element("script", { type: "application/json" }, JSON.stringify(part.spec)),
    ),
    element("p", { class: "says" }, part.says),
    ...(part.table ? [element("details", {}, element("summary", {}, "The numbers"), drawers.table(part.table))] : []),
  ),
  folded: (part) => element("details", {}, element("summary", {}, part.summary), ...drawn(part.parts)),
};

function heading(words, isNumber) {
  return words
    ? element("th", { scope: "col", class: isNumber ? "number" : "" }, words)
    : element("td", {});
}

function drawn(parts) {
  return parts.map((part) => drawers[part.kind](part));
}

function tiles(page) {
  return element("section", { class: "tiles", "aria-label": "Answers" }, ...page.tiles.map((tile) => element(
    "div", { class: `tile ${tile.mood}` },
    element("h2", {}, tile.section ? element("a", { href: `#${tile.section}`, "data-section": tile.section }, tile.question) : tile.question),
    element("p", { class: "answer" }, tile.answer),
    ...(tile.note ? [element("p", { class: "note" }, tile.note)] : []),
  )));
}

function sectionsOf(sections) {
  return sections.map((section) => element(
    "section", { id: section.key, "aria-labelledby": `${section.key}-title`, tabindex: "-1" },
    element("h2", { id: `${section.key}-title` }, section.title),
    ...drawn(section.parts),
  ));
}

function warnings(page) {
  return page.warnings.map((text) => element(
    "p", { class: "warning", role: "note" }, element("strong", {}, "Warning"), ` ${text}`,
  ));
}
