"""The end of a run: its outcome, with the noise of its judge and its bot; its display at a terminal and in Prefect."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Literal

from evalhouse.flows.results.output import is_watched, print_new_notices, print_notice, write_count, write_dollars
from evalhouse.tasks.judge.protocol import NEW_RUN
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import RunRow, RunStatus

if TYPE_CHECKING:
    from evalhouse.tasks.asking.usage import Usage
    from evalhouse.tasks.pipeline.live_run import LiveRun
    from evalhouse.tasks.settings.run import RunSettings
    from evalhouse.warehouse.rows.runs import RepeatCounts
    from evalhouse.warehouse.store import Warehouse

Watch = Callable[["LiveRun"], AbstractContextManager[None]]
"""Gives a context manager that shows a run while it judges."""
STORED: Final = "answers so far are stored"
"""The words of the problem of a run that took too long, which nothing has to be corrected for."""
_STARTING = "starting …"


@contextmanager
def show_run(notice: str | None = None) -> Iterator[Watch]:
    """Print at a terminal that a run is starting, and yield a context manager that shows it while it judges.

    `notice` is printed when the judging begins: by then all checks have passed, so that an error is printed alone.
    """
    if is_watched():
        sys.stderr.write(_STARTING)
        sys.stderr.flush()

    notices = [notice] if notice else []
    printed: set[str] = set()
    begun: list[str] = []

    @contextmanager
    def watch(live_run: "LiveRun") -> Iterator[None]:
        _clear_line()
        begun.append(live_run.run_id)
        print_new_notices((*notices, *live_run.notices), printed)  # noise and variants are watched too
        if not is_watched():
            yield
            return
        from evalhouse.flows.results.progress import show_progress  # noqa: PLC0415  # a pipe does without

        with show_progress(live_run):
            yield

    try:
        with apart_from_user_code():
            yield watch
    except KeyboardInterrupt:
        # A Ctrl-C during a run is its outcome; this one came before the run was stored, or after its end.
        _clear_line()
        if begun:
            print_notice(f"Run {begun[-1]} had ended and is stored (`evalhouse show {begun[-1]}`).")
        else:
            print_notice("Nothing was asked, and nothing was stored.")
        raise
    finally:
        _clear_line()


@contextmanager
def apart_from_user_code() -> Iterator[None]:
    """Send what a user's bot or judge prints to standard error, and return to this folder if it changes that.

    Standard output has the result alone, also when a library or a child process of theirs prints.
    """
    folder = os.getcwd()
    sys.stdout.flush()
    kept = os.dup(1)
    stream = sys.stderr
    if sys.stdout is not sys.stderr:  # they are one stream where `evaluate` shows what a bot prints to its caller
        stream = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")  # which a bot may close
    try:
        with redirect_stdout(stream):
            os.dup2(2, 1)
            yield
    finally:
        if stream is not sys.stderr:
            stream.close()
        os.dup2(kept, 1)
        os.close(kept)
        os.chdir(folder)


def _clear_line() -> None:
    if is_watched():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The end of a run. `problem` is the reason when it did not complete; `noise` and `repeats` are set if the judge's
    noise and the bot's were to be measured."""

    run: RunRow
    status: RunStatus
    counts: "Usage"
    problem: str | None
    noise: "NoiseOutcome | None" = None
    repeats: "RepeatsOutcome | None" = None


Finish = Callable[[RunOutcome], str | None]
"""A function that is called when a run has ended; it returns the reason why the run is not a success."""


def show_end(run: RunRow, problem: str, name: str = "Failed") -> None:
    """Give a run's flow run the state `name` for a `problem` that Prefect does not know: a gate, a stop by a signal.

    The run is the same without: a server that does not take it is reported and no more.
    """
    if run.flow_run_id is None:
        return
    from evalhouse.flows.server.api import PrefectApiError, find_api  # noqa: PLC0415  # most runs do without

    try:
        state = {"type": name.upper(), "name": name, "message": problem}
        api = find_api("the run's end cannot be shown")
        api.post(f"/flow_runs/{run.flow_run_id}/set_state", {"state": state, "force": True})
    except PrefectApiError as error:
        print_notice(f"Prefect's page of the run lacks how it ended: {error}")


