"""Runs under way: how far they are, for pages that fill while they run.

A page asks for it every few seconds as JSON: texts and numbers by the names that its elements have, what a screen
reader should hear, and a stamp. As long as the stamp is that of the page only texts are replaced; another one says that
there is more to show than texts, and the page is loaded again.
"""

import time
from datetime import timedelta
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from evalhouse.flows.report.sections import write_share
from evalhouse.flows.results.output import (
    write_count,
    write_dollars,
    write_value,
)
from evalhouse.flows.results.run_origin import HEADLINE
from evalhouse.flows.ui.pages import Kept, find_warehouse
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.progress import (
    JournalReader,
    MeanSoFar,
    RunProgress,
    list_metric_files,
    read_means_so_far,
    read_progress,
)
from evalhouse.warehouse.rows.runs import RunRow, find_run, now_utc
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
_EVERY_S: Final = 2
_IDLE_S: Final = 15
_KEPT_S: Final = 1.0
"""Seconds for which an answer is kept for all requests."""
_MEANS_KEPT_S: Final = 15.0
_QUIET: Final = timedelta(minutes=10)
"""A run without news for so long is shown as quiet where it is unknown whether it is alive."""


class LiveReader:
    """Reads how far runs are, once for all who ask within a moment; safe to use from several threads."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._journal = JournalReader(warehouse.location)
        self._kept = Kept()

    def read_progress(self, run: RunRow) -> RunProgress:
        """Return how far a run is."""
        read = partial(read_progress, self._warehouse, run, self._journal)
        return self._kept.find(("progress", run.run_id), time.monotonic() // _KEPT_S, read)

    def read_means(self, run: RunRow) -> list[MeanSoFar]:
        """Return the main means of a run so far."""
        read = partial(read_means_so_far, self._warehouse, run, list_main(run))
        return self._kept.find(("means", run.run_id), time.monotonic() // _MEANS_KEPT_S, read)


def find_live(request: Request) -> LiveReader:
    """The reader of the app."""
    reader: LiveReader = request.app.state.live
    return reader


@router.get("/live")
def tell_all(request: Request) -> Response:
    """Send how far all running runs are."""
    texts = {f"{run_id}-status": stand for run_id, stand in describe_stands(request).items()}
    return _answer(make_stamp(find_warehouse(request)), texts, {}, "", _EVERY_S if texts else _IDLE_S)


@router.get("/runs/{run}/live")
def tell_one(request: Request, run: str) -> Response:
    """Send how far one run is."""
    row = find_run(find_warehouse(request), run)
    if row.status != "running":
        return _answer(row.status, {}, {}, f"The run is {row.status}", _IDLE_S)
    shown = describe_live(find_live(request), row)
    return _answer("running", shown["texts"], shown["values"], shown["say"], _EVERY_S)


def describe_stands(request: Request) -> dict[str, str]:
    """Return how far each running run is, by its id."""
    running = list_running(find_warehouse(request))
    return {run.run_id: describe_stand(find_live(request).read_progress(run)) for run in running}


def list_running(warehouse: Warehouse) -> list[RunRow]:
    """List the runs with the status running."""
    rows = warehouse.read_rows(read_query("ui/running"))
    return [find_run(warehouse, str(row["run_id"])) for row in rows]


def make_stamp(warehouse: Warehouse) -> str:
    """Return a text that changes whenever a run begins or ends."""
    (row,) = warehouse.read_rows(read_query("ui/stamp"))
    return str(row["stamp"])


def list_main(run: RunRow) -> list[str]:
    """The main metrics of a run."""
    names = [file.name for file in list_metric_files(run)]
    return [name for name in HEADLINE if name in names] or names[:1]


def describe_live(reader: LiveReader, run: RunRow) -> dict[str, Any]:
    """Return what the page of a running run shows, by the names that its elements have."""
    progress = reader.read_progress(run)
    n_all = progress.n_samples or 0
    if not progress.n_unpriced:
        cost = write_dollars(progress.priced_usd)
    else:
        cost = (
            f"{write_dollars(progress.priced_usd)} and {write_count(progress.n_unpriced, 'call')} without a known price"
        )
    texts = {
        "stand": describe_stand(progress),
        "warning": describe_warning(run, progress) or "",
        "requests": f"{progress.n_requests:,}",
        "reused": f"{progress.n_reused:,}",
        "failed": f"{progress.n_failed:,}",
        "tokens": f"{progress.n_tokens:,}",
        "cost": cost,
    }
    for step in progress.steps:
        failed = f", {step.n_failed:,} failed" if step.n_failed else ""
        texts[f"step-{step.step}"] = f"{step.n_done:,} of {n_all:,}{failed}"
    if any(step.n_done for step in progress.steps):
        texts |= {
            f"mean-{mean.metric}": (
                f"{write_value(mean.mean)} of {write_count(mean.n_scored, 'sample')}" if mean.n_scored else "none yet"
            )
            for mean in reader.read_means(run)
        }
    # Read aloud is every quarter.
    quarters = ("", "A quarter is done", "Half is done", "Three quarters are done", "All is judged")
    quarter = quarters[min(int(4 * (progress.share or 0)), 4)]
    values = {f"step-{step.step}": step.n_done / n_all if n_all else 0 for step in progress.steps}
    return {
        "texts": texts,
        "values": {**values, "all": progress.share or 0},
        "steps": [step.step for step in progress.steps],
        "means": list_main(run),
        "say": texts["warning"] or quarter,
    }


def describe_stand(progress: RunProgress) -> str:
    """Return how far a run is, in a few words."""
    if progress.is_alive is False:
        return f"stopped at {write_share(progress.share)}, no process is at work on it"
    if not any(step.n_done for step in progress.steps) and progress.n_responses:
        of = f" of {progress.n_samples:,}" if progress.n_samples else ""
        return f"running: {progress.n_responses:,}{of} responses of the application are there"
    left = f", about {write_time(progress.left)} left" if progress.left else ""
    return f"running: {write_share(progress.share or 0)} done{left}"


def describe_warning(run: RunRow, progress: RunProgress) -> str | None:
    """Return that a run is silent, and since when; None where it makes progress."""
    ago = now_utc() - progress.last_at
    if progress.is_alive or (progress.is_alive is None and ago < _QUIET):
        return None
    since = f"the last that came of it came at {progress.last_at:%Y-%m-%d %H:%M:%S} UTC, {write_time(ago)} ago"
    if progress.is_alive is None:
        return f"It is quiet: {since}."
    return (
        f"No process is at work on it on this machine: {since}. `evalhouse resume {run.run_id}` goes on with it; "
        "what was answered is on record and costs nothing."
    )


def write_time(time_left: timedelta) -> str:
    """A length of time in its largest units: 40 s, 3 min, 2 h 5 min, 3 days."""
    minutes, seconds = divmod(int(time_left.total_seconds()), 60)
    if not minutes:
        return f"{seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _answer(stamp: str, texts: dict[str, str], values: dict[str, float], say: str, every_s: int) -> Response:
    cleaned = {name: clean_text(text) for name, text in texts.items()}
    return JSONResponse({"stamp": stamp, "texts": cleaned, "values": values, "say": clean_text(say), "every": every_s})
