"""Rows of `runs`: writing them, finding the run that a person means, and the record of forgotten texts."""

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from evalhouse.warehouse import messages
from evalhouse.warehouse.engine.locks import SWEPT_S, hold
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.steps import SEPARATE
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, build_frame, derive, insert_frame

WORDS: Final = ("latest", "previous", "latest-completed", "previous-completed")
"""Words that name a run; each may have `:SUITE` behind it."""
RunStatus = Literal["running", "completed", "incomplete", "failed", "cancelled"]
YARDSTICKS: Final = ("judge", "embeddings", "language", "plan")
"""The settings that two runs must share to be comparable: columns of `runs`, and the plan in its settings."""
REPLAY_TAG: Final = "against "
"""The tag of a replay: this, and the run that its candidate is compared with."""
RunKind = Literal["evaluation", "collection", "noise", "repeats", "replay", "prompts", "benchmark", "prefer", "testset"]


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One row of `runs`; `config` is the settings the run was made with."""

    run_id: str
    judge: str
    started_at: datetime
    config: Mapping[str, Any]
    status: RunStatus = "running"
    suite: str | None = None
    variant: str | None = None
    night: str | None = None
    label: str | None = None
    href: str | None = None
    tags: tuple[str, ...] = ()
    dataset: str | None = None
    dataset_hash: str | None = None
    embeddings: str | None = None
    language: str | None = None
    metrics: tuple[str, ...] = ()
    trigger: str = "manual"
    kb_name: str | None = None
    kb_version: str | None = None
    flow_run_id: str | None = None
    finished_at: datetime | None = None
    n_samples: int | None = None
    kind: RunKind = "evaluation"
    parent_run_id: str | None = None
    suite_hash: str | None = None
    code_version: str | None = None
    kb_changed: tuple[str, ...] | None = None
    problem: str | None = None
    gate: str | None = None
    notify_problem: str | None = None

    @property
    def plan(self) -> str:
        """The plan by which its judge was asked; runs from before there was a choice have no such setting."""
        return str(self.config.get("plan", SEPARATE))

    @property
    def takes_votes(self) -> bool:
        """True if verdicts were decided by several votes, of one judge or of a jury."""
        return int(self.config.get("votes", 1)) > 1 or self.has_jury

    @property
    def has_jury(self) -> bool:
        """True if several judges voted in some step."""
        return "jury:" in self.judge

    @property
    def is_part_of_run(self) -> bool:
        """True for a run that asks or judges samples of its parent again."""
        return self.kind in ("noise", "repeats", "replay")

    @property
    def series(self) -> str | None:
        """The series that it is compared in, as the view `run_series` names it; None unless it is an evaluation."""
        if self.kind != "evaluation":
            return None
        return f"dataset {self.dataset or ''}" if self.suite is None else f"suite {self.suite_name}"

    @property
    def part(self) -> tuple[int | None, int | None, str | None]:
        """The number and the budget of samples that an option limited it to, and the other suite or dataset that
        it has the answers of; None for each that it is not.

        A limit of the suite's file is for all nights, and one beyond the dataset limits nothing (as in `run_series`).
        """
        limit, budget = self.config.get("limit"), self.config.get("sample_budget")
        answers_of: str | None = self.config.get("answers_of")
        if [limit, budget] == self.config.get("file_limits"):
            return None, None, answers_of
        return (None if limit is None or limit > (self.n_samples or 0) else limit), budget, answers_of

    @property
    def size(self) -> int:
        """The number of samples that it was to judge at most."""
        limits = (self.n_samples or 0, self.config.get("limit"), self.config.get("sample_budget"))
        return min(limit for limit in limits if limit is not None)

    def is_trial_beside(self, other: "RunRow") -> bool:
        """Return whether an option limited it to samples, or gave it answers, that another run does not have."""
        return self.part not in ((None, None, None), other.part)

    @property
    def suite_name(self) -> str | None:
        """The name of its suite, of a variant with the variant's behind it: `handbook/gpt5`; None outside a suite."""
        return self.suite if self.variant is None else f"{self.suite}/{self.variant}"

    @property
    def replayed_base(self) -> str | None:
        """The run that a replay's candidate is compared with."""
        return next((tag.removeprefix(REPLAY_TAG) for tag in self.tags if tag.startswith(REPLAY_TAG)), None)

    @property
    def metric_folder(self) -> Path | None:
        """The folder of its user's metric files, if it still exists."""
        folder = self.config.get("metric_files")
        return Path(folder) if folder and Path(folder).is_dir() else None


