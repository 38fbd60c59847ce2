"use strict";
// Finds runs in their table: by words, trigger, gate and status. Without this script all runs are shown.

const field = (name) => document.getElementById(`find-${name}`);
const rows = [...document.querySelectorAll("#rows tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());

function findRuns() {
  const words = field("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = ["trigger", "gate", "status"].map((name) => [name, field(name).value]);
  let shown = 0;
  rows.forEach((row, place) => {
    const fits = words.every((word) => texts[place].includes(word))
      && wanted.every(([name, value]) => !value || row.dataset[name] === value);
    row.hidden = !fits;
    shown += fits ? 1 : 0;
  });
  document.getElementById("found").textContent = `${shown} of ${rows.length} runs`;
}

// A run that is linked to must be in sight.
function showLinked() {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!row || !rows.includes(row)) return;
  if (row.hidden) {
    document.getElementById("controls").reset();
    findRuns();
  }
  row.scrollIntoView({ block: "center" });
  row.focus({ preventScroll: true });
}

document.getElementById("controls").addEventListener("input", findRuns);
document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("show-all").addEventListener("click", () => {
  document.getElementById("controls").reset();
  findRuns();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    field("words").focus();
  }
});
addEventListener("hashchange", showLinked);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#run-"]');
  if (link && link.hash === location.hash) showLinked();
});
findRuns();
document.documentElement.dataset.ready = "yes";
if (location.hash) showLinked();
