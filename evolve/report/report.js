"use strict";
// Without this script everything is shown; with it, one chart at a time and a button that opens all steps.
const charts = document.querySelectorAll("[data-axis]");
const switches = document.querySelectorAll("[data-show]");
function show(axis) {
  charts.forEach((chart) => { chart.hidden = chart.dataset.axis !== axis; });
  switches.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.show === axis)));
}
switches.forEach((button) => button.addEventListener("click", () => show(button.dataset.show)));
if (switches.length) show(switches[0].dataset.show);
const all = document.getElementById("open-all");
if (all) all.addEventListener("click", () => {
  const steps = [...document.querySelectorAll("details.step")];
  const open = steps.some((step) => !step.open);
  steps.forEach((step) => { step.open = open; });
  all.textContent = open ? "close all steps" : "open all steps";
});
// A link to a candidate opens it, and everything it lies in. A preview's frame may not navigate, not even within itself.
function reveal(address) {
  const goal = address.length > 1 && document.getElementById(decodeURIComponent(address.slice(1)));
  if (!goal) return;
  for (let part = goal; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  document.querySelectorAll("details.chosen").forEach((part) => part.classList.remove("chosen"));
  goal.classList.add("chosen");
  goal.scrollIntoView({ block: "start" });
  const first = goal.querySelector("summary");
  if (first) first.focus({ preventScroll: true });
}
document.querySelectorAll("a[href^='#']").forEach((link) => link.addEventListener("click", (event) => {
  event.preventDefault();
  reveal(link.getAttribute("href"));
}));
addEventListener("hashchange", () => reveal(location.hash));
reveal(location.hash);
