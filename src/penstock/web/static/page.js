// Beyond htmx: select all jobs, keep a list whose jobs are chosen, a switch for live updates, the age of the figures, and no updates while the page is hidden.
"use strict";
const boxes = () => [...document.querySelectorAll('input[name="id"][type="checkbox"]')];
const list = () => document.getElementById("list"); // jobs below live counts
const listNote = document.getElementById("list-note");
const isChosen = () => boxes().some((box) => box.checked);

function readList() {
  const all = document.getElementById("all");
  if (all) all.hidden = false;
  const count = document.querySelector("#live [aria-current][data-count]");
  if (listNote) listNote.hidden = !count || count.dataset.count === list().dataset.count;
}

readList();
document.addEventListener("change", ({ target }) => {
  if (target.id === "all") boxes().forEach((box) => { box.checked = target.checked; });
});

const LATE_MS = 6000; // an answer that takes longer is missed
const LONGEST_REASON = 300;
const [liveSwitch, age, trouble] = ["live-switch", "age", "trouble"].map((id) => document.getElementById(id));
const live = () => document.getElementById("live"); // each answer brings another one
const isLive = () => liveSwitch.getAttribute("aria-pressed") === "true";
let figuresAt = 0; // when the server has read what is shown
let askedAt = 0; // when the oldest request without an answer went out; 0 = there is none
let failure = null; // why the last request brought no figures; null = it brought some

function readAge() {
  figuresAt = Date.now() - 1000 * Number(live().dataset.age || 0);
}

function span(seconds) {
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

function show() {
  const isPolled = live().hasAttribute("hx-get"); // a run that has ended is not
  const isLost = isPolled && isLive() && (failure !== null || (askedAt > 0 && Date.now() - askedAt > LATE_MS));
  const since = new Date(figuresAt).toLocaleTimeString();
  const text = failure ? `No new figures since ${since}. ${failure}` : `No answer since ${since}.`;
  if (isLost && trouble.textContent !== text) trouble.textContent = text;
  trouble.hidden = !isLost;
  live().classList.toggle("stale", isLost);
  liveSwitch.hidden = age.hidden = !isPolled;
  liveSwitch.classList.toggle("lost", isLost);
  liveSwitch.textContent = isLost ? "Not live" : "Live";
  age.textContent = `${span(Math.max(0, Math.floor((Date.now() - figuresAt) / 1000)))} ago`;
}

function reason(xhr) {
  const isText = (xhr.getResponseHeader("content-type") || "").startsWith("text/plain");
  if (isText) return xhr.responseText.slice(0, LONGEST_REASON);
  return xhr.status ? `The answer is HTTP ${xhr.status}.` : "";
}

function isSelecting(part) {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode);
}

if (live()) {
  readAge();
  show();
  setInterval(show, 1000);
  liveSwitch.addEventListener("click", () => {
    liveSwitch.setAttribute("aria-pressed", String(!isLive()));
    [askedAt, failure] = [0, null];
    show();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) htmx.trigger("#live", "look");
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden || !isLive()) event.preventDefault();
    else askedAt ||= Date.now();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (isSelecting(live())) event.detail.shouldSwap = false; // it would end the selection
  });
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    if (event.detail.target !== list()) return; // more jobs of a search
    const isHeld = isChosen() || isSelecting(list()) || list().contains(document.activeElement);
    if (isHeld) event.detail.shouldSwap = false;
  });
  document.addEventListener("htmx:afterSwap", () => { readAge(); readList(); });
  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    askedAt = 0;
    failure = detail.successful ? null : reason(detail.xhr);
    show();
  });
}

if (document.getElementById("retry")) {
  document.addEventListener("htmx:afterRequest", ({ detail }) => { if (detail.successful) location.reload(); });
}
