"use strict";
// How an item is shown: what is judged on one side, what it is judged against on the other. Texts become texts, never
// markup.

const ASKED = {
  "classify answer": "Does the ground truth say this?",
  "classify ground_truth": "Does the answer say this?",
  "attribute answer": "Do the contexts, or earlier turns if there are any, say this, alone or together?",
  "attribute ground_truth": "Do the contexts say this, one alone or several together?",
  rank: "Does this context help to reach the ground truth?",
};
const SOURCES = { answer: "Answer", ground_truth: "Ground truth" };

function nameAsked(item) {
  return ASKED[item.step === "rank" ? "rank" : `${item.step} ${item.source}`];
}

function showText(title, text, kind = "") {
  const shown = text === null || text === "" ? make("p", { class: "soft" }, "none") : make("p", { class: "text", dir: "auto" }, text);
  return make("section", { class: `box ${kind}` }, make("h3", {}, title), shown);
}

function showContexts(contexts) {
  return (contexts || []).map((text, place) => showText(`Context ${place + 1}`, text));
}

// What helps to understand but is not what the verdict is about stays folded.
function fold(title, ...children) {
  return make("details", {}, make("summary", {}, title), ...children);
}

function showQuestion(sample) {
  const turns = sample.conversation.map(({ role, text }) => showText(role === "user" ? "The user before" : "The bot before", text));
  return [...turns, showText("Question", sample.question)];
}

function showJudged(item, sample) {
  if (item.step === "rank") {
    return [...showQuestion(sample), showText(`Context ${item.context_rank}`, item.text, "judged")];
  }
  const whole = item.source === "answer" ? sample.answer : sample.ground_truth;
  const from = `The whole ${SOURCES[item.source].toLowerCase()} that the statement is from`;
  return [...showQuestion(sample), showText("Statement", item.text, "judged"), fold(from, showText(SOURCES[item.source], whole))];
}

function showAgainst(item, sample) {
  if (item.step === "attribute") return showContexts(sample.contexts);
  if (item.step === "rank") return [showText("Ground truth", sample.accepted)];
  const [name, text] = item.source === "answer" ? ["Ground truth", sample.ground_truth] : ["Answer", sample.answer];
  const folded = sample.contexts?.length ? [fold("The retrieved contexts, which this is not about", ...showContexts(sample.contexts))] : [];
  return [showText(name, text), ...folded];
}

function showVerdict(item, label) {
  const agrees = label === item.judge_label;
  const verdict = agrees ? "The judge agrees" : `The judge decided ${item.judge_label}`;
  return [
    make("b", { class: agrees ? "agrees" : "differs" }, verdict),
    make("span", { class: "text", dir: "auto" }, item.reason ? `: ${item.reason}` : ", without a reason"),
  ];
}

// What a verdict says, once it has a label.
function drawDecided(item, label) {
  part("verdict").hidden = label === null;
  part("verdict").replaceChildren(...(label === null ? [] : showVerdict(item, label)));
}

// A line of the file that is downloaded.
function describeItem(item) {
  return {
    export_id: data.export_id,
    item_hash: item.item_hash,
    run_id: data.run_id,
    sample_id: item.sample_id,
    step: item.step,
    statement_id: item.statement_id,
    context_rank: item.context_rank,
  };
}

const ASKS = { done: "labelled", things: "verdicts", word: "label", keys: { 1: 0, t: 0, 2: 1, f: 1 }, drawDecided, describeItem, nameLabel: (item, label) => label, findField: () => null };
