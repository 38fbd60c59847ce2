"use strict";
// An opened sample: texts with their statements marked by verdict, contexts, ratings and raw calls, linked to each other.

const LABELS = {
  TP: "the ground truth supports it",
  FP: "the ground truth does not support it",
  FN: "the answer leaves it out",
};
const WORST_FIRST = ["FP", "FN", "TP", null];
const ONLY_NAMES = /^[CT]\d+(?:(?:, | \+ )[CT]\d+)*$/;
const tips = new WeakMap();

function describeSample(sample, place) {
  const here = `sample-${place}`;
  const of = (source) => sample.statements.filter((statement) => statement.source === source);
  return make("article", { "aria-label": `Sample ${sample.sample_id}` },
    describeConversation(sample, here),
    describeQuestion(sample.question),
    listScores(place),
    make("div", { class: "pair" },
      describeText("Answer", sample.answer, of("answer"), here),
      describeText("Ground truth", sample.ground_truth, of("ground_truth"), here)),
    sample.thoughts === null ? null : describeMore("The bot's thoughts, left out of its answer", sample.thoughts),
    sample.base_answer === null ? null : describeMore("The answer in the other run", sample.base_answer),
    describeFlips(sample),
    describeContexts(sample, here),
    describeMeasures(sample, here),
    describeFailures(sample),
    describeVotes(sample),
    sample.metadata === null ? null : describeMore("Metadata", JSON.stringify(sample.metadata, null, 2)),
    describeCalls(sample, here));
}

// The question, unless it is the title of the page.
function describeQuestion(question) {
  return document.querySelector("h1").textContent === clean(question) ? null
    : [make("h3", null, "Question"), make("div", { class: "box text" }, question)];
}

// The turns before the question, with the ids that verdicts name.
function describeConversation(sample, here) {
  if (!sample.conversation.length) return null;
  const turns = sample.conversation.map((turn, number) => make("li", { class: "box", id: `${here}-T${number + 1}`, tabindex: -1 },
    make("span", { class: "tag" }, `T${number + 1}`), make("span", { class: "soft" }, `${turn.role} `),
    make("div", { class: "text" }, turn.text),
    turn.contexts ? describeMore(`Contexts of turn ${number + 1}`, turn.contexts.join("\n\n")) : null));
  return make("section", null, make("h3", null, "Conversation before"), make("ol", { class: "list" }, turns));
}

// The cause and the first scores; the others are folded, by group.
function listScores(place) {
  const { metrics, scores, reasons, base, groups } = store.index;
  const cause = store.cause(place);
  const describe = (metric) => {
    const column = metrics.indexOf(metric);
    const value = scores[column][place];
    const before = base ? base[column][place] : null;
    const moved = before !== null && value !== null && before !== value ? ` (${writeChange(value - before)})` : "";
    const text = value === null ? `unscored: ${reasons[column][place] || "not scored yet"}` : writeScore(value);
    return make("li", null, make("span", { class: "metric", "data-metric": metric }, metric), " ", make("b", null, text), moved);
  };
  const { "": first = [], ...others } = groups;
  const folded = Object.entries(others).map(([title, names]) => [make("h3", null, title),
    make("ul", { class: "chips", "aria-label": `Scores, ${title}` }, names.map(describe))]);
  return make("div", null,
    make("ul", { class: "chips", "aria-label": "Scores" }, cause === null ? null : make("li", null, "cause ", make("b", null, cause)), first.map(describe)),
    folded.length ? make("details", null, make("summary", null, `${Object.values(others).flat().length} more scores`), folded.flat()) : null);
}

function describeText(title, text, statements, here) {
  const marks = statements.filter((statement) => statement.span)
    .map((statement) => ({ ...statement.span, statement, target: `${here}-${statement.id}` }));
  const body = text === null ? make("p", { class: "soft" }, "None.")
    : make("div", { class: "box text" }, markText(text, marks));
  return make("section", null, make("h3", null, title), body,
    make("ul", { class: "list" }, statements.map((statement) => describeStatement(statement, here))));
}

// A text as pieces: where statements overlap, the piece shows the worst verdict and lists all.
function markText(text, marks) {
  const letters = [...text];
  const ends = [...new Set([0, letters.length, ...marks.flatMap((mark) => [mark.start, mark.end])])]
    .filter((end) => end <= letters.length).sort((a, b) => a - b);
  return ends.slice(0, -1).map((start, number) => {
    const piece = letters.slice(start, ends[number + 1]).join("");
    const on = marks.filter((mark) => mark.start <= start && mark.end >= ends[number + 1]);
    if (!on.length) return piece;
    const node = make("mark", { class: markClasses(on.map((mark) => mark.statement)), tabindex: 0 }, piece);
    tips.set(node, on.map((mark) => tellStatement(mark.statement)).join("\n\n"));
    return node;
  });
}

