"""Progress on standard error while a run judges; silent when that is no terminal."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flows.output import make_console, write_dollars

if TYPE_CHECKING:
    from tasks.bench import Bench

_EVERY_S = 0.2


@contextmanager
def show_progress(bench: "Bench") -> Iterator[None]:
    """Show samples, calls, reused, failures, tokens, dollars and time left as long as the block runs."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (
        TextColumn("samples"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[calls]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    ended = threading.Event()
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=bench.progress.n_samples, calls="")

        def redraw() -> None:
            progress.update(task, completed=bench.progress.n_done, calls=describe_calls(bench), refresh=True)

        def keep_redrawing() -> None:
            while not ended.wait(_EVERY_S):
                redraw()

        thread = threading.Thread(target=keep_redrawing, name="evalhouse-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            redraw()


def describe_calls(bench: "Bench") -> str:
    """The counts of a run so far in one line."""
    counts = bench.asker.counts
    parts = [f"{counts.requests} calls", f"{counts.reused} reused"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    if counts.prompt_tokens:
        parts.append(f"{(counts.prompt_tokens + counts.completion_tokens) / 1000:,.0f}k tokens")
        parts.append(write_dollars(counts.cost_usd if counts.priced else None))
    return ", ".join(parts)
