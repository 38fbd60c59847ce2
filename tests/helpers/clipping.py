"""The parts of a page that stick out: of the window, of a card or cell, or of a drawing."""

from __future__ import annotations

from browser import Page

_FIND = """
(async () => {
  if (typeof charts !== 'undefined') charts.drawAll();
  // What follows the window's size has done so after that.
  for (let n = 0; n < 2; n += 1) await new Promise(requestAnimationFrame);
  const found = [];
  const name = (node) => `${node.tagName}.${node.getAttribute('class') || ''} ${node.textContent.trim().slice(0, 40)}`;
  const tell = (what, node, by) => found.push(`${what} by ${Math.round(by)}: ${name(node)}`);
  const isShown = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest('.skip, thead, .tip');
  const room = '.card, .chart, .scroll, .box, .result, td, th, li, fieldset, header, main';
  const nodes = [...document.querySelectorAll('body *')].filter((node) => isShown(node) && !node.closest('svg'));
  for (const node of nodes) {
    const box = node.getBoundingClientRect();
    if (!box.width) continue;
    if (box.right > document.documentElement.clientWidth + 1) tell('window', node, box.right - innerWidth);
    const around = node.parentElement.closest(room)?.getBoundingClientRect();
    if (around && box.right > around.right + 1) tell('room', node, box.right - around.right);
    const isCut = getComputedStyle(node).overflowX !== 'visible' && !['SELECT', 'INPUT'].includes(node.tagName);
    if (isCut && node.scrollWidth > node.clientWidth + 1) tell('scroll', node, node.scrollWidth - node.clientWidth);
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !isShown(node) || node.closest('svg, script, style, select')) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    // A blank at the end of a line hangs over, and is not seen.
    const around = node.closest('td, th, p, li, h1, h2, h3, div, section, body').getBoundingClientRect();
    const by = range.getBoundingClientRect().right - around.right;
    if (by > 6) tell('text', node, by);
  }
  for (const plot of [...document.querySelectorAll('svg')].filter(isShown)) {
    // Places on the screen, since a shape's own box leaves out where it is moved to.
    const frame = plot.getBoundingClientRect();
    const isSeen = (node) => node.getClientRects().length && getComputedStyle(node).visibility !== 'hidden';
    const boxes = [...plot.querySelectorAll('text')].filter(isSeen).map((node) => [node, node.getBoundingClientRect()]);
    for (const shape of [...plot.querySelectorAll('text, path, circle, rect, line')].filter(isSeen)) {
      const box = shape.getBoundingClientRect();
      const by = Math.max(
        frame.left - box.left, box.right - frame.right, frame.top - box.top - 2, box.bottom - frame.bottom - 2,
      );
      if (by > 1) tell('drawing', shape, by);
    }
    boxes.forEach(([node, box], place) => boxes.slice(place + 1).forEach(([, other]) => {
      const isOver = box.x < other.x + other.width && other.x < box.x + box.width
        && box.y + 3 < other.y + other.height && other.y + 3 < box.y + box.height;
      if (isOver) tell('labels', node, 0);
    }));
  }
  return [...new Set(found)];
})()
"""


def find_clipped(page: Page) -> list[str]:
    """Return the parts that stick out, a line each: where, by how many pixels, and what it is."""
    found: list[str] = page.evaluate(_FIND)
    return found
