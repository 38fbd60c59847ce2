"use strict";
// An answer on the page of an export is sent when the reviewer moves to the next item; stored answers are shown as given.
// An answer that could not be sent stays in this browser, and is sent with the next one. One that was taken back, or is
// skipped now, is removed from the record in the same way.

const sending = { isBusy: false };

function describeSaid(item) {
  return JSON.stringify([answers.given(item)?.label ?? null, answers.kept.notes[item.item_hash] ?? null]);
}

// The stored answers of this reviewer, unless a newer one was given here: they may have given one elsewhere meanwhile.
function adopt() {
  if (answers.reviewer !== data.reviewer) return;
  for (const item of data.items) {
    const { item_hash } = item;
    if (!item.own) {
      // An answer of this browser that is not on record any more was taken back elsewhere.
      if (answers.kept.sent[item_hash]) delete answers.kept.given[item_hash];
      delete answers.kept.sent[item_hash];
      continue;
    }
    answers.kept.sent[item_hash] = JSON.stringify([item.own.label, item.own.note]);
    if (answers.kept.given[item_hash]?.time > item.own.time) continue;
    answers.kept.given[item_hash] = { label: item.own.label, time: item.own.time };
    if (item.own.first_label) answers.kept.first[item_hash] = item.own.first_label;
    if (item.own.note) answers.kept.notes[item_hash] = item.own.note;
    else delete answers.kept.notes[item_hash];
  }
  const open = answers.findOpen();
  if (answers.given(answers.item) && open !== -1) answers.kept.at = open;
}

const loadKept = answers.load;
answers.load = function load() {
  loadKept.call(this);
  this.kept.sent ??= {}; // the answers that the warehouse has of this reviewer, by item
  adopt();
};

async function sendOne(item) {
  const answer = describeSaid(item);
  const label = answers.given(item)?.label ?? null;
  const fields = new URLSearchParams({ export_id: data.export_id, item_hash: item.item_hash, reviewer: answers.reviewer });
  if (label === null) fields.set("withdrawn", "yes");
  else {
    const { item_hash, sample_id, step } = item;
    const note = answers.kept.notes[item_hash] || "";
    Object.entries({ sample_id, step, label, note, first_label: answers.kept.first[item_hash] || "" }).forEach((one) => fields.set(...one));
  }
  const response = await fetch(data.address, { method: "POST", body: fields, headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error((await response.json()).problem);
  if (label === null) delete answers.kept.sent[item.item_hash];
  else answers.kept.sent[item.item_hash] = answer;
  answers.save();
}

async function sendSaid(section) {
  const isOpen = (item) => section === "work" && item === answers.item;
  if (sending.isBusy || section === "start") return;
  sending.isBusy = true;
  try {
    for (const item of data.items) {
      const sent = answers.kept.sent[item.item_hash];
      const isLabelled = (answers.given(item)?.label ?? null) !== null;
      if (!isOpen(item) && (isLabelled ? sent !== describeSaid(item) : sent !== undefined)) await sendOne(item);
    }
    part("sent").textContent = `${Object.keys(answers.kept.sent).length} on record`;
  } catch (error) {
    part("problem").hidden = false;
    part("problem").textContent = `Not stored yet, and sent again with the next answer: ${error.message}`;
  } finally {
    sending.isBusy = false;
  }
}

document.addEventListener("shown", (event) => sendSaid(event.detail));
