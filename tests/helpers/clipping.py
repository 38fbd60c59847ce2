"""What of a page cannot be seen whole: what sticks out of the window, of its card or cell, or of its drawing."""

from __future__ import annotations

from browser import Page

_FIND = """
(() => {
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
    const view = plot.viewBox.baseVal;
    const boxes = [...plot.querySelectorAll('text')].map((node) => [node, node.getBBox()]);
    for (const shape of plot.querySelectorAll('text, path, circle, rect')) {
      const box = shape.getBBox();
      const by = Math.max(-box.x, box.x + box.width - view.width, -box.y - 2, box.y + box.height - view.height - 2);
      if (by > 0.5) tell('drawing', shape, by);
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
    """What sticks out, a line each: where, by how many pixels, and what it is."""
    found: list[str] = page.evaluate(_FIND)
    return found