def now_utc() -> datetime:
    """Return the current time in UTC without a zone, as the warehouse stores times."""
    return datetime.now(UTC).replace(tzinfo=None)


def make_run_id(began_at: datetime) -> str:
    """Return an id that sorts by time, from the start `began_at` (UTC): `20260131-235959-a1b2`."""
    return f"{began_at:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def insert_run(warehouse: Warehouse, run: RunRow) -> None:
    """Write a new run."""
    row = {**vars(run), "config": json.dumps(run.config, ensure_ascii=False, sort_keys=True)}
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run.run_id) as connection:
        insert_frame(connection, "runs", build_frame("runs", [row]))


def update_run(warehouse: Warehouse, run_id: str, *, patience_s: float = FLUSH_PATIENCE_S, **columns: object) -> None:
    """Set columns of one run, `config` as a mapping, and store its costs where it ends.

    Raises WarehouseError for an unknown run.
    """
    unknown = columns.keys() - {field.name for field in fields(RunRow)}
    if unknown:
        raise KeyError(f"cannot set {', '.join(sorted(unknown))} of a run")
    if "config" in columns:
        columns["config"] = json.dumps(columns["config"], ensure_ascii=False, sort_keys=True)
    with warehouse.writing(patience_s=patience_s, run_id=run_id) as connection:
        # Queried first, because a lake's updates return nothing.
        found = connection.execute("select started_at from runs where run_id = ?", [run_id]).fetchone()
        if found is None:
            raise WarehouseError(f"{warehouse.location.name} has no run {run_id}")
        finished_at = columns.get("finished_at")
        if isinstance(finished_at, datetime):  # the clock may have been set back meanwhile
            columns["finished_at"] = max(finished_at, found[0])
        assignments = ", ".join(f'"{name}" = ?' for name in columns)
        values = [messages.hide_in(value) for value in columns.values()]
        plain = [list(value) if isinstance(value, tuple) else value for value in values]
        connection.execute(f"update runs set {assignments} where run_id = ?", [*plain, run_id])
        if columns.get("status", "running") != "running":
            derive(connection, [run_id], ["costs"])


def list_runs(
    warehouse: Warehouse,
    *,
    run_id: str | None = None,
    kinds: Sequence[RunKind] | None = None,
    night: str | None = None,
    limit: int | None = None,
) -> list[RunRow]:
    """Return runs, newest first: one by its id, all of some kinds, of a night, or all."""
    columns = ", ".join(f'"{field.name}"' for field in fields(RunRow))
    sql = f"""
        select {columns} from runs
        where ($run_id::varchar is null or run_id = $run_id)
            and ($kinds::varchar[] is null or kind in (select unnest($kinds::varchar[])))
            and ($night::varchar is null or night = $night)
        -- A run that began while the clock was ahead is not the newest until that day has come.
        order by started_at > now() at time zone 'UTC', started_at desc, run_id desc
        limit $limit::bigint
    """
    of_kinds = None if kinds is None else list(kinds)
    parameters = {"run_id": run_id, "kinds": of_kinds, "night": night, "limit": limit}
    runs = []
    for row in warehouse.read(sql, parameters).to_dicts():
        row["tags"], row["metrics"] = tuple(row["tags"] or ()), tuple(row["metrics"] or ())
        row["kb_changed"] = None if row["kb_changed"] is None else tuple(row["kb_changed"])
        row["config"] = json.loads(row["config"]) if row["config"] else {}
        runs.append(RunRow(**row))
    return runs


def list_night_runs(warehouse: Warehouse, night: str, *, kinds: Sequence[RunKind] | None = None) -> list[RunRow]:
    """Return all runs of a night, in their order: that of the suite itself, its variants, and what measured noise.

    Of the kind `evaluation` are the suite's and its variants' alone.
    """
    return sorted(list_runs(warehouse, night=night, kinds=kinds), key=lambda run: (run.started_at, run.run_id))


