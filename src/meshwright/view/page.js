"use strict";
// Draw charts in the colours of the page, again where those change: dark, light, on paper.
const manyMarks = 1500;
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function colours(onPaper) {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const ink = onPaper ? "#1b1f27" : of("--ink"), line = onPaper ? "#d6dae1" : of("--line");
  const words = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12 };
  return {
    background: null, font: "system-ui, sans-serif", view: { stroke: null },
    axis: { ...words, gridColor: line, domainColor: line, tickColor: line },
    legend: { ...words, orient: "top", symbolType: "square" }, text: { color: ink, fill: ink }, aria: false,
  };
}

function draw(onPaper, root = document) {
  return Promise.all([...root.querySelectorAll(".chart")].map(async (place) => {
    const spec = JSON.parse(place.querySelector("script").textContent);
    let canvas = place.querySelector(".drawn");
    if (!canvas) {
      canvas = document.createElement("div");
      canvas.className = "drawn";
      canvas.setAttribute("aria-hidden", "true"); // the label of the chart says it
      canvas.style.width = "100%";
      place.append(canvas);
    }
    const rows = spec.data && spec.data.values ? spec.data.values.length : 0;
    const renderer = rows > manyMarks && !onPaper ? "canvas" : "svg";
    if (place.view) place.view.finalize();
    const drawn = await vegaEmbed(canvas, spec, {
      actions: false, ast: true, logLevel: vega.Error, renderer, config: colours(onPaper), defaultStyle: false,
      tooltip: { disableDefaultStyle: true },
    });
    place.view = drawn.view;
  }));
}

window.charts = draw(false);
dark.addEventListener("change", () => draw(false));
window.addEventListener("beforeprint", () => draw(true));
window.addEventListener("afterprint", () => draw(false));