def publish_end(warehouse: "Warehouse", run: RunRow, settings: "RunSettings", *, in_prefect: bool) -> None:
    """Write the report of a run into the folder for reports, and put links and what moved on the run's Prefect page.

    A run without scores has neither. The run is the same without: what cannot be written is reported and no more.
    """
    has_scores = run.status in ("completed", "incomplete")
    if run.kind != "evaluation":
        return
    report = None
    if settings.reports is not None and has_scores:
        from evalhouse.flows.report.page import write_page  # noqa: PLC0415  # imports SciPy
        from evalhouse.warehouse.rows.pages import has_room_for_calls, reading_slices  # noqa: PLC0415

        try:
            report = Path(settings.reports).expanduser().absolute() / f"{run.run_id}.html"
            report.parent.mkdir(parents=True, exist_ok=True)
            with_calls = has_room_for_calls(warehouse, run)
            with reading_slices(warehouse, run, None, with_calls=with_calls) as slices:
                write_page(report, warehouse, run, None, slices, with_calls=with_calls)
        except (OSError, WarehouseError) as error:
            print_notice(f"the report was not written: {error}")
            report = None
    if not in_prefect or run.flow_run_id is None:
        return
    from evalhouse.flows.results.baseline import read_moves, write_moves  # noqa: PLC0415  # most runs do without
    from evalhouse.flows.server.api import PrefectApiError, find_api  # noqa: PLC0415

    try:
        artifacts: list[tuple[str, str, str]] = []  # the beginning of the key, the text, the description
        if settings.ui_url is not None:
            address = f"{settings.ui_url.rstrip('/')}/runs/{run.run_id}"
            link = f"[run {run.run_id} in evalhouse ui]({address})"
            artifacts.append(("ui", link, "The run with every sample and verdict"))
        if report is not None:
            link = f"[{report.name}]({report.as_uri()})"
            artifacts.append(("report", link, f"The report, on the machine that ran it: {report}"))
        if has_scores and (moves := read_moves(warehouse, run)) is not None:
            artifacts.append(("moved", "\n".join(write_moves(moves)), f"What moved in run {run.run_id}, and why"))
        api = find_api("what moved cannot be shown")
        for key, text, description in artifacts:
            body = {"key": settings.name_artifact(key), "type": "markdown", "data": text}
            api.post("/artifacts/", {**body, "description": description, "flow_run_id": run.flow_run_id})
    except (PrefectApiError, WarehouseError) as error:
        print_notice(f"Prefect's page of the run lacks what moved, and links: {error}")


def explain_incomplete(outcome: RunOutcome) -> str | None:
    """Return why a run that has reached its end is not a success; None if it is."""
    run = outcome.run
    if run.status != "incomplete":
        return None
    return f"run {run.run_id} incomplete: of {run.n_samples} samples some failed; next: evalhouse resume {run.run_id}"


def write_next(run: RunRow, elsewhere: str = "", *, with_reason: bool = True) -> str:
    """Return the command to type next for a run that has not completed; `elsewhere` names its warehouse.

    It is a new run where a resumed one would fail again by what it keeps.
    """
    if run.problem and NEW_RUN in run.problem:
        source = "SUITE.toml" if run.suite else quote(run.dataset or "DATASET")
        option = "--judge MODEL" if f"{NEW_RUN} model" in run.problem else "…"
        if run.embeddings is not None and run.embeddings in run.problem:
            option = "--embeddings MODEL"
        reason = "   (a resumed run keeps its settings, and would stop again)"
        return f"evalhouse run {source}{elsewhere} {option}{reason if with_reason else ''}"
    first = "first correct that; " if run.status == "failed" and STORED not in str(run.problem) else ""
    reason = f"   ({first}stored answers are not asked for again)"
    return f"evalhouse resume {run.run_id}{elsewhere}{reason if with_reason else ''}"


Population = Literal["unchanged", "all"]
TAGS: Final[Mapping[Population, str]] = {"unchanged": "of unchanged samples", "all": "of all samples"}
"""The values of `runs.tags` for a noise run: the samples it was drawn from."""


@dataclass(frozen=True, kw_only=True)
class NoiseOutcome:
    """The result of measuring noise.

    `outcome` is the end of the noise run, None when nothing was asked: then `problem` has the reason, None for a
    deterministic judge. `n_changed` of `n_samples` have another score in some metric.
    """

    outcome: "RunOutcome | None" = None
    population: Population | None = None
    n_samples: int = 0
    n_changed: int = 0
    problem: str | None = None

    def describe(self) -> str:
        """Return the result in a sentence for the person who started the run."""
        if self.outcome is None:
            text = self.problem or "none: the judge always gives the same verdicts"
            return f"judge's noise: {text}" if self.problem is None else f"judge's noise: not measured, {text}"
        counts = self.outcome.counts
        drawn = "unchanged samples" if self.population == "unchanged" else "samples"
        text = (
            f"judge's noise: {self.n_samples} {drawn} judged again, {self.n_changed} with another score; "
            f"{counts.requests:,} more requests, cost {write_dollars(counts.cost_usd)} (run {self.outcome.run.run_id})"
        )
        return f"{text}; it stopped: {self.problem}" if self.problem else text

    def to_plain(self) -> dict[str, Any]:
        """Return the same for programs."""
        outcome = self.outcome
        return {
            "run_id": outcome.run.run_id if outcome else None,
            "status": outcome.status if outcome else None,
            "population": self.population,
            "n_samples": self.n_samples,
            "n_changed": self.n_changed,
            "requests": outcome.counts.requests if outcome else 0,
            "cost_usd": outcome.counts.cost_usd if outcome else 0.0,
            "problem": self.problem,
        }


