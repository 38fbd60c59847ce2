"""Evaluation from Python: samples in, scores, statements and verdicts out as Polars frames.

    from evalhouse.flows import evaluate
    result = evaluate(samples, metrics=["faithfulness"])
    assert result.mean("faithfulness") > 0.8

The run is that of `evalhouse run`, with the same settings, the same environment variables and the same warehouse, so
that what was answered once is never paid for again. It takes place in a child process (`run.call_process`), and not in
a thread: a caller may fork, may use Prefect with another server, and may bring a judge that ends its process, as a
crash in a native library does; and Prefect reads its settings once a process. The first evaluation starts the child and
its Prefect server, and those after it find both.
"""

# ruff: noqa: PLC0415  # to import `evaluate` takes no time, and its child imports what runs while the server comes up
import asyncio
import difflib
import html
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import polars as pl

    from evalhouse.flows.preparing.request import RunRequest
    from evalhouse.flows.run.open_run import RunFlow
    from evalhouse.flows.run.outcome import Finish, RunOutcome, Watch
    from evalhouse.tasks.pipeline.live_run import LiveRun
    from evalhouse.warehouse.rows.runs import RunStatus

    Samples = Sequence[Mapping[str, Any]] | pl.DataFrame | str | os.PathLike[str]


_SAMPLES: Final = "samples"


