"use strict";
// The page of one sample: drawn by the report's own scripts from the record in the page, and opened at the
// statement that is most wrong.

const PLACE = 0; // of the one sample in its index
const KEYS = { j: "next", k: "prev" };

// The worst verdict first, and of those the first in the text; what only lacks support comes last.
function findWorst(sample) {
  const ofLabel = WORST_FIRST.filter((label) => label !== "TP").map((label) => (statement) => label && statement.label === label);
  const tests = [...ofLabel, (statement) => statement.source === "answer" && statement.supported === false];
  return tests.map((test) => sample.statements.find(test)).find(Boolean);
}

function openAt(node) {
  if (!node) return;
  const folded = node.closest("details");
  if (folded) folded.open = true;
  document.querySelector(".lit")?.classList.remove("lit");
  node.classList.add("lit");
  node.scrollIntoView({ block: "center" });
  node.focus({ preventScroll: true });
}

function press(event) {
  const isTyping = event.target.closest?.("input, select, textarea");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  document.querySelector(`.pager a[rel="${KEYS[event.key]}"]`)?.click();
}

function offerCopies() {
  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    });
  });
}

function start() {
  const page = JSON.parse(document.getElementById("record").textContent);
  store.index = page.index;
  store.fixed = page.fixed;
  document.getElementById("sample").replaceChildren(describeSample(page.sample, PLACE));
  labelling.start(`sample-${PLACE}`);
  listenForTips();
  offerCopies();
  document.addEventListener("keydown", press);
  const follow = () => openAt(document.getElementById(location.hash.slice(1)));
  addEventListener("hashchange", follow);
  const worst = findWorst(page.sample);
  if (location.hash) follow();
  else if (worst) openAt(document.getElementById(`sample-${PLACE}-${worst.id}`));
  document.documentElement.dataset.ready = "yes";
}

start();
