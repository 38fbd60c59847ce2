"use strict";
// Keeps a page with running runs up to date: requests their progress every few seconds and replaces the texts. If more
// than texts has changed (a run began or ended) the page is loaded again at the same place; without running runs only
// that is done.

const place = document.getElementById("live");
const PLACE = "evalhouse-place";
const MOST_WAIT = 30;

function fill(update) {
  for (const node of document.querySelectorAll("[data-live]")) {
    const name = node.dataset.live;
    if (node instanceof HTMLProgressElement) {
      if (name in update.values) node.value = update.values[name];
    } else if (name in update.texts && node.textContent !== update.texts[name]) {
      node.textContent = update.texts[name];
    }
  }
  if (update.say && place.textContent !== update.say) place.textContent = update.say;
}

// A form that is being filled in stays; the page is loaded again afterwards.
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
  const update = await answer.json();
  fill(update);
  document.documentElement.dataset.asked = String(Number(document.documentElement.dataset.asked || 0) + 1);
  if (update.stamp !== place.dataset.stamp && !isBusy()) takeAgain();
  return update.every;
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
