"use strict";
// The answers of the reviewer: stored in the browser under the export and the reviewer's name after every key, so that
// closing the page loses nothing. Every change can be undone, also after coming back.

const LAST_NAME = "evalhouse-reviewer";

const answers = {
  data: null,
  reviewer: "",
  kept: null,
  canKeep: true,

  open(data, reviewer) {
    this.data = data;
    this.reviewer = reviewer;
    this.load();
    this.write(LAST_NAME, reviewer);
  },

  get key() {
    return `evalhouse-review:${this.data.export_id}:${this.reviewer}`;
  },

  load() {
    const text = this.read(this.key);
    // `given`: what counts, by item. `first`: the answer before the judge's verdict was seen, which undo does not change.
    this.kept = { at: 0, given: {}, first: {}, notes: {}, texts: {}, done: [], ...(text ? JSON.parse(text) : {}) };
  },

  read(key) {
    try {
      return localStorage.getItem(key);
    } catch {
      this.canKeep = false;
      return null;
    }
  },

  write(key, text) {
    try {
      localStorage.setItem(key, text);
    } catch {
      this.canKeep = false;
    }
  },

  save() {
    this.write(this.key, JSON.stringify(this.kept));
  },

  get item() {
    return this.data.items[this.kept.at];
  },

  given(item) {
    return this.kept.given[item.item_hash] || null;
  },

  // A label, or null to skip.
  give(label) {
    const { item_hash } = this.item;
    this.kept.done.push({ at: this.kept.at, before: this.kept.given[item_hash] || null });
    this.kept.given[item_hash] = { label, time: new Date().toISOString() };
    if (label !== null && !(item_hash in this.kept.first)) this.kept.first[item_hash] = label;
    this.save();
  },

  undo() {
    const last = this.kept.done.pop();
    if (!last) return false;
    const { item_hash } = this.data.items[last.at];
    if (last.before) this.kept.given[item_hash] = last.before;
    else delete this.kept.given[item_hash];
    this.kept.at = last.at;
    this.save();
    return true;
  },

  takeNote(text) {
    const { item_hash } = this.item;
    if (text.trim()) this.kept.notes[item_hash] = text;
    else delete this.kept.notes[item_hash];
    this.save();
  },

  // Texts that the reviewer has written for an item, by name; null takes one back.
  takeText(name, text) {
    const texts = (this.kept.texts[this.item.item_hash] ||= {});
    if (text === null) delete texts[name];
    else texts[name] = text;
    // What is written is decided when it is written.
    this.kept.given[this.item.item_hash].time = new Date().toISOString();
    this.save();
  },

  goTo(place) {
    this.kept.at = Math.max(0, Math.min(this.data.items.length - 1, place));
    this.save();
  },

  // The next item without an answer, from the beginning again at the end; -1 if all are answered.
  findOpen() {
    const n = this.data.items.length;
    for (let step = 1; step <= n; step += 1) {
      const place = (this.kept.at + step) % n;
      if (!this.given(this.data.items[place])) return place;
    }
    return -1;
  },

  count() {
    const given = Object.values(this.kept.given);
    const skipped = given.filter((one) => one.label === null).length;
    return { labelled: given.length - skipped, skipped, left: this.data.items.length - given.length };
  },

  // The file for `evalhouse review import`: a line for each item with an answer.
  writeLines() {
    const lines = this.data.items.filter((item) => this.given(item)).map((item) => {
      const { label, time } = this.given(item);
      return JSON.stringify({
        ...ASKS.describeItem(item),
        label: ASKS.nameLabel(item, label),
        first_label: this.kept.first[item.item_hash] ?? null,
        reviewer: this.reviewer,
        reviewed_at: time,
        note: this.kept.notes[item.item_hash] ?? null,
      });
    });
    return lines.map((line) => `${line}\n`).join("");
  },
};
