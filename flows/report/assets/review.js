"use strict";
// Ties the page together: which of its three sections is shown, buttons and keys.

const part = (id) => document.getElementById(id);
let data = null;

function show(section) {
  for (const id of ["start", "work", "end"]) part(id).hidden = id !== section;
  part("bar").hidden = section !== "work";
  part("progress-line").hidden = section === "start";
  document.dispatchEvent(new CustomEvent("shown", { detail: section }));
}

function drawProgress() {
  const { labelled, skipped, left } = answers.count();
  part("progress").value = labelled + skipped;
  part("progress-text").textContent = `${labelled} ${ASKS.done}, ${skipped} skipped, ${left} to go`;
  part("problem").hidden = answers.canKeep;
  part("problem").textContent = "This browser does not keep what you say here: download it before you close the page.";
}

function drawItem({ isNew }) {
  const { item, kept } = answers;
  const sample = data.samples[item.sample];
  show("work");
  drawProgress();
  part("place").textContent = `${kept.at + 1} of ${data.items.length}`;
  if (isNew) {
    part("ask").textContent = nameAsked(item);
    part("judged").replaceChildren(...showJudged(item, sample));
    part("against").replaceChildren(...showAgainst(item, sample));
    part("note").value = kept.notes[item.item_hash] || "";
    scrollTo(0, 0);
    part("ask").focus({ preventScroll: true });
  }
  drawChoices(item);
}

function drawChoices(item) {
  const given = answers.given(item);
  const buttons = item.choices.map(({ label, meaning }, place) => make(
    "button",
    { type: "button", class: `choice choice-${place + 1}`, "aria-pressed": String(given?.label === label), "aria-keyshortcuts": String(place + 1), on: { click: () => { choose(place); (ASKS.findField(item) || part("next")).focus(); } } },
    make("kbd", {}, String(place + 1)), " ", make("b", {}, label.replace("_", " ")), make("span", {}, ` ${meaning}`),
  ));
  part("choices").replaceChildren(...buttons);
  ASKS.drawDecided(item, given?.label ?? null);
  part("next").disabled = !given;
  part("back").disabled = answers.kept.at === 0;
  part("undo").disabled = answers.kept.done.length === 0;
}

function choose(place) {
  const { label } = answers.item.choices[place];
  if (answers.given(answers.item)?.label !== label) answers.give(label);
  drawItem({ isNew: false });
  ASKS.findField(answers.item)?.focus();
}

function skip() {
  answers.give(null);
  goOn();
}

// To the next item without an answer, if this one is finished.
function goOn() {
  if (!answers.given(answers.item)) return;
  const place = answers.findOpen();
  if (place === -1) {
    drawEnd();
    return;
  }
  answers.goTo(place);
  drawItem({ isNew: true });
}

function look(by) {
  answers.goTo(answers.kept.at + by);
  drawItem({ isNew: true });
}

function undo() {
  if (answers.undo()) drawItem({ isNew: true });
}

function drawEnd() {
  const { labelled, skipped } = answers.count();
  show("end");
  drawProgress();
  part("end-title").textContent = `Done, ${answers.reviewer}`;
  part("end-text").textContent = `${labelled} of ${data.items.length} ${ASKS.things} have your ${ASKS.word}${skipped ? `, ${skipped} were skipped` : ""}.`;
  part("end-title").focus();
}

function download() {
  const address = URL.createObjectURL(new Blob([answers.writeLines()], { type: "application/x-ndjson" }));
  const who = answers.reviewer.replace(/[^\p{L}\p{N}]+/gu, "-");
  make("a", { href: address, download: `review-${data.export_id}-${who}.jsonl` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

const CHOICES = Object.entries(ASKS.keys).map(([key, place]) => [key, () => choose(place)]);
const KEYS = {
  ...Object.fromEntries(CHOICES), 0: skip, z: undo, d: download, n: () => part("note").focus(),
  Enter: goOn, ArrowRight: () => look(1), ArrowLeft: () => look(-1),
};

function press(event) {
  const isTyping = event.target.closest?.("input, textarea");
  if (event.key === "Escape" && isTyping) event.target.blur();
  // A pressed button does what it says.
  const isPressing = event.key === "Enter" && event.target.closest?.("button, summary");
  if (isTyping || isPressing || event.altKey || event.repeat || part("bar").hidden) return;
  const isUndo = (event.ctrlKey || event.metaKey) && event.key === "z";
  if ((event.ctrlKey || event.metaKey) && !isUndo) return;
  const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function begin(event) {
  event.preventDefault();
  const name = part("reviewer").value.trim();
  if (!name) return;
  answers.open(data, name);
  if (answers.count().left) drawItem({ isNew: true });
  else drawEnd();
}

function listen() {
  part("who").addEventListener("submit", begin);
  part("note").addEventListener("input", () => answers.takeNote(part("note").value));
  const acts = { back: () => look(-1), skip, undo, download, next: goOn, "end-download": download, "end-back": () => drawItem({ isNew: true }) };
  for (const [id, act] of Object.entries(acts)) part(id).addEventListener("click", act);
  document.addEventListener("keydown", press);
  // The same export in another tab: its last answer counts here too.
  addEventListener("storage", (event) => {
    if (!answers.kept || event.key !== answers.key) return;
    answers.load();
    if (!part("work").hidden) drawItem({ isNew: true });
  });
}

async function start() {
  data = await unpack(part("packed"));
  part("reviewer").value ||= answers.read(LAST_NAME) || "";
  show("start");
  listen();
  document.querySelector("#who input[type=text], #who button").focus();
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  part("problem").hidden = false;
  part("problem").textContent = `The ${ASKS.things} could not be shown: ${error.message}`;
  throw error;
});
