"use strict";
// Ties the page together: what is pressed, pointed at and linked to.

let pointed = null;

function showTip(event) {
  const node = event.target.closest?.("mark, .metric");
  pointed = node && findTip(node) ? node : null;
  placeTip();
}

// What a statement's verdicts are, or what a metric means, which stands in the table of scores.
function findTip(node) {
  if (!node.dataset.metric) return tips.get(node);
  const rows = [...document.querySelectorAll(".scores tr[data-metric]")];
  return rows.find((row) => row.dataset.metric === node.dataset.metric)?.querySelector(".meaning")?.textContent;
}

// Under what is pointed at, or above it where there is no room; the page may scroll meanwhile.
function placeTip() {
  const tip = document.getElementById("tip");
  const box = pointed?.isConnected ? pointed.getBoundingClientRect() : null;
  tip.hidden = !box || box.bottom < 0 || box.top > innerHeight;
  if (tip.hidden) return;
  tip.textContent = findTip(pointed);
  pointed.setAttribute("aria-describedby", "tip");
  const below = box.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.top = `${Math.max(4, below ? box.bottom + 8 : box.top - 8 - tip.offsetHeight)}px`;
  tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 4))}px`;
}

function listen() {
  const controls = document.getElementById("controls");
  let waiting = 0;
  controls.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(findSamples, 120);
  });
  controls.addEventListener("submit", (event) => event.preventDefault());
  control("metric").addEventListener("change", setFirstOrder);
  document.getElementById("show-all").addEventListener("click", resetControls);
  document.getElementById("save").addEventListener("click", saveTable);
  const turn = (by) => () => { turnTo(view.page + by); document.getElementById("samples").scrollIntoView(); };
  document.getElementById("before").addEventListener("click", turn(-1));
  document.getElementById("next").addEventListener("click", turn(1));
  document.querySelectorAll("#samples th[data-sort] button").forEach((button) => button.addEventListener("click", () => {
    const { sort } = button.parentElement.dataset;
    view.descending = view.sort === sort ? !view.descending : false;
    view.sort = sort;
    sortSamples();
    draw();
  }));
  for (const event of ["mouseover", "focusin"]) document.addEventListener(event, showTip);
  document.addEventListener("scroll", placeTip, { passive: true });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "Escape") {
      pointed = null;
      placeTip();
    } else if (typing || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    } else if (event.key === "/") {
      event.preventDefault();
      control("words").focus();
    } else if (event.key === "j" || event.key === "k") {
      step(event.key === "j" ? 1 : -1);
    }
  });
  // A link to the place one is at already changes nothing in the address, so links are followed here.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#sample"]');
    if (link && link.hash === location.hash) follow(link.hash.slice(1));
  });
  addEventListener("hashchange", () => follow(location.hash.slice(1)));
}

async function start() {
  await store.load();
  makeMetadata();
  setFirstOrder();
  findSamples();
  listen();
  document.documentElement.dataset.ready = "yes";
  await follow(location.hash.slice(1));
}

start().catch((error) => {
  document.getElementById("found").textContent = `The samples could not be shown: ${error.message}`;
  throw error;
});