class EvaluationError(Exception):
    """A run that could not begin, was stopped, or has no score where one was asked for. The text says why."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run's report, an HTML file at `path`; in a notebook a link to it."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    __fspath__ = __str__

    def _repr_html_(self) -> str:
        # A notebook's own server gives out what lies below its folder, and a browser follows no file: from there.
        here = Path.cwd()
        url = self.path.relative_to(here).as_posix() if self.path.is_relative_to(here) else self.path.as_uri()
        return f'<a href="{html.escape(url)}" target="_blank">{html.escape(self.path.name)}</a>'


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation:
    """A run that has ended. `problem` says why when its status is not `completed`; frames are read when first used.

    Printed it is its means; in a notebook they are a table.
    """

    run_id: str
    status: "RunStatus"
    problem: str | None
    warehouse: str

    def mean(self, metric: str) -> float:
        """The mean over the samples that were scored, as in `run_scores`; raises EvaluationError when none was."""
        import polars as pl

        row = self.summary.filter(pl.col("metric") == metric)
        if row.is_empty():
            raise EvaluationError(f"run {self.run_id} has no metric {metric!r}; it has {', '.join(self.metrics)}")
        mean = row["mean"][0]
        if mean is None:
            reasons = self.scores.filter(pl.col("metric") == metric)["unscored_reason"].value_counts(sort=True)
            counts = ", ".join(f"{reason} {count}" for reason, count in reasons.iter_rows())
            raise EvaluationError(f"run {self.run_id} scored no sample by {metric!r}: {counts}")
        return float(mean)

    @property
    def metrics(self) -> list[str]:
        """The names of the run's metrics."""
        return self.summary["metric"].to_list()

    @cached_property
    def summary(self) -> "pl.DataFrame":
        """A row per metric: metric, mean, ci_low, ci_high, n_scored, n_unscored."""
        return self._read(
            "select metric, mean, ci_low, ci_high, n_scored, n_unscored from run_scores where run_id = $run_id "
            "order by metric"
        )

    @cached_property
    def scores(self) -> "pl.DataFrame":
        """A row per sample and metric: sample_id, metric, value (null allowed), unscored_reason, metric_version."""
        return self._read("select * exclude run_id from scores where run_id = $run_id order by sample_id, metric")

    @cached_property
    def statements(self) -> "pl.DataFrame":
        """A row per statement: sample_id, statement_id, source, ordinal, text, call_id."""
        return self._read(
            "select * exclude run_id from statements where run_id = $run_id order by sample_id, source, ordinal"
        )

    @cached_property
    def verdicts(self) -> "pl.DataFrame":
        """A row per verdict of any step, as in the view `verdicts`, with the judge's reason and its call."""
        return self._read("select * exclude run_id from verdicts where run_id = $run_id order by sample_id, step")

    def report(self, path: str | os.PathLike[str] | None = None) -> Report:
        """Write the run's report, one HTML file that needs no network, as `evalhouse report` does.

        `path` None writes `report-RUN.html` into the working directory.
        """
        from evalhouse.flows.report.page import write_page
        from evalhouse.warehouse.rows.pages import has_room_for_calls, reading_slices
        from evalhouse.warehouse.rows.runs import find_run
        from evalhouse.warehouse.store import Warehouse

        warehouse = Warehouse(self.warehouse)
        run = find_run(warehouse, self.run_id)
        written = Path(path or f"report-{self.run_id}.html").absolute()
        with_calls = has_room_for_calls(warehouse, run)
        with reading_slices(warehouse, run, None, with_calls=with_calls) as slices:
            write_page(written, warehouse, run, None, slices, with_calls=with_calls)
        return Report(path=written)

    def __repr__(self) -> str:
        table = [("metric", "mean", "95 % interval", "scored", "unscored"), *self._list_means()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join([self._describe(), *(f"  {line.rstrip()}" for line in lines)])

    def _repr_html_(self) -> str:
        heads = ("metric", "mean", "95 % interval", "scored", "unscored")
        rows = []
        for tag, cells in [("th", heads), *(("td", row) for row in self._list_means())]:
            rows.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>")
        more = "<code>.report()</code> writes the report, <code>.scores</code> has each sample"
        return f"<p>{html.escape(self._describe())}</p><table>{''.join(rows)}</table><p>{more}</p>"

    def _describe(self) -> str:
        from evalhouse.flows.results.output import write_count

        n_samples = write_count(self.scores["sample_id"].n_unique(), "sample")
        reason = f": {self.problem}" if self.problem else ""
        return f"run {self.run_id} {self.status}{reason} ({n_samples})"

    def _list_means(self) -> list[tuple[str, ...]]:
        """A row per metric, as text: metric, mean, interval, samples scored, and how many not, with their reasons."""
        import polars as pl

        from evalhouse.flows.results.output import write_interval, write_value

        reasons = self.scores.filter(pl.col("value").is_null()).group_by("metric", "unscored_reason").len()
        by_metric: dict[str, list[str]] = {}
        for metric, reason, count in reasons.sort("len", "unscored_reason", descending=[True, False]).iter_rows():
            by_metric.setdefault(metric, []).append(f"{count} {reason}")
        return [
            (
                row["metric"],
                write_value(row["mean"]) or "–",
                write_interval(row["ci_low"], row["ci_high"]),
                str(row["n_scored"]),
                ", ".join(by_metric.get(row["metric"], [])),
            )
            for row in self.summary.iter_rows(named=True)
        ]

    def _read(self, sql: str) -> "pl.DataFrame":
        from evalhouse.warehouse.store import Warehouse

        return Warehouse(self.warehouse).read(sql, {"run_id": self.run_id})


def evaluate(
    samples: "Samples", *, metrics: Sequence[str] | str = (), name: str | None = None, **settings: object
) -> Evaluation:
    """Evaluate samples and wait for the end.

    `samples` are dictionaries, a frame of Polars (or another that speaks Arrow, such as pandas'), or a DATASET of
    `evalhouse run`. `name` is what samples in memory are called, `samples` unless given: runs of one name are a series,
    and are compared over time. `settings` are the fields of `evalhouse.tasks.settings.run.RunSettings` by name (judge,
    warehouse, language, label, tags, votes, …); missing ones come from the EVALHOUSE_* variables, then from the
    defaults. Raises SettingsError for settings that are refused and EvaluationError when nothing could be evaluated; a
    run of which only some samples failed is returned, with status `incomplete`. Within a flow of Prefect the run is a
    child flow run of the one that calls this.
    """
    from evalhouse.flows.errors import SettingsError
    from evalhouse.flows.preparing.request import resolve_settings, split_list
    from evalhouse.flows.results.progress import ProgressLine
    from evalhouse.flows.run.call_process import RunnerGone, run_apart
    from evalhouse.tasks.datasets.read import write_samples
    from evalhouse.tasks.datasets.values import DatasetError
    from evalhouse.tasks.settings.run import RunSettings
    from evalhouse.warehouse.engine.locks import Scratch
    from evalhouse.warehouse.messages import list_names, settings_as_arguments

    path = os.fspath(samples) if isinstance(samples, str | os.PathLike) else None
    if path and name:
        raise SettingsError(f"evaluate() got name={name!r} and a dataset that has a name, {path}; leave name out")
    if unknown := [setting for setting in settings if setting not in RunSettings.model_fields]:
        known = list(RunSettings.model_fields)
        close = [match for setting in unknown for match in difflib.get_close_matches(setting, known, n=1)]
        advice = f"did you mean {list_names(close)}?" if close else f"known: {', '.join(known)}"
        raise SettingsError(f"evaluate() has no setting {list_names(unknown)}; {advice}")
    line, parent_id, variables = ProgressLine(), None, {}
    if "prefect" in sys.modules:
        from prefect.client.orchestration import get_client
        from prefect.runtime import flow_run

        if (parent_id := flow_run.id) is not None:
            with get_client(sync_client=True) as client:  # the caller may have a server for its process alone
                variables["PREFECT_API_URL"] = str(client.api_url).rstrip("/")

    def listen(message: Mapping[str, Any]) -> None:
        if "progress" in message:
            line.show(*message["progress"])
        elif "stderr" in message:
            line.say(message["stderr"])
        elif message.get("interrupted"):
            line.say(f"stopped; to resume it: evalhouse resume {message['interrupted']['run_id']}\n")

    with closing(Scratch()) as scratch, settings_as_arguments():
        dataset, source = path or name or _SAMPLES, None
        if path is None:
            mapping = settings.get("mapping")
            try:
                source = str(write_samples(samples, scratch.folder, mapping if isinstance(mapping, dict) else {}))
            except DatasetError as error:
                raise EvaluationError(str(error)) from None
        chosen = split_list(metrics, "metrics") if isinstance(metrics, str) else tuple(metrics)
        resolved = resolve_settings({**settings, "dataset": dataset, "metrics": chosen}).settings
        request = {"settings": resolved.model_dump_json(), "source": source, "with_progress": line.is_watched}
        try:
            message = run_apart({**request, "parent_flow_run_id": parent_id}, listen, variables)
        except RunnerGone as gone:
            raise EvaluationError(str(gone)) from None
        finally:
            line.clear()
    if "error" in message:
        raise EvaluationError(message["error"])
    return Evaluation(**(message.get("ended") or message["interrupted"]), warehouse=resolved.warehouse)


def answer_calls() -> None:
    """Run evaluations for the process that has started this one: what the child of `evaluate` does."""
    from evalhouse.flows.run.call_process import answer_requests
    from evalhouse.warehouse.messages import settings_as_arguments

    with settings_as_arguments():
        answer_requests(_answer_call)


def _answer_call(request: dict[str, Any], send: "Callable[[dict[str, Any]], None]") -> dict[str, Any]:
    """Run one evaluation; `send` reports how far it is."""
    # Imported while the server comes up, which takes longer.
    import polars as pl

    from evalhouse.flows.preparing.request import RunRequest
    from evalhouse.flows.results.progress import count_all_steps, count_steps, describe_progress, repeating
    from evalhouse.flows.run.outcome import show_run
    from evalhouse.tasks.datasets.formats import open_source
    from evalhouse.tasks.settings.run import RunSettings

    settings = RunSettings.model_validate_json(request["settings"])
    samples = None
    if (path := request["source"]) is not None:
        is_frame = path.endswith(".parquet")
        opened = open_source(pl.read_parquet(path) if is_frame else path, settings.encoding)
        samples = replace(opened, name=settings.dataset, place="row" if is_frame else _SAMPLES)
    with show_run() as watch:

        @contextmanager
        def watch_both(live_run: "LiveRun") -> Iterator[None]:
            def report() -> None:
                steps = [count_steps(live_run), count_all_steps(live_run)]
                send({"progress": [*steps, describe_progress(live_run).replace("\n", ", ")]})

            with watch(live_run), repeating(report) if request["with_progress"] else nullcontext():
                yield

        run_request, parent_id = RunRequest(settings=settings, source=samples), request["parent_flow_run_id"]
        outcome = start_run(run_request, watch=watch_both, parent_flow_run_id=parent_id)
    ended = {"run_id": outcome.run.run_id, "status": outcome.status, "problem": outcome.problem}
    return {"interrupted" if outcome.status == "cancelled" else "ended": ended}


def start_run(
    request: "RunRequest",
    *,
    watch: "Watch | None" = None,
    finish: "Finish | None" = None,
    parent_flow_run_id: str | None = None,
) -> "RunOutcome":
    """Evaluate, collect or resume as the request states, for commands, suites and calls from Python.

    `watch` gives a context manager that is open while samples are judged; `finish` is called when the run has ended,
    and returns why it is red in Prefect; `parent_flow_run_id` is the flow run of a caller in another process. Raises
    the errors of dataset, settings, warehouse, target and judge for all
    that can be refused beforehand.
    """
    from evalhouse.flows.run.open_run import open_run
    from evalhouse.flows.run.outcome import explain_incomplete

    load = partial(load_flow, parent_flow_run_id)
    with open_run(request, load, watch=watch, finish=finish or explain_incomplete) as opened:
        return asyncio.run(opened.run_to_end())


def load_flow(parent_flow_run_id: str | None = None) -> "RunFlow":
    """Return what takes a live run to its end as a separate flow run; imports Prefect."""
    from evalhouse.flows.evaluation import call_as_flow

    return partial(call_as_flow, parent_flow_run_id=parent_flow_run_id)
