// What is wider than the page scrolls by keyboard too, and the two columns beside it have names.
function reachable() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, figure.shown")) {
    box.toggleAttribute("tabindex", false);
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}
addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "on this page");
  reachable();
});
addEventListener("resize", reachable);