def find_run(warehouse: Warehouse, wanted: str, *, beside: RunRow | None = None) -> RunRow:
    """Return the run of an id, a unique start of one, the newest with that label, or `latest` / `previous`.

    `previous` is the run before `latest` in its series (`pick_before`): runs of one suite, or outside suites of one
    dataset. With `beside`, which is the run to compare with, it is the run before that one. `latest-completed` and
    `previous-completed` (or with a blank) pass over runs that did not complete. `:SUITE` behind any of these limits it
    to a suite, `:SUITE/NAME` to a variant of one; no other word names the run of a variant. Words and labels name
    evaluations; a run of another kind is found by its id.
    Raises WarehouseError that names similar or the newest runs when none or more than one fits.
    """
    if exact := list_runs(warehouse, run_id=wanted):
        return exact[0]
    if gone := warehouse.fetch_rows("forget/gone_run", run_id=wanted):
        raise WarehouseError(
            f"run {wanted} was forgotten with all its rows on {gone[0]['forgotten_at']:%Y-%m-%d}, by "
            f"{gone[0]['forgotten_by']}; `evalhouse runs` lists the stored ones"
        )
    runs = list_runs(warehouse)
    if not runs:
        raise WarehouseError(f"{warehouse.location.name} has no runs yet; start one with `evalhouse run`")
    return pick_run(runs, wanted, beside=beside)


def pick_run(runs: Sequence[RunRow], wanted: str, *, beside: RunRow | None = None) -> RunRow:
    """Return the same from a list of runs, newest first."""
    word, colon, suite = wanted.partition(":")
    if (word := word.replace(" ", "-")) in WORDS:
        place, _, completed = word.partition("-")
        evaluations = [run for run in runs if run.kind == "evaluation" and (not completed or run.status == completed)]
        if completed and not evaluations:
            raise WarehouseError(f"no run has completed yet; the newest are {_list_ids(runs)}")
        if not evaluations and not colon:
            raise WarehouseError("no evaluation is stored yet; start one with `evalhouse run`, or name a run by its id")
        named = [run for run in evaluations if (run.suite_name == suite if colon else run.variant is None)]
        if not named:
            suites = ", ".join(sorted({run.suite_name for run in evaluations if run.suite_name})) or "none"
            if not colon:
                raise WarehouseError(f"every evaluation is of a variant; name one of {suites}, as in {word}:SUITE/NAME")
            raise WarehouseError(f"no run is of suite {suite!r}; suites in the warehouse: {suites}")
        if place == "latest":
            return named[0]
        if beside is None or beside.series is None or (colon and beside.suite_name != suite):
            beside = named[0]
        before = pick_before([run for run in evaluations if run.series == beside.series], beside)
        if before is not None:
            return before
        raise WarehouseError(
            f"run {beside.run_id} is the first of its series ({beside.series}), so it has no {wanted!r} one; name "
            "another run (`evalhouse runs` lists all)"
        )
    # An id may be the start of another, as that of a run is of its noise run's.
    exact = [run for run in runs if run.run_id == wanted]
    starting = exact or [run for run in runs if wanted and run.run_id.startswith(wanted)]
    labelled = [run for run in runs if wanted and run.label == wanted and run.kind == "evaluation"]
    if exact or len(starting) == 1 or labelled:
        return (exact or (starting if len(starting) == 1 else labelled))[0]
    if starting:
        raise WarehouseError(
            f"{len(starting)} runs begin with {wanted!r}; the newest are {_list_ids(starting)}; write more of the id"
        )
    labels = {run.label for run in runs if run.label} | {f"latest:{run.suite_name}" for run in runs if run.suite}
    advice = suggest(wanted, [*(run.run_id for run in runs), *sorted(labels), *WORDS])
    if not advice.startswith("did you mean"):
        advice = f"the newest are {_list_ids(runs)}"
    raise WarehouseError(
        f"no run fits {wanted!r} (an id, its start, a label, {', '.join(WORDS)}); {advice} (`evalhouse runs` lists all)"
    )


