"use strict";
// How a question of a test set is shown: what it asks and what is right on one side, the passages that it rests on with
// its spans lit on the other. One that is fixed is written in the bar, beside the passages.

const ASKED = {
  new: "Is this worth asking, and is the ground truth right?",
  changed: "The documents changed. Is this the ground truth now?",
  contradicted: "Two places in the documents disagree. Is the new ground truth right?",
  answerable: "The documents answer this now. Is the ground truth right?",
};

function nameAsked(item) {
  return ASKED[item.origin];
}

function showText(title, text, kind = "") {
  const shown = text === null || text === "" ? make("p", { class: "soft" }, "none") : make("p", { class: "text", dir: "auto" }, text);
  return make("section", { class: `box ${kind}` }, make("h3", {}, title), shown);
}

function showJudged(item) {
  const turns = item.conversation.map(({ role, content }) => showText(role === "user" ? "The user before" : "The bot before", content));
  const truth = item.kind === "unanswerable"
    ? make("section", { class: "box judged" }, make("h3", {}, "Ground truth"), make("p", { class: "soft" }, "none: the documents are not to answer it"))
    : showText(item.before ? "Ground truth, as proposed" : "Ground truth", item.ground_truth, "judged");
  const before = item.before ? [showText("Ground truth before", item.before.ground_truth), showText("Why it should change", item.why)] : [];
  return [
    make("p", { class: "soft" }, `${item.kind}, ${item.language}, ${item.question_id}`),
    ...turns, showText("Question", item.question, "judged"), truth, ...before,
  ];
}

// Every second part of a passage is words that the ground truth rests on.
function showPassage({ name, parts }) {
  const nodes = parts.map((text, place) => (place % 2 ? make("mark", {}, text) : text));
  return make("section", { class: "box" }, make("h3", {}, name), make("p", { class: "text", dir: "auto" }, nodes));
}

function showAgainst(item) {
  const old = item.before ? item.before.spans.map(({ name, text }) => showText(`Before: ${name}`, text)) : [];
  const shown = [...item.passages.map(showPassage), ...old];
  return shown.length ? shown : [make("p", { class: "soft" }, "It rests on no words of the documents.")];
}

function readOwn(item) {
  const texts = answers.kept.texts[item.item_hash] || {};
  const own = { question: texts.question ?? item.question, ground_truth: texts.ground_truth ?? item.ground_truth };
  return { ...own, differs: own.question !== item.question || own.ground_truth !== item.ground_truth };
}

function drawNote(item) {
  part("fixing-note").textContent = readOwn(item).differs ? "" : "Nothing is changed yet: it is kept unchanged.";
}

function drawDecided(item, label) {
  part("fixing").hidden = label !== "fix";
  if (label !== "fix") return;
  const own = readOwn(item);
  part("own-question").value = own.question;
  part("own-truth").value = own.ground_truth ?? "";
  for (const node of [part("own-truth"), document.querySelector("label[for=own-truth]")]) node.hidden = item.kind === "unanswerable";
  drawNote(item);
}

// A text that was emptied is as it was.
function takeOwn(name, text) {
  answers.takeText(name, text.trim() ? text.trim() : null);
  drawNote(answers.item);
}

function describeItem(item) {
  const own = readOwn(item);
  const isFixed = answers.given(item).label === "fix";
  return {
    set: data.set,
    set_hash: data.set_hash,
    question_id: item.question_id,
    item_hash: item.item_hash,
    question: isFixed ? own.question : item.question,
    ground_truth: isFixed ? own.ground_truth : item.ground_truth,
  };
}

// What is fixed without a change is kept.
function nameLabel(item, label) {
  return label === "fix" && !readOwn(item).differs ? "keep" : label;
}

function findField(item) {
  if (answers.given(item)?.label !== "fix") return null;
  return part(item.kind === "unanswerable" ? "own-question" : "own-truth");
}

const ASKS = {
  done: "decided", things: "questions", word: "decision", keys: { 1: 0, k: 0, 2: 1, f: 1, m: 1, 3: 2, x: 2 },
  drawDecided, describeItem, findField, nameLabel,
};

document.addEventListener("DOMContentLoaded", () => {
  part("own-question").addEventListener("input", (event) => takeOwn("question", event.target.value));
  part("own-truth").addEventListener("input", (event) => takeOwn("ground_truth", event.target.value));
});
