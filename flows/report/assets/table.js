"use strict";
// The table of samples: search, filters, order, pages, and which samples are open. The choice is in the address
// too, so that it can be passed on.

const PAGE = 25;
const VIEW = "samples?";
// `open` is the place of the sample that was opened last, null when it is closed.
const view = { order: [], page: 0, sort: "score", descending: false, metric: 0, open: null };
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
  better: (index, at) => (changeOf(at) || 0) * index.signs[view.metric] > 0,
  worse: (index, at) => (changeOf(at) || 0) * index.signs[view.metric] < 0,
};

function changeOf(place) {
  if (!store.index.base || !store.index.metrics.length) return null;
  const value = store.index.scores[view.metric][place];
  const before = store.index.base[view.metric][place];
  return value === null || before === null ? null : value - before;
}

// All words of the search must be in the sample's id or texts, in any order.
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
  const chosen = listMetadata().filter((field) => field.value);
  const bounded = low !== -Infinity || high !== Infinity;
  view.metric = Number(control("metric").value || 0);
  view.order = index.ids.map((_, place) => place).filter((place) => {
    const value = KEYS.score(place);
    return (!bounded || (value !== null && value >= low && value <= high)) && keep(index, place)
      && (!cause || index.causes[place] === cause) && matchesWords(place, words)
      && chosen.every((field) => index.metadata[field.dataset.key][place] === field.value);
  });
  sortSamples();
  view.page = 0;
  draw();
}

const listMetadata = () => [...document.querySelectorAll("#metadata select")];

// A choice for each key of the metadata that has few values, with how many samples have each.
function makeMetadata() {
  const choices = Object.entries(store.index.metadata).map(([key, values], number) => {
    const counts = new Map();
    values.filter((value) => value !== null).forEach((value) => counts.set(value, (counts.get(value) || 0) + 1));
    const options = [...counts].sort().map(([value, n]) => make("option", { value }, `${value} (${n})`));
    return make("label", null, make("span", { class: "text" }, key),
      make("select", { id: `find-metadata-${number}`, "data-key": key }, make("option", { value: "" }, "any"), options));
  });
  document.getElementById("metadata").replaceChildren(...choices);
}

// What is chosen, as names and values; defaults are left out.
function describeView() {
  const chosen = new URLSearchParams();
  for (const field of document.getElementById("controls").querySelectorAll("input, select")) {
    const name = field.dataset.key === undefined ? field.id.replace("find-", "") : `metadata.${field.dataset.key}`;
    const first = field.options ? [...field.options].find((option) => option.defaultSelected) || field.options[0] : null;
    if (field.value === (first ? first.value : field.defaultValue)) continue;
    chosen.set(name, name === "metric" ? store.index.metrics[Number(field.value)] : field.value);
  }
  if (view.sort !== "score") chosen.set("sort", view.sort);
  if (view.descending !== isDescending()) chosen.set("descending", view.descending ? "yes" : "no");
  if (view.page) chosen.set("page", String(view.page + 1));
  if (view.open !== null) chosen.set("open", store.index.ids[view.open]);
  return chosen.toString();
}

let saving = 0;

// Browsers allow some hundred changes of the address in half a minute, so that many at once become one.
function keepView() {
  clearTimeout(saving);
  saving = setTimeout(() => {
    const chosen = describeView();
    const isElsewhere = location.hash && !location.hash.startsWith(`#${VIEW}`);
    if (isElsewhere && (!chosen || location.hash.slice(1).split("-", 2).join("-") === `sample-${view.open}`)) return;
    const fragment = chosen ? `#${VIEW}${chosen}` : "";
    if (fragment !== location.hash) history.replaceState(null, "", fragment || location.href.split("#")[0]);
  }, 150);
}