function markClasses(statements) {
  const worst = WORST_FIRST.find((label) => statements.some((statement) => statement.label === label));
  const unsupported = statements.some((statement) => statement.supported === false);
  return [worst ? `is-${worst.toLowerCase()}` : "is-found", unsupported ? "is-unsupported" : ""].join(" ").trim();
}

function tellStatement(statement) {
  const lines = [`${statement.id} ${statement.text}`];
  if (statement.label) lines.push(`${statement.label}, ${tellLabel(statement)}: ${statement.label_reason || "no reason given"}`);
  const why = explainSupport(statement) ?? "no reason given";
  if (statement.supported !== null) lines.push(tellSupport(statement) + (why ? `: ${why}` : ""));
  return lines.join("\n");
}

function tellLabel(statement) {
  return statement.source === "ground_truth" && statement.label === "TP" ? "found in the answer" : LABELS[statement.label];
}

function tellSupport(statement) {
  if (!statement.supported) return "Unsupported by the contexts";
  return `Supported by ${listSupport(statement).join(statement.joint ? " + " : ", ")}`;
}

// The reason, "" where it is the names of what supports the statement, which stand beside it already.
function explainSupport(statement) {
  return statement.supported && ONLY_NAMES.test(statement.support_reason) ? "" : statement.support_reason;
}

function listSupport(statement) {
  return [...statement.ranks.map((rank) => `C${rank}`), ...statement.turns.map((turn) => `T${turn}`)];
}

function describeStatement(statement, here) {
  const label = statement.label;
  const support = statement.supported === null ? [] : statement.supported
    ? [statement.joint ? "supported together by " : "supported by ",
      ...listSupport(statement).map((id) => linkTo(`${here}-${id}`, id)).flatMap((link) => [link, " "])]
    : [make("span", { class: "tag is-fp" }, "unsupported")];
  const calls = Object.entries(statement.calls).map(([step, call]) => linkTo(`${here}-call-${call}`, step));
  const why = (name, reason) => reason ? make("div", { class: "why" }, `${name}: ${reason}`) : null;
  return make("li", { class: `statement${label ? ` is-${label.toLowerCase()}` : ""}`, id: `${here}-${statement.id}`, tabindex: -1 },
    make("span", { class: "tag" }, statement.id),
    label ? make("span", { class: `tag is-${label.toLowerCase()}`, title: tellLabel(statement) }, label) : null,
    make("span", { class: "text" }, statement.text),
    make("div", { class: "why" }, support, listCited(statement, here), calls.length ? [" calls: ", ...calls.flatMap((link) => [link, " "])] : []),
    why("label", statement.label_reason), why("support", explainSupport(statement)));
}

// What the answer gives as the statement's sources, whether the judge finds it there or not.
function listCited(statement, here) {
  const cited = statement.cited.map((rank) => [linkTo(`${here}-C${rank}`, `C${rank}`), " "]);
  const inVain = statement.cited_in_vain.map((marker) => [make("span", { class: "tag is-fp", title: "names nothing that was retrieved" }, marker), " "]);
  return cited.length || inVain.length ? [" cites ", ...cited.flat(), ...inVain.flat()] : [];
}

function describeContexts(sample, here) {
  if (!sample.contexts.length) return null;
  const boxes = sample.contexts.map((context, number) => {
    const rank = number + 1;
    const supported = sample.statements.filter((statement) => statement.ranks.includes(rank));
    const marks = supported.filter((statement) => statement.evidence[rank])
      .map((statement) => ({ ...statement.evidence[rank], statement }));
    const useful = context.useful === null ? null
      : make("span", { class: `tag ${context.useful ? "is-tp" : "is-fn"}` }, context.useful ? "useful" : "not useful");
    const links = supported.flatMap((statement) => [linkTo(`${here}-${statement.id}`, statement.id), " "]);
    return make("li", { class: "box", id: `${here}-C${rank}`, tabindex: -1 },
      make("span", { class: "tag" }, `C${rank}`), useful,
      context.id === null ? null : make("span", { class: "soft text" }, context.id, " "),
      links.length ? make("span", { class: "soft" }, "supports ", links) : null,
      context.call === null ? null : make("span", { class: "soft" }, "call: ", linkTo(`${here}-call-${context.call}`, "rank")),
      make("div", { class: "text" }, markText(context.text, marks)),
      context.reason ? make("div", { class: "why" }, context.reason) : null);
  });
  return make("section", null, make("h3", null, "Contexts"), make("ol", { class: "list" }, boxes));
}

