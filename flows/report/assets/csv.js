"use strict";
// The table of samples as a file, made here: those found, in their order, with all metrics.

// Spreadsheets run what begins like a formula, and texts under test are anybody's: an apostrophe makes it a text.
function writeCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function writeTable() {
  const { index } = store;
  const columns = [
    ["sample_id", index.ids], ["question", index.questions], ["answer", index.answers], ["ground_truth", index.truths],
    ...Object.entries(index.metadata), ["cause", index.causes],
    ["tp", index.tp], ["fp", index.fp], ["fn", index.fn], ["unsupported", index.unsupported],
    ...index.metrics.map((metric, column) => [metric, index.scores[column]]),
    ...(index.base ? index.metrics.map((metric, column) => [`base.${metric}`, index.base[column]]) : []),
  ];
  const lines = view.order.map((place) => columns.map(([, values]) => values[place]));
  return [columns.map(([name]) => name), ...lines].map((cells) => `${cells.map(writeCell).join(",")}\r\n`).join("");
}

// With the mark of UTF-8 in front, without which Excel takes it for another encoding.
function saveTable() {
  const address = URL.createObjectURL(new Blob(["\ufeff", writeTable()], { type: "text/csv" }));
  make("a", { href: address, download: `samples-${document.getElementById("samples").dataset.run}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}
