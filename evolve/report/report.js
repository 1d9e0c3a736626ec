"use strict";
// Opens all steps at once. In a narrow window a picture begins at its right end, where the newest and the winner are.
document.querySelectorAll(".chart").forEach((chart) => { chart.scrollLeft = chart.scrollWidth; });
const all = document.getElementById("open-all");
if (all) all.addEventListener("click", () => {
  const steps = [...document.querySelectorAll("details.step")];
  const open = steps.some((step) => !step.open);
  steps.forEach((step) => { step.open = open; });
  all.textContent = open ? "close all steps" : "open all steps";
});
