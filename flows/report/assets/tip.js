"use strict";
// The explanation of a mark or a metric while it is pointed at or has the keyboard.

let pointed = null;

function showTip(event) {
  const node = event.target.closest?.("mark, .metric");
  pointed = node && findTip(node) ? node : null;
  placeTip();
}

// What a statement's verdicts are, or the meaning of a metric, which is in the table of scores.
function findTip(node) {
  if (!node.dataset.metric) return tips.get(node);
  const rows = [...document.querySelectorAll(".scores tr[data-metric]")];
  return rows.find((row) => row.dataset.metric === node.dataset.metric)?.querySelector(".meaning")?.textContent;
}

// Under what is pointed at, or above it without room; the page may scroll meanwhile.
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

function listenForTips() {
  for (const event of ["mouseover", "focusin"]) document.addEventListener(event, showTip);
  document.addEventListener("scroll", placeTip, { passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pointed = null;
    placeTip();
  });
}
