"use strict";
// The table of samples: search, filters, order, pages, and which samples are open.

const PAGE = 50;
const view = { order: [], page: 0, sort: "score", descending: false, metric: 0 };
const control = (name) => document.getElementById(`find-${name}`);
let haystacks = null;

const FILTERS = {
  all: () => true,
  fp: (index, at) => index.fp[at] > 0,
  fn: (index, at) => index.fn[at] > 0,
  unsupported: (index, at) => index.unsupported[at] > 0,
  unscored: (index, at) => KEYS.score(at) === null,
  flipped: (index, at) => index.flipped[at] > 0,
  failed: (index, at) => index.failed[at],
  otherwise: (index, at) => index.verdicts_changed[at] > 0,
  changed: (index, at) => changeOf(at) !== null && changeOf(at) !== 0,
  better: (index, at) => (changeOf(at) || 0) * (index.low_is_good[view.metric] ? -1 : 1) > 0,
  worse: (index, at) => (changeOf(at) || 0) * (index.low_is_good[view.metric] ? -1 : 1) < 0,
};

function changeOf(place) {
  if (!store.index.base || !store.index.metrics.length) return null;
  const value = store.index.scores[view.metric][place];
  const before = store.index.base[view.metric][place];
  return value === null || before === null ? null : value - before;
}

// All words of the search must stand in the sample's id or texts, in any order.
function matchesWords(place, words) {
  if (!words.length) return true;
  haystacks = haystacks || store.index.ids.map((id, at) =>
    [id, store.index.questions[at], store.index.answers[at] || "", store.index.truths[at] || ""].join("\n").toLowerCase());
  return words.every((word) => haystacks[place].includes(word));
}

function findSamples() {
  const { index } = store;
  const words = control("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const keep = FILTERS[control("verdict").value];
  const low = control("low").value === "" ? -Infinity : Number(control("low").value);
  const high = control("high").value === "" ? Infinity : Number(control("high").value);
  const cause = control("cause")?.value || "";
  const bounded = low !== -Infinity || high !== Infinity;
  view.metric = Number(control("metric").value || 0);
  view.order = index.ids.map((_, place) => place).filter((place) => {
    const value = KEYS.score(place);
    return (!bounded || (value !== null && value >= low && value <= high)) && keep(index, place)
      && (!cause || index.causes[place] === cause) && matchesWords(place, words);
  });
  sortSamples();
  view.page = 0;
  draw();
}

const KEYS = {
  place: (place) => place,
  sample: (place) => store.index.ids[place],
  score: (place) => (store.index.metrics.length ? store.index.scores[view.metric][place] : null),
  change: changeOf,
  labels: (place) => store.index.fp[place] + store.index.fn[place],
  unsupported: (place) => store.index.unsupported[place],
};

// What has no value comes last, whichever way.
function sortSamples() {
  const key = KEYS[view.sort];
  const sign = view.descending ? -1 : 1;
  view.order.sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === null || b === null) return (a === null) - (b === null) || one - other;
    return (a < b ? -sign : a > b ? sign : 0) || one - other;
  });
}

function draw() {
  const n = view.order.length;
  const pages = Math.max(1, Math.ceil(n / PAGE));
  view.page = Math.min(Math.max(view.page, 0), pages - 1);
  const shown = view.order.slice(view.page * PAGE, (view.page + 1) * PAGE);
  document.getElementById("rows").replaceChildren(...shown.map(makeRow));
  const from = n ? view.page * PAGE + 1 : 0;
  document.getElementById("found").textContent =
    `${n.toLocaleString("en")} of ${store.index.ids.length.toLocaleString("en")} samples, ${from} to ${from ? from + shown.length - 1 : 0} shown`;
  document.getElementById("score-name").textContent = store.index.metrics[view.metric] || "score";
  document.querySelectorAll("#samples th[data-sort]").forEach((head) => {
    const is = head.dataset.sort === view.sort;
    head.setAttribute("aria-sort", is ? (view.descending ? "descending" : "ascending") : "none");
  });
  document.getElementById("before").disabled = view.page === 0;
  document.getElementById("next").disabled = view.page >= pages - 1;
}

function makeRow(place) {
  const { index } = store;
  const count = (n, kind) => make("span", { class: `count${n ? ` is-${kind}` : ""}` }, `${n} ${kind.toUpperCase()}`);
  const button = make("button", { class: "open", type: "button", "aria-expanded": "false",
    on: { click: () => toggle(place) } }, make("span", { class: "text" }, index.ids[place]));
  const change = changeOf(place);
  const better = (change || 0) * (index.low_is_good[view.metric] ? -1 : 1);
  const cells = [
    make("td", null, button),
    make("td", null, make("div", { class: "question text" }, index.questions[place])),
    make("td", { class: "number", "data-name": index.metrics[view.metric] || "score" }, writeScore(KEYS.score(place))),
    index.base ? make("td", { class: `number ${better > 0 ? "better" : better < 0 ? "worse" : ""}`, "data-name": "change" }, writeChange(change)) : null,
    make("td", { class: "number" }, count(index.tp[place], "tp"), count(index.fp[place], "fp"), count(index.fn[place], "fn")),
    make("td", { class: "number", "data-name": "unsupported" }, String(index.unsupported[place])),
  ];
  return make("tr", { id: `sample-${place}` }, cells);
}

async function toggle(place, open) {
  const row = document.getElementById(`sample-${place}`);
  const button = row.querySelector(".open");
  const isOpen = button.getAttribute("aria-expanded") === "true";
  if (open === isOpen) return;
  button.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    row.nextElementSibling.remove();
    return;
  }
  const cell = make("td", { colspan: row.cells.length });
  row.after(make("tr", { class: "opened" }, cell));
  cell.append(describeSample(await store.sample(place), place));
}

// Brings a place of the page into view: a sample on another page is found, opened, and its part shown.
async function follow(id) {
  const match = /^sample-(\d+)(-.+)?$/.exec(id);
  if (!match || !store.index || Number(match[1]) >= store.index.ids.length) return;
  const place = Number(match[1]);
  if (!document.getElementById(`sample-${place}`)) {
    if (!view.order.includes(place)) resetControls();
    view.page = Math.floor(view.order.indexOf(place) / PAGE);
    draw();
  }
  await toggle(place, true);
  const target = document.getElementById(id);
  if (!target) return;
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView({ block: match[2] ? "center" : "start" });
  (match[2] && target.tagName !== "DETAILS" ? target : target.querySelector("button, summary"))?.focus({ preventScroll: true });
}

function resetControls() {
  document.getElementById("controls").reset();
  setFirstOrder();
  findSamples();
}

// The worst first.
function setFirstOrder() {
  view.sort = "score";
  view.descending = Boolean(store.index.low_is_good[Number(control("metric").value || 0)]);
}