@dataclass(frozen=True, kw_only=True)
class RepeatsOutcome:
    """The result of asking questions again: how each round that was asked now ended, and what all rounds gave.

    `counts` is None where the record could not be read; `problem` says why something is missing.
    """

    outcomes: "Sequence[RunOutcome]" = ()
    counts: "RepeatCounts | None" = None
    problem: str | None = None

    @property
    def usage(self) -> "Usage":
        """The requests to the judge in all rounds; a reply for an answer that is the same was reused."""
        from evalhouse.tasks.asking.usage import Usage  # noqa: PLC0415  # most runs repeat nothing

        return sum((outcome.counts for outcome in self.outcomes), start=Usage())

    def describe(self) -> str:
        """Return the result in a sentence for the person who started the run."""
        counts, usage = self.counts, self.usage
        if counts is None or not counts.n_answers:
            return f"bot's noise: not measured, {self.problem or 'no question was answered again'}"
        text = (
            f"bot's noise: {write_count(counts.n_questions, 'question')} asked again, "
            f"{write_count(counts.n_answers, 'answer')}; {counts.n_otherwise} answered otherwise at least once; "
            f"{usage.requests:,} more requests to the judge, {usage.reused:,} reused, cost "
            f"{write_dollars(usage.cost_usd or 0.0)}"
        )
        if self.outcomes:
            text += f" (runs {', '.join(outcome.run.run_id for outcome in self.outcomes)})"
        return f"{text}; it stopped: {self.problem}" if self.problem else text

    def to_plain(self) -> dict[str, Any]:
        """Return the same for programs."""
        usage = self.usage
        counts = asdict(self.counts) if self.counts else dict.fromkeys(("n_questions", "n_answers", "n_otherwise"), 0)
        return {
            "runs": [{"run_id": outcome.run.run_id, "status": outcome.status} for outcome in self.outcomes],
            **counts,
            "requests": usage.requests,
            "reused": usage.reused,
            "cost_usd": usage.cost_usd or 0.0,
            "problem": self.problem,
        }


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result that a flow run returns to the flow that calls it.

    `means` has the mean of each metric, None where no sample was scored; `gate` is the outcome of the suite's gate,
    None without one.
    """

    run_id: str
    status: RunStatus
    means: Mapping[str, float | None]
    gate: str | None = None


def make_result(warehouse: "Warehouse", run: RunRow, gate: Mapping[str, Any] | None = None) -> RunResult:
    """Return the result of a run that has ended."""
    means = warehouse.fetch_rows("runs/means", run_id=run.run_id, metrics=[*run.metrics])
    return RunResult(
        run_id=run.run_id,
        status=run.status,
        means={row["metric"]: row["mean"] for row in means},
        gate=None if gate is None else gate["outcome"],
    )


@dataclass(frozen=True, kw_only=True)
class NightOutcome:
    """The end of a suite's run and its variants.

    `runs` are all runs of the night so far, that of the suite itself first; `variants` how those ended that were asked
    by this process; `problem` has the reason where variants were not asked, `lines` which one is best and where.
    `is_interrupted` says that a signal came between two runs.
    """

    runs: Sequence[RunRow]
    variants: Sequence[RunOutcome]
    problem: str | None
    lines: Sequence[str]
    is_interrupted: bool

    def list_runs(self) -> list[dict[str, Any]]:
        """Return a row for each run of the night, for JSON."""
        names = ("variant", "run_id", "status", "problem")
        return [{name: getattr(run, name) for name in names} for run in self.runs]


def list_shortfalls(night: NightOutcome) -> list[str]:
    """Return a sentence for each variant that did not complete, and the reason why others were not asked."""
    lines = []
    for run in night.runs:
        if run.variant is not None and run.status != "completed":
            reason = f": {run.problem}" if run.problem else ""
            lines.append(f"{run.suite_name} {run.status}{reason}; next: {write_next(run, with_reason=False)}")
    return [*lines, night.problem] if night.problem else lines


@dataclass(frozen=True, kw_only=True)
class SuiteOutcome:
    """The end of a suite's run. `gate` is the document of `evalhouse gate --json`, None without a gate; `night` is set
    for a suite with variants."""

    outcome: RunOutcome
    gate: Mapping[str, Any] | None = None
    night: NightOutcome | None = None

    @property
    def last(self) -> RunOutcome:
        """The outcome of the run that ended last."""
        return self.night.variants[-1] if self.night is not None and self.night.variants else self.outcome

    @property
    def gate_failed(self) -> bool:
        """Return whether the run has a gate and does not pass it."""
        return self.gate is not None and self.gate["outcome"] == "failed"
