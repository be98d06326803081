// Beyond htmx: select all jobs, a switch for live updates, and no updates while the page is hidden.
"use strict";
const all = document.getElementById("all");
if (all) {
  const boxes = () => document.querySelectorAll('input[name="id"][type="checkbox"]');
  all.hidden = false;
  all.addEventListener("change", () => boxes().forEach((box) => { box.checked = all.checked; }));
}
const live = document.getElementById("live-switch");
const isLive = () => live.getAttribute("aria-pressed") === "true";
if (live && document.getElementById("live")) {
  live.hidden = false;
  live.addEventListener("click", () => live.setAttribute("aria-pressed", String(!isLive())));
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden || !isLive()) event.preventDefault();
  });
}