// Shows what an address says; what it says of names that are not there is left out.
async function readView(text) {
  const chosen = new URLSearchParams(text);
  document.getElementById("controls").reset();
  for (const [name, value] of chosen) {
    const field = name.startsWith("metadata.") ? listMetadata().find((one) => one.dataset.key === name.slice(9)) : control(name);
    const wanted = name === "metric" ? String(store.index.metrics.indexOf(value)) : value;
    const isThere = field && (field.options ? [...field.options].some((option) => option.value === wanted)
      : field.type !== "number" || Number.isFinite(Number(wanted)));
    if (isThere) field.value = wanted;
  }
  setFirstOrder();
  if (Object.hasOwn(KEYS, chosen.get("sort"))) view.sort = chosen.get("sort");
  if (chosen.has("descending")) view.descending = chosen.get("descending") === "yes";
  findSamples();
  const open = view.order.find((place) => store.index.ids[place] === chosen.get("open"));
  const page = open === undefined ? Number(chosen.get("page") || 1) - 1 : Math.floor(view.order.indexOf(open) / PAGE);
  if (page > 0) turnTo(page);
  if (open === undefined) document.getElementById("samples-title").scrollIntoView();
  else await show(open);
}

function turnTo(page) {
  view.page = page;
  draw();
}

// The next sample of those found, or the one before, instead of the one that is open.
async function step(by) {
  const at = view.order.indexOf(view.open);
  const next = at < 0 ? view.page * PAGE : at + by;
  if (next < 0 || next >= view.order.length) return;
  if (at >= 0) await toggle(view.open, false);
  if (Math.floor(next / PAGE) !== view.page) turnTo(Math.floor(next / PAGE));
  await show(view.order[next]);
}

async function show(place) {
  await toggle(place, true);
  const row = document.getElementById(`sample-${place}`);
  row.scrollIntoView({ block: "start" });
  row.querySelector("button").focus({ preventScroll: true });
}

const KEYS = {
  place: (place) => place,
  sample: (place) => store.index.ids[place],
  cause: (place) => store.cause(place),
  score: (place) => (store.index.metrics.length ? store.index.scores[view.metric][place] : null),
  change: changeOf,
  labels: (place) => store.index.fp[place] + store.index.fn[place],
  unsupported: (place) => store.index.unsupported[place],
};

// Samples without a value come last in both orders.
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
  view.open = null;
  keepView();
}

function makeRow(place) {
  const { index } = store;
  const count = (n, kind) => make("span", { class: `count${n ? ` is-${kind}` : ""}` }, `${n} ${kind.toUpperCase()}`);
  const button = make("button", { class: "open", type: "button", "aria-expanded": "false",
    on: { click: () => toggle(place) } }, make("span", { class: "text" }, index.ids[place]));
  const change = changeOf(place);
  const better = (change || 0) * index.signs[view.metric];
  const cells = [
    make("td", null, button),
    make("td", null, make("div", { class: "question text" }, index.questions[place]),
      index.answers[place] ? make("div", { class: "answer text soft" }, index.answers[place]) : null,
      make("div", { class: "soft keys" }, Object.entries(index.metadata).filter(([, values]) => values[place] !== null)
        .map(([key, values]) => make("span", { class: "label text", title: key }, values[place])))),
    make("td", { class: "cause" }, KEYS.cause(place) || "–"),
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
    if (view.open === place) view.open = null;
    keepView();
    return;
  }
  view.open = place;
  keepView();
  const cell = make("td", { colspan: row.cells.length });
  row.after(make("tr", { class: "opened" }, cell));
  cell.append(makeSteps(place), describeSample(await store.sample(place), place));
}

// Buttons for what the keys k and j do, which a phone does not have.
function makeSteps(place) {
  const at = view.order.indexOf(place);
  const turn = (by) => ({ click: () => { view.open = place; step(by); } });
  return make("div", { class: "pager" }, make("button", { type: "button", disabled: at <= 0, on: turn(-1) }, "← previous (k)"),
    make("span", { class: "soft" }, `${(at + 1).toLocaleString("en")} of ${view.order.length.toLocaleString("en")}`),
    make("button", { type: "button", disabled: at >= view.order.length - 1, on: turn(1) }, "next (j) →"));
}

// Brings a place of the page into view: a sample on another page is found, opened, and its part shown.
async function follow(id) {
  if (!store.index) return;
  if (id.startsWith(VIEW)) {
    await readView(id.slice(VIEW.length));
    return;
  }
  const match = /^sample-(\d+)(-.+)?$/.exec(id);
  if (!match || Number(match[1]) >= store.index.ids.length) return;
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
  view.descending = isDescending();
}

function isDescending() {
  return store.index.signs[Number(control("metric").value || 0)] < 0;
}

