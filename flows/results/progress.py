"""Progress of a run that judges: on standard error at a terminal, below a cell of a notebook, and as numbers."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from evalhouse.flows.results.output import is_watched, make_console, write_dollars
from evalhouse.warehouse.messages import shorten

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

_EVERY_S = 0.2
_BAR_WIDTH = 12
_LONGEST_WAIT = 160


class _TimeLeft(TimeRemainingColumn):
    """The time left with the word for it, and nothing while it is unknown."""

    def render(self, task: Task) -> Text:
        if task.time_remaining is None or task.finished:
            return Text("")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return Text(f"{clock} left", style="cyan")


@contextmanager
def show_progress(live_run: "LiveRun") -> Iterator[None]:
    """Show samples, calls, reused, failures, tokens, dollars and time left at a terminal as long as the block runs."""
    columns = (BarColumn(bar_width=_BAR_WIDTH), TextColumn("{task.description}"), _TimeLeft())
    with Progress(*columns, console=make_console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=1)
        was_asking = [live_run.asks_target]

        def redraw() -> None:
            if live_run.asks_target != was_asking[0]:
                was_asking[0] = live_run.asks_target
                progress.reset(task)  # the pace of asking says nothing about that of judging
            progress.update(
                task,
                completed=count_steps(live_run),
                total=count_all_steps(live_run),
                description=describe_progress(live_run),
                refresh=True,
            )

        redraw()
        with repeating(redraw):
            yield


@contextmanager
def repeating(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` in a thread five times a second while the block runs, and once more at its end."""
    ended = threading.Event()

    def keep_acting() -> None:
        while not ended.wait(_EVERY_S):
            act()

    thread = threading.Thread(target=keep_acting, name="evalhouse-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        act()


class ProgressLine:
    """One line on standard error that is overwritten again and again: at a terminal, and below a notebook's cell."""

    def __init__(self) -> None:
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        is_notebook = hasattr(shell, "kernel")  # it shows standard error while it is written
        self.is_watched = is_watched() or is_notebook
        self._width = 0

    def show(self, n_done: int, n_all: int | None, text: str) -> None:
        """Show the steps done as a bar, and a text."""
        filled = round(_BAR_WIDTH * n_done / n_all) if n_all else 0
        line = f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {text}"
        print(f"\r{line.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def say(self, text: str) -> None:
        """Print a message of the run above the line."""
        self.clear()
        print(text, end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


def count_steps(live_run: "LiveRun") -> int:
    """Count the steps taken over all samples; while a target is asked, the questions asked.

    Many samples finish late and at once, so their number alone would be a poor measure of the time left.
    """
    if live_run.collection is not None and live_run.asks_target:
        return live_run.collection.n_asked
    open_works = [work.done for shard in list(live_run.shards.values()) for work in shard.works]
    n_steps = len(live_run.tasks)
    return live_run.progress.n_done * n_steps + sum(len(done) for done in open_works if len(done) < n_steps)


def count_all_steps(live_run: "LiveRun") -> int | None:
    """Count all of these steps; None without any."""
    if live_run.collection is not None and live_run.asks_target:
        return live_run.collection.n_to_ask or None
    return live_run.progress.n_samples * len(live_run.tasks) or None


def describe_progress(live_run: "LiveRun") -> str:
    """Describe samples and calls of a run so far in two lines, which fit in 80 columns beside the bar."""
    counts, progress, collection = live_run.asker.counts, live_run.progress, live_run.collection
    if collection is not None and live_run.asks_target:
        failed = f", {shorten_number(collection.n_failed)} failed" if collection.n_failed else ""
        taken = f", {shorten_number(collection.n_taken)} taken from the record" if collection.n_taken else ""
        return f"asked {collection.n_asked:,} of {collection.n_to_ask:,}{failed}{taken}\n"
    samples = f"{progress.n_done:,}/{progress.n_samples:,} {progress.what}"
    if batches := [text for queue in live_run.batch_queues if (text := queue.describe())]:
        return f"{samples}\n{shorten('; '.join(batches), _LONGEST_WAIT)}"
    waits = (asker.limit.describe_wait(time.monotonic()) for asker in live_run.askers)
    if waiting := next(filter(None, waits), None):
        return f"{samples}\n{shorten(waiting, _LONGEST_WAIT)}"
    parts = [f"{shorten_number(counts.requests)} calls", f"{shorten_number(counts.reused)} reused"]
    if counts.failed:
        parts.append(f"{shorten_number(counts.failed)} failed")
    n_tokens = counts.prompt_tokens + counts.completion_tokens
    if n_tokens:
        parts.append(f"{shorten_number(n_tokens)} tokens")
        parts.append("$?" if counts.unpriced else write_dollars(counts.cost_usd))
    return f"{samples}\n{', '.join(parts)}"


def shorten_number(number: int) -> str:
    """Write a count in few letters: 9999, 50.1k, 95.0M."""
    if number < 10_000:
        return str(number)
    return f"{number / 1e3:.1f}k" if number < 1_000_000 else f"{number / 1e6:.1f}M"
