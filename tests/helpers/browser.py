"""A real Chromium without a window, driven over its debugging pipe: open a page, ask it, look at it.

`open_browser` skips the test without Chromium. A `Page` keeps what went wrong in it (`problems`: exceptions,
console errors, refusals by the Content-Security-Policy) and every address it asked for (`requests`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip
_TIMEOUT_S = 90.0
# A page that failed to load shows one of the browser's own.
_IS_SHOWN = "location.protocol !== 'chrome-error:'"


class PageError(Exception):
    """The browser or a script in the page answered with an error."""


@dataclass(kw_only=True)
class Page:
    """One tab. `evaluate` runs a script in it and gives its value; promises are waited for."""

    browser: Browser
    session: str
    address: str = ""
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        return self.browser.send(method, parameters, session=self.session)

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and wait until its script says that it is ready."""
        self.send("Page.navigate", url=path.absolute().as_uri() + fragment)
        self.wait_for("document.documentElement?.dataset.ready === 'yes'")

    def visit(self, address: str) -> None:
        """Load a page of a server and wait until it is there."""
        self.send("Page.navigate", url=address)
        self.wait_for(f"location.href !== 'about:blank' && document.readyState === 'complete' && {_IS_SHOWN}")

    def evaluate(self, script: str) -> Any:  # noqa: ANN401  # any value of the script
        expected = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in expected:
            raise PageError(expected["exceptionDetails"].get("exception", {}).get("description", str(expected)))
        return expected["result"].get("value")

    def wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._is_so(condition):
            assert time.monotonic() < deadline, f"not reached: {condition}; problems: {self.problems}"
            time.sleep(0.02)

    def _is_so(self, condition: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({condition})"))
        except PageError as error:  # asked of a page that another took the place of meanwhile
            if "navigated" not in str(error):
                raise
            return False

    def press(self, key: str, *, text: str = "", with_ctrl: bool = False) -> None:
        """A key as a keyboard sends it; letters also need the text they write."""
        named: dict[str, object] = {"key": key, "code": key, "modifiers": 2 if with_ctrl else 0}
        named |= {"text": text} if text else {}
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        if key == "Enter" and not with_ctrl:
            named["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, windowsVirtualKeyCode=codes.get(key, 0), **named)

    def type(self, text: str) -> None:
        """Letters, one key after the other."""
        for letter in text:
            self.press(letter, text=letter)

    def show_as(self, *, width: int = 1280, height: int = 900, dark: bool = False, media: str = "") -> None:
        """The window's size, and the preferences of its reader; narrow windows are phones."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def take_picture(self, path: Path, *, whole: bool = False) -> None:
        expected = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(expected["data"]))


class Browser:
    """A running Chromium; `send` asks it and waits for the answer, taking in what happens meanwhile."""

    def __init__(self, profile: str, flags: tuple[str, ...]) -> None:
        assert CHROMIUM is not None
        from_us, self._to_browser = os.pipe()
        self._from_browser, to_us = os.pipe()
        # The browser reads descriptor 3 and writes descriptor 4.
        script = f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *_FLAGS, *flags, f"--user-data-dir={profile}"],
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._buffer = b""
        self._last = 0
        self._pages: dict[str, Page] = {}

    def open_page(self) -> Page:
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(browser=self, session=session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        return page

    @contextlib.contextmanager
    def opened_page(self) -> Iterator[Page]:
        """A page that is closed at the end."""
        page = self.open_page()
        yield page
        page.send("Page.close")

    def send(self, method: str, parameters: dict[str, object], *, session: str | None = None) -> dict[str, Any]:
        self._last += 1
        number = self._last
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            expected = self._read(deadline)
            if expected.get("id") != number:
                self._note(expected)
                continue
            if "error" in expected:
                raise PageError(f"{method}: {expected['error']}")
            result: dict[str, Any] = expected["result"]
            return result

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._to_browser, b'{"id": 0, "method": "Browser.close"}\0')
        os.close(self._to_browser)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from_browser)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready = select.select([self._from_browser], [], [], max(0.0, deadline - time.monotonic()))[0]
            chunk = os.read(self._from_browser, 1 << 20) if ready else b""
            assert chunk, "Chromium has ended, or does not answer"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        expected: dict[str, Any] = json.loads(message)
        return expected

    def _note(self, expected: dict[str, Any]) -> None:
        page, about = self._pages.get(expected.get("sessionId", "")), expected.get("params", {})
        if page is None:
            return
        match expected["method"]:
            case "Runtime.exceptionThrown":
                page.problems.append(json.dumps(about["exceptionDetails"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("warning", "error"):
                page.problems.append(about["entry"]["text"])
            case "Runtime.consoleAPICalled" if about["type"] in ("warning", "error", "assert"):
                page.problems.append(json.dumps(about["args"]))
            case "Page.javascriptDialogOpening":
                page.problems.append(f"dialog: {about['message']}")
            case "Network.requestWillBeSent":
                page.requests.append(about["request"]["url"])


@contextlib.contextmanager
def open_browser(*flags: str) -> Iterator[Browser]:
    """A browser with a separate profile and more command-line flags; skips the test without Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install Debian's package chromium to test the report's page")
    with tempfile.TemporaryDirectory(prefix="evalhouse-chromium-", ignore_cleanup_errors=True) as profile:
        browser = Browser(profile, flags)
        try:
            yield browser
        finally:
            browser.close()


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
