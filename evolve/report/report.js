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
// A link to a candidate opens it, and everything it lies in.
function reveal() {
  const goal = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!goal) return;
  for (let part = goal; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  goal.scrollIntoView({ block: "start" });
  const first = goal.querySelector("summary");
  if (first) first.focus({ preventScroll: true });
}
addEventListener("hashchange", reveal);
document.querySelectorAll("a[href^='#']").forEach((link) => link.addEventListener("click", () => setTimeout(reveal)));
reveal();
