"use strict";
// A person's labels on the page of a sample: each form is beside the statement or context that it is about, is
// reached and answered by keys, and is sent without leaving the page.

const REVIEWER = "evalhouse-reviewer";

const labelling = (() => {
  const list = () => [...document.querySelectorAll("form.labelling")];
  const current = () => document.activeElement?.closest("form.labelling");

  function place(here) {
    for (const form of list()) document.getElementById(`${here}-${form.dataset.target}`)?.append(form);
    count();
  }

  function count() {
    const status = document.getElementById("labelled");
    const forms = list();
    const n = forms.filter((form) => form.querySelector('[aria-pressed="true"]')).length;
    if (status) status.textContent = `${n} of ${forms.length} verdicts of this sample have your label.`;
  }

  async function send(form, button) {
    const status = form.querySelector(".status");
    const fields = new URLSearchParams(new FormData(form));
    fields.set("label", button.value);
    status.textContent = "…";
    const response = await fetch(form.action, { method: "POST", body: fields, headers: { Accept: "application/json" } });
    const answer = await response.json();
    if (!response.ok) {
      status.textContent = answer.problem;
      return;
    }
    form.querySelectorAll("button[name=label]").forEach((one) => one.setAttribute("aria-pressed", String(one.value === answer.label)));
    status.textContent = answer.agrees ? "you agree with the judge" : "you differ from the judge";
    count();
  }

  function move(by) {
    const forms = list();
    const at = forms.indexOf(current());
    // From a statement without a chosen verdict to its first one.
    const next = at < 0 ? document.activeElement.querySelector("form.labelling") || forms[0] : forms[at + by];
    if (!next) return;
    next.querySelector("button").focus({ preventScroll: true });
    (next.closest("li") || next).scrollIntoView({ block: "nearest" });
  }

  function act(key) {
    const form = current();
    const choice = form?.querySelectorAll("button[name=label]")[Number(key) - 1];
    if (choice) choice.click();
    else if (key === "u" && form) move(1);
    else if (key === "n" && form) form.querySelector("[name=note]").focus();
    else if (key === "ArrowDown" && list().length) move(1);
    else if (key === "ArrowUp" && list().length) move(-1);
    else return false;
    return true;
  }

  function press(event) {
    const isTyping = event.target.closest?.("input, select, textarea");
    if (isTyping && event.key === "Escape") current()?.querySelector("button").focus();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (act(event.key)) event.preventDefault();
  }

  // The name is known on the next sample too, in this tab.
  function keepName() {
    const field = document.querySelector("#who [name=reviewer]");
    const name = new URLSearchParams(location.search).get("reviewer");
    if (name) sessionStorage.setItem(REVIEWER, name);
    else if (field) field.value = sessionStorage.getItem(REVIEWER) || "";
  }

  function start(here) {
    place(here);
    keepName();
    document.addEventListener("keydown", press);
    document.addEventListener("submit", (event) => {
      if (!event.target.matches("form.labelling")) return;
      event.preventDefault();
      send(event.target, event.submitter);
    });
    // A note goes with the label, or waits for it.
    document.addEventListener("change", (event) => {
      const form = event.target.matches("form.labelling [name=note]") && event.target.form;
      const given = form && form.querySelector('[aria-pressed="true"]');
      if (given) send(form, given);
    });
  }

  return { start };
})();
