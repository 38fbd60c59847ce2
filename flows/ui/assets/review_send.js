"use strict";
// An answer on the page of an export is sent when the reviewer moves to the next item; stored answers are shown as given.
// An answer that could not be sent stays in this browser, and is sent with the next one.

const sending = { sent: {}, isBusy: false };

function describeSaid(item) {
  return JSON.stringify([answers.given(item).label, answers.kept.notes[item.item_hash] ?? null]);
}

// The stored answers of this reviewer, unless a newer one was given here.
function adopt() {
  if (answers.reviewer !== data.reviewer) return;
  for (const item of data.items) {
    if (!item.own) continue;
    const { item_hash } = item;
    sending.sent[item_hash] = JSON.stringify([item.own.label, item.own.note]);
    if (answers.kept.given[item_hash]) continue;
    answers.kept.given[item_hash] = { label: item.own.label, time: "" };
    if (item.own.first_label) answers.kept.first[item_hash] = item.own.first_label;
    if (item.own.note) answers.kept.notes[item_hash] = item.own.note;
  }
  const open = answers.findOpen();
  if (answers.given(answers.item) && open !== -1) answers.kept.at = open;
}

const loadKept = answers.load;
answers.load = function load() {
  loadKept.call(this);
  adopt();
};

async function sendOne(item) {
  const answer = describeSaid(item);
  const fields = new URLSearchParams({
    export_id: data.export_id, item_hash: item.item_hash, sample_id: item.sample_id, step: item.step,
    label: answers.given(item).label, reviewer: answers.reviewer, note: answers.kept.notes[item.item_hash] || "",
    first_label: answers.kept.first[item.item_hash] || "",
  });
  const response = await fetch(data.address, { method: "POST", body: fields, headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error((await response.json()).problem);
  sending.sent[item.item_hash] = answer;
}

async function sendSaid(section) {
  const isOpen = (item) => section === "work" && item === answers.item;
  if (sending.isBusy || section === "start") return;
  sending.isBusy = true;
  try {
    for (const item of data.items) {
      const given = answers.given(item);
      if (given && given.label !== null && !isOpen(item) && sending.sent[item.item_hash] !== describeSaid(item)) await sendOne(item);
    }
    part("sent").textContent = `${Object.keys(sending.sent).length} on record`;
  } catch (error) {
    part("problem").hidden = false;
    part("problem").textContent = `Not stored yet, and sent again with the next answer: ${error.message}`;
  } finally {
    sending.isBusy = false;
  }
}

document.addEventListener("shown", (event) => sendSaid(event.detail));
