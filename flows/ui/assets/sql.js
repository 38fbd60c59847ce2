"use strict";
// The SQL page beside what the server sends: words offered while one types, keys that run and stop, lists that are
// searched. The page works without it. It comes before the result in the page, so that it works while a query runs.

(() => {
  const area = document.getElementById("q");
  const form = area.form;
  const list = document.getElementById("words");
  const status = document.getElementById("status");
  const WAIT_MS = 60;
  const FAR = 4000; // characters on either side of the cursor that are looked at
  let words = [];
  let chosen = 0;
  let asked = 0;
  let isMoved = false; // whether a word was gone to by arrow: Enter then takes it

  for (const part of document.querySelectorAll(".with-script")) part.hidden = false;

  // Words

  function hideWords() {
    asked += 1;
    words = [];
    list.hidden = true;
    area.removeAttribute("aria-activedescendant");
    area.removeAttribute("aria-controls");
  }

  function describe(word) {
    const entry = document.createElement("li");
    const [name, note, comment] = ["code", "span", "span"].map((tag) => document.createElement(tag));
    name.textContent = word.text;
    note.textContent = word.note;
    note.className = "soft";
    comment.textContent = word.comment || "";
    comment.className = "comment soft";
    entry.append(name, " ", note, comment);
    entry.setAttribute("role", "option");
    entry.addEventListener("mousedown", (event) => {
      event.preventDefault();
      take(word);
    });
    return entry;
  }

  function choose(place) {
    chosen = (place + words.length) % words.length;
    [...list.children].forEach((entry, number) => {
      entry.id = number === chosen ? "word" : "";
      entry.setAttribute("aria-selected", String(number === chosen));
    });
    list.children[chosen].scrollIntoView({ block: "nearest" });
    area.setAttribute("aria-activedescendant", "word");
  }

  // Lines are never wrapped and letters equally wide, so that the cursor's place is a matter of counting.
  function placeList() {
    const before = area.value.slice(0, area.selectionStart - words[0].replaced).split("\n");
    const style = getComputedStyle(area);
    const letter = Object.assign(document.createElement("canvas").getContext("2d"), { font: style.font }).measureText("m").width;
    const line = parseFloat(style.lineHeight);
    const left = parseFloat(style.paddingLeft) + letter * before.at(-1).length - area.scrollLeft;
    list.style.left = `${Math.max(0, Math.min(left, area.clientWidth - list.offsetWidth))}px`;
    list.style.top = `${parseFloat(style.paddingTop) + line * before.length - area.scrollTop + 4}px`;
  }

  function showWords(found) {
    const typed = area.value.slice(0, area.selectionStart);
    words = found.filter((word) => word.replaced === 0 || word.text !== typed.slice(-word.replaced));
    if (!words.length) return hideWords();
    list.replaceChildren(...words.map(describe));
    list.hidden = false;
    isMoved = false;
    area.setAttribute("aria-controls", "words");
    placeList();
    choose(0);
    status.textContent = `${words.length} ${words.length === 1 ? "word fits" : "words fit"}: ${words[0].text}`;
    return undefined;
  }

  function isWorthAsking(before) {
    return /[\w"]$/.test(before) || /\w\.$/.test(before) || /\b(from|join|describe|summarize)\s$/i.test(before) || /^\s*\\d\s$/.test(before);
  }

  async function askWords() {
    asked += 1;
    const number = asked;
    await new Promise((resolve) => { setTimeout(resolve, WAIT_MS); });
    if (number !== asked) return;
    const [start, end] = [area.selectionStart, area.selectionEnd];
    const around = new URLSearchParams({ before: area.value.slice(Math.max(0, start - FAR), start), after: area.value.slice(end, end + FAR) });
    const found = await fetch(`/sql/words?${around}`).then((answer) => (answer.ok ? answer.json() : []), () => []);
    if (number === asked && area.selectionStart === start && document.activeElement === area) showWords(found);
  }

  // As if it were typed, so that Ctrl-Z takes it back.
  function type(text, replaced) {
    area.focus();
    area.setSelectionRange(area.selectionStart - replaced, area.selectionEnd);
    if (!document.execCommand("insertText", false, text)) area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
    hideWords();
  }

  function take(word) {
    type(word.text, word.replaced);
  }

  function pressInList(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    if (event.key in steps) {
      choose(Math.max(event.key.startsWith("Page") ? 0 : -1, chosen + steps[event.key]));
      isMoved = true;
      status.textContent = words[chosen].text;
    } else if (event.key === "Tab" && !event.shiftKey) take(words[chosen]);
    else if (event.key === "Enter" && isMoved) take(words[chosen]);
    else if (event.key === "Escape") hideWords();
    else return false;
    return true;
  }

  area.addEventListener("input", () => {
    hideWords();
    if (area.selectionStart === area.selectionEnd && isWorthAsking(area.value.slice(0, area.selectionStart))) askWords();
  });
  area.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      form.requestSubmit();
    } else if (event.ctrlKey && event.key === " ") {
      event.preventDefault();
      askWords();
    } else if (!list.hidden && !event.isComposing && pressInList(event)) event.preventDefault();
    else if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") hideWords();
  });
  area.addEventListener("blur", hideWords);
  area.addEventListener("scroll", () => !list.hidden && placeList());

  // Running

  const stop = document.getElementById("stop");
  const refused = document.getElementById("refused");

  // While a page is loaded the query of its address runs; while another is asked for, that one's.
  function watchRun() {
    const began = performance.now();
    stop.hidden = false;
    const clock = setInterval(() => {
      const since = document.getElementById("since");
      if (since) since.textContent = `${Math.round((performance.now() - began) / 1000)} s`;
    }, 500);
    const end = () => {
      clearInterval(clock);
      stop.hidden = true;
    };
    stop.onclick = () => {
      window.stop();
      end();
      const running = document.querySelector(".running");
      if (running) running.textContent = "Stopped.";
      status.textContent = "stopped";
      area.focus();
    };
    return end;
  }

  form.addEventListener("submit", (event) => {
    const n = new URLSearchParams(new FormData(form)).toString().length;
    const most = Number(form.dataset.most);
    refused.hidden = n <= most;
    if (n > most) {
      event.preventDefault();
      refused.textContent = `The SQL makes an address of ${n.toLocaleString("en")} characters, of which ${most.toLocaleString("en")} are taken; shorten it, or write it to a file for evalhouse query --file.`;
    } else watchRun();
  });
  if (area.value.trim()) {
    const end = watchRun();
    document.addEventListener("DOMContentLoaded", end);
  }
  addEventListener("pageshow", (event) => {
    if (event.persisted) stop.hidden = true;
  });

  // What is around: lists to be searched, names to be taken, the place of a mistake, a chart that follows its choice

  function search(input, entries) {
    const rows = [...entries].map((entry) => [entry, entry.textContent.toLowerCase() + (entry.querySelector("a")?.search ? decodeURIComponent(entry.querySelector("a").search).replaceAll("+", " ").toLowerCase() : "")]);
    input?.addEventListener("input", () => {
      const parts = input.value.toLowerCase().split(/\s+/);
      for (const [entry, text] of rows) entry.hidden = !parts.every((part) => text.includes(part));
    });
  }

  document.getElementById("names").open = matchMedia("(min-width: 861px)").matches;
  search(document.getElementById("find-names"), document.querySelectorAll(".relation"));
  for (const name of document.querySelectorAll(".relation dt code")) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Write it into the SQL";
    button.append(...name.childNodes);
    button.addEventListener("click", () => type(button.textContent, 0));
    name.append(button);
  }
  document.addEventListener("DOMContentLoaded", () => {
    search(document.getElementById("find-recipes"), document.querySelectorAll(".recipes li"));
    for (const part of document.querySelectorAll(".with-script")) part.hidden = false;
    const mistake = document.getElementById("mistake");
    if (mistake) {
      area.focus();
      area.setSelectionRange(Number(mistake.dataset.place), Number(mistake.dataset.place));
    }
    for (const select of document.querySelectorAll(".drawn select")) select.addEventListener("change", () => select.form.requestSubmit());
  });
})();
