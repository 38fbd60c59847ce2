"use strict";
// Keeps a page that shows runs under way up to date: asks every few seconds how far they are and puts the texts in
// place. What takes more than texts (a run began or ended) takes the page again, at the place where its reader is; of a
// page that was taken again and has nothing under way only that is done.

const place = document.getElementById("live");
const PLACE = "evalhouse-place";
const MOST_WAIT = 30;

function fill(told) {
  for (const node of document.querySelectorAll("[data-live]")) {
    const name = node.dataset.live;
    if (node instanceof HTMLProgressElement) {
      if (name in told.values) node.value = told.values[name];
    } else if (name in told.texts && node.textContent !== told.texts[name]) {
      node.textContent = told.texts[name];
    }
  }
  if (told.say && place.textContent !== told.say) place.textContent = told.say;
}

// Whoever is filling in a form keeps it; the page is taken again when they are done.
function isBusy() {
  return document.activeElement?.matches("input, select, textarea") || document.querySelector("main input:checked") !== null;
}

function takeAgain() {
  const focused = document.activeElement;
  const marks = { address: location.href, top: scrollY, id: focused?.id || null, href: focused?.getAttribute("href") };
  sessionStorage.setItem(PLACE, JSON.stringify(marks));
  location.reload();
}

function findPlace() {
  const kept = JSON.parse(sessionStorage.getItem(PLACE) || "null");
  sessionStorage.removeItem(PLACE);
  if (kept?.address !== location.href) return;
  const focused = document.getElementById(kept.id) || [...document.querySelectorAll("a[href]")].find((link) => kept.href && link.getAttribute("href") === kept.href);
  focused?.focus({ preventScroll: true });
  scrollTo({ top: kept.top, behavior: "instant" });
}

async function ask() {
  const answer = await fetch(place.dataset.address, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(answer.statusText);
  const told = await answer.json();
  fill(told);
  document.documentElement.dataset.asked = String(Number(document.documentElement.dataset.asked || 0) + 1);
  if (told.stamp !== place.dataset.stamp && !isBusy()) takeAgain();
  return told.every;
}

let wait = 1;

async function keepAsking() {
  try {
    if (!document.hidden) wait = await ask();
  } catch {
    wait = Math.min(MOST_WAIT, 2 * wait);
  }
  setTimeout(keepAsking, 1000 * wait);
}

findPlace();
if (place) {
  document.addEventListener("visibilitychange", () => !document.hidden && ask().catch(() => {}));
  keepAsking();
}
