"""Barriers to the use of a page, found by axe-core: contrast, names, labels, order of headings, landmarks, and more."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from browser import Page

_RUN = """
axe.run(document, {
  resultTypes: ["violations"], selectors: false,
  runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
})
  .then((found) => found.violations.map((one) => ({
    id: one.id, impact: one.impact, help: one.help, nodes: one.nodes.slice(0, 5).map((node) => node.html.slice(0, 160)),
  })))
"""


@cache
def _read_axe() -> str:
    return files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def find_barriers(page: Page) -> list[str]:
    """A line for each rule that the page breaks seriously, with the elements that do."""
    page.evaluate(f"{_read_axe()}; true")
    found = page.evaluate(_RUN)
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {json.dumps(one['nodes'], ensure_ascii=False)}"
        for one in found
        if one["impact"] in ("serious", "critical", "moderate")
    ]
