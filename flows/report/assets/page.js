"use strict";
// Ties the page together: what is pressed, pointed at and linked to.

function listen() {
  const controls = document.getElementById("controls");
  let waiting = 0;
  controls.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(findSamples, 120);
  });
  controls.addEventListener("submit", (event) => event.preventDefault());
  control("metric").addEventListener("change", setFirstOrder);
  document.getElementById("show-all").addEventListener("click", resetControls);
  document.getElementById("save").addEventListener("click", saveTable);
  const turn = (by) => () => { turnTo(view.page + by); document.getElementById("samples").scrollIntoView(); };
  document.getElementById("before").addEventListener("click", turn(-1));
  document.getElementById("next").addEventListener("click", turn(1));
  document.querySelectorAll("#samples th[data-sort] button").forEach((button) => button.addEventListener("click", () => {
    const { sort } = button.parentElement.dataset;
    view.descending = view.sort === sort ? !view.descending : false;
    view.sort = sort;
    sortSamples();
    draw();
  }));
  listenForTips();
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    } else if (event.key === "/") {
      event.preventDefault();
      control("words").focus();
    } else if (event.key === "j" || event.key === "k") {
      step(event.key === "j" ? 1 : -1);
    }
  });
  // A link to the place one is at already changes nothing in the address, so links are followed here.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#sample"]');
    if (link && link.hash === location.hash) follow(link.hash.slice(1));
  });
  // Of the event: what is shown may have been written into the address since, and the link would be lost.
  addEventListener("hashchange", (event) => follow(new URL(event.newURL).hash.slice(1)));
}

async function start() {
  await store.load();
  makeMetadata();
  setFirstOrder();
  findSamples();
  listen();
  document.documentElement.dataset.ready = "yes";
  await follow(location.hash.slice(1));
}

start().catch((error) => {
  document.getElementById("found").textContent = `The samples could not be shown: ${error.message}`;
  throw error;
});