def pick_before(runs: Sequence[RunRow], run: RunRow) -> RunRow | None:
    """Return the run before a run, from runs of its series, newest first; a trial comes after all others."""
    before = [other for other in runs if (other.started_at, other.run_id) < (run.started_at, run.run_id)]
    return next((other for other in before if not other.is_trial_beside(run)), before[0] if before else None)


def _list_ids(runs: Sequence[RunRow]) -> str:
    names = {run.run_id: run.label or run.suite_name or Path(run.dataset or "").name for run in runs[:5]}
    return ", ".join(f"{run_id} ({name})" for run_id, name in names.items())


@contextmanager
def hold_suite(warehouse: Warehouse, suite: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Keep other runs of a suite from starting for this block, after waiting up to `wait_s` seconds for another to end.

    Raises WarehouseBusy when one is still running then, WarehouseUnwritable when the lock cannot be written.
    """

    def name_holder() -> str:
        # A run that is starting has no row yet.
        rows = warehouse.fetch_rows("runs/running", suite=suite) if warehouse.exists() else []
        which = f"run {rows[0]['run_id']} of suite {suite!r}" if rows else f"another run of suite {suite!r}"
        return f"{which} is running, and runs of one suite never overlap; wait for its end, or stop it there"

    name = f"suite-{hashlib.sha256(suite.encode()).hexdigest()[:16]}"
    with hold(warehouse.location, name, patience_s=max(wait_s, SWEPT_S), busy=name_holder):
        yield


_MARK: Final = re.compile(r"forgotten on \d{4}-\d\d-\d\d \(\d+ bytes(?:, 中文)?, ([0-9a-f]{16})\)")


@dataclass(frozen=True, kw_only=True)
class ForgottenTexts:
    """The forgotten texts of a run: the first day, and the number of samples (`is_whole`: of all)."""

    forgotten_at: datetime
    is_whole: bool
    n_samples: int

    @property
    def words(self) -> str:
        """The sentence above the run's page."""
        of_what = "texts, requests and replies" if self.is_whole else f"texts of {self.n_samples:,} of its samples"
        return f"its {of_what} were forgotten on {self.forgotten_at:%Y-%m-%d}; scores and verdicts are unchanged"


def find_forgotten(warehouse: Warehouse, run_id: str) -> ForgottenTexts | None:
    """Return the record of a run's forgotten texts; None where none were."""
    rows = warehouse.fetch_rows("forget/of_run", run_id=run_id)
    return ForgottenTexts(**rows[0]) if rows else None


def refuse_forgotten(warehouse: Warehouse, run: RunRow, instead: str) -> None:
    """Raise WarehouseError where all texts of a run were forgotten, with the advice `instead`."""
    forgotten = find_forgotten(warehouse, run.run_id)
    if forgotten is not None and forgotten.is_whole:
        raise WarehouseError(
            f"the texts of run {run.run_id} were forgotten on {forgotten.forgotten_at:%Y-%m-%d}; {instead}"
        )


def parse_mark(text: str | None) -> str | None:
    """Return the hash in the mark of a forgotten text; None for any other text."""
    match = _MARK.fullmatch(text or "")
    return match[1] if match else None


def hash_text(text: str) -> str:
    """Return the hash in which the mark of a text ends."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class RepeatCounts:
    """Questions of a run that were asked again, the answers to them, and the questions with at least one other answer.

    Another answer is one whose text or contexts differ in any way.
    """

    n_questions: int
    n_answers: int
    n_otherwise: int


def list_repeats(warehouse: Warehouse, run_id: str) -> list[RunRow]:
    """Return the runs that asked questions of a run again, the first one first."""
    repeats = list_runs(warehouse, kinds=("repeats",))
    return sorted((run for run in repeats if run.parent_run_id == run_id), key=lambda run: (run.started_at, run.run_id))


def fetch_components(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """Return the rows of the view `noise_components` of a run; none where no question was asked again."""
    if not any(run.status in ("completed", "incomplete") for run in list_repeats(warehouse, run_id)):
        return []
    of_run = f"with repeated_runs as (select $run_id as run_id) from ({read_query('repeats/components')})"
    sql = f"select * exclude (run_id) from ({of_run}) order by metric"
    return warehouse.read(sql, {"run_id": run_id}).to_dicts()
