"use strict";
// Without this script the page shows both charts; the script shows one at a time and opens all steps at once.
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