function describeMeasures(sample, here) {
  if (!sample.measures.length) return null;
  const items = sample.measures.map((measure) => {
    const scale = measure.scale_max === null ? writeScore(measure.value) : `${measure.value} of ${measure.scale_max}`;
    const original = measure.said === null || measure.said === measure.value ? "" : `, said ${measure.said}`;
    return make("li", { class: "statement" }, `${measure.step} ${measure.criterion || ""} `, make("b", null, scale + original),
      measure.rule ? ` (${measure.rule})` : null, " ", measure.text ? make("span", { class: "text" }, measure.text) : null,
      measure.call === null ? null : [" ", linkTo(`${here}-call-${measure.call}`, "call")],
      measure.reason ? make("div", { class: "why" }, measure.reason) : null);
  });
  return make("section", null, make("h3", null, "Ratings and similarities"), make("ul", { class: "list" }, items));
}

// The verdicts that differ from the other run, both sides beside each other.
function describeFlips(sample) {
  if (!sample.flips.length) return null;
  const side = (title, verdict) => make("div", { class: "side" }, make("span", { class: "soft" }, `${title} `),
    verdict === null ? "–" : [make("span", { class: "tag" }, verdict.verdict), make("span", { class: "text" }, verdict.text),
      verdict.reason ? make("div", { class: "why" }, verdict.reason) : null]);
  const items = sample.flips.map((flip) => make("li", { class: "statement flip" },
    make("span", { class: "tag is-fn" }, flip.change), ` ${flip.kind}`,
    make("div", { class: "pair" }, side("base", flip.base), side("this run", flip.candidate))));
  return make("section", null, make("h3", null, "Verdicts that differ from the base"), make("ul", { class: "list" }, items));
}

function describeFailures(sample) {
  if (!sample.failures.length) return null;
  const items = sample.failures.map((failure) => make("li", null, `${failure.step}: ${failure.reason}`,
    failure.detail ? make("span", { class: "why" }, ` ${failure.detail}`) : null));
  return make("section", null, make("h3", null, "Steps without verdicts"), make("ul", { class: "list" }, items));
}

function describeVotes(sample) {
  if (!sample.votes.length) return null;
  const items = sample.votes.map((vote) => make("li", null,
    `${vote.step} ${vote.item}: ${vote.votes.map(([verdict, n]) => `${n} × ${verdict}`).join(", ")}`));
  return make("section", null, make("h3", null, "Votes that disagreed"), make("ul", { class: "list" }, items));
}

function describeMore(title, text) {
  return make("details", null, make("summary", null, title), make("div", { class: "box text" }, text));
}

function describeCalls(sample, here) {
  if (!sample.calls.length) return null;
  const boxes = sample.calls.map((call, number) => {
    const tokens = call.tokens_in || call.tokens_out ? `, ${call.tokens_in || 0} + ${call.tokens_out || 0} tokens` : "";
    const reused = call.from_run === null ? "" : `, reused from run ${call.from_run}`;
    const cost = call.cost_usd ? `, $${call.cost_usd.toPrecision(3)}` : "";
    const fixed = call.fixed === null ? null : make("details", { on: { toggle: showFixed(call.fixed) } },
      make("summary", null, "Instructions, examples and parameters of the request"), make("pre", { tabindex: 0 }, "…"));
    return make("details", { class: "box call", id: `${here}-call-${number}` },
      make("summary", null, make("b", null, call.step), ` ${call.prompt || ""} · ${call.model || "–"} · ${call.status}${reused}${tokens}${cost}`),
      make("p", { class: "soft" }, `call ${call.call_id}, ${call.attempts} attempt${call.attempts === 1 ? "" : "s"}`),
      call.error ? make("p", { class: "notice text" }, call.error) : null,
      fixed,
      make("h3", null, "Request"), make("pre", { tabindex: 0 }, call.request === null ? "–" : call.request),
      make("h3", null, call.reply_repair === null ? "Reply" : `Reply, read after repair: ${call.reply_repair}`), make("pre", { tabindex: 0 }, writeReply(call.reply)),
      call.thoughts === null ? null : describeMore("Thoughts", call.thoughts));
  });
  return make("section", null, make("h3", null, "Raw calls"), boxes);
}

function showFixed(place) {
  return async (event) => { event.target.querySelector("pre").textContent = clean(await store.fixedText(place)); };
}

// JSON is indented; anything else stays as it came.
function writeReply(reply) {
  if (reply === null) return "–";
  try {
    return JSON.stringify(JSON.parse(reply), null, 2);
  } catch {
    return reply;
  }
}

function linkTo(id, text) {
  return make("a", { href: `#${id}` }, text);
}
