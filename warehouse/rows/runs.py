"""Typed reads and writes of `runs`, finding the run a person means, and what of a run was forgotten."""

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

import polars as pl

from evalhouse.warehouse import messages
from evalhouse.warehouse.derived import derive
from evalhouse.warehouse.engine.locks import SWEPT_S, hold
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.steps import SEPARATE
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, insert_frame
from evalhouse.warehouse.tables import Batch, build_frame

WORDS: Final = ("latest", "previous", "latest-completed", "previous-completed")
"""Words that mean a run; each may have `:SUITE` behind it."""
RunStatus = Literal["running", "completed", "incomplete", "failed", "cancelled"]
YARDSTICKS: Final = ("judge", "embeddings", "language", "plan")
"""What a run was measured with: columns of `runs`, and the plan in its settings."""
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

    @property
    def plan(self) -> str:
        """How its judge was asked; runs from before there was a choice have no such setting."""
        return str(self.config.get("plan", SEPARATE))

    @property
    def is_part_of_run(self) -> bool:
        """Whether it asks or judges samples of its parent again, to see what moves that."""
        return self.kind in ("noise", "repeats", "replay")

    @property
    def series(self) -> str | None:
        """The series that it is compared in, as the view `run_series` names it; None for what is no evaluation."""
        if self.kind != "evaluation":
            return None
        return f"dataset {self.dataset or ''}" if self.suite is None else f"suite {self.suite}"

    @property
    def metric_folder(self) -> Path | None:
        """The folder of its own metrics, if it is where it was."""
        folder = self.config.get("metric_files")
        return Path(folder) if folder and Path(folder).is_dir() else None


def now_utc() -> datetime:
    """Now in UTC without a zone, as the warehouse keeps times."""
    return datetime.now(UTC).replace(tzinfo=None)


def make_run_id(began_at: datetime) -> str:
    """An id that sorts by time, for what began at `began_at` (UTC): `20260131-235959-a1b2`."""
    return f"{began_at:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def insert_run(warehouse: Warehouse, run: RunRow) -> None:
    """Put a new run on record."""
    row = {field.name: getattr(run, field.name) for field in fields(RunRow)} | {"config": _write_config(run.config)}
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run.run_id) as connection:
        insert_frame(connection, "runs", build_frame("runs", [row]))


def update_run(warehouse: Warehouse, run_id: str, *, patience_s: float = FLUSH_PATIENCE_S, **columns: object) -> None:
    """Set columns of one run, `config` as a mapping, and store its costs where it ends.

    Raises WarehouseError when there is no such run.
    """
    unknown = columns.keys() - {field.name for field in fields(RunRow)}
    if unknown:
        raise KeyError(f"cannot set {', '.join(sorted(unknown))} of a run")
    if "config" in columns:
        columns["config"] = _write_config(columns["config"])
    with warehouse.writing(patience_s=patience_s, run_id=run_id) as connection:
        # Asked first, because a lake's updates return nothing.
        if not connection.execute("select 1 from runs where run_id = ?", [run_id]).fetchone():
            raise WarehouseError(f"run {run_id} is not on record in {warehouse.location.name}")
        assignments = ", ".join(f'"{name}" = ?' for name in columns)
        connection.execute(f"update runs set {assignments} where run_id = ?", [*_to_plain(columns), run_id])
        if columns.get("status", "running") != "running":
            derive(connection, [run_id], ["costs"])


def list_runs(
    warehouse: Warehouse, *, limit: int | None = None, kinds: Sequence[RunKind] | None = None
) -> list[RunRow]:
    """Runs, newest first, of some kinds where they are named."""
    tail = f" limit {int(limit)}" if limit else ""
    if kinds is None:
        return _read_runs(warehouse, tail=tail)
    return _read_runs(warehouse, "where kind in (select unnest($kinds::varchar[]))", {"kinds": list(kinds)}, tail)


def _read_runs(
    warehouse: Warehouse, where: str = "", parameters: Mapping[str, object] | None = None, tail: str = ""
) -> list[RunRow]:
    columns = ", ".join(f'"{field.name}"' for field in fields(RunRow))
    rows = warehouse.read_rows(
        f"select {columns} from runs {where} order by started_at desc, run_id desc{tail}", parameters
    )
    return [_to_row(row) for row in rows]


def find_run(warehouse: Warehouse, wanted: str) -> RunRow:
    """The run a person means: its id, a unique start of it, the newest with that label, or `latest` / `previous`.

    `latest-completed` and `previous-completed` (or with a blank) pass over runs that did not complete. `:SUITE` behind
    any of these means a suite's own. Words and labels mean evaluations; a run of another kind is found by its id.
    Raises WarehouseError that names like or the newest runs when nothing or more than one run fits.
    """
    if exact := _read_runs(warehouse, "where run_id = $run_id", {"run_id": wanted}):
        return exact[0]
    if gone := warehouse.read_rows(read_query("forget/gone_run"), {"run_id": wanted}):
        raise WarehouseError(
            f"run {wanted} was forgotten with all its rows on {gone[0]['forgotten_at']:%Y-%m-%d}, by "
            f"{gone[0]['forgotten_by']}; `evalhouse runs` lists those that are there"
        )
    runs = list_runs(warehouse)
    if not runs:
        raise WarehouseError(f"no run is on record in {warehouse.location.name}; start one with `evalhouse run`")
    return pick_run(runs, wanted)


def pick_run(runs: Sequence[RunRow], wanted: str) -> RunRow:
    """The same among runs that were read, the newest first."""
    word, colon, suite = wanted.partition(":")
    if (word := word.replace(" ", "-")) in WORDS:
        place, _, completed = word.partition("-")
        evaluations = [run for run in runs if run.kind == "evaluation" and (not completed or run.status == completed)]
        if completed and not evaluations:
            raise WarehouseError(f"no run has completed yet; the newest are {_list_ids(runs)}")
        return _find_newest(evaluations, 0 if place == "latest" else 1, suite if colon else None)
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
    labels = {run.label for run in runs if run.label} | {f"latest:{run.suite}" for run in runs if run.suite}
    advice = suggest(wanted, [*(run.run_id for run in runs), *sorted(labels), *WORDS], otherwise="the newest are")
    raise WarehouseError(
        f"no run fits {wanted!r} (an id, its start, a label, {', '.join(WORDS)}); {advice} (`evalhouse runs` lists all)"
    )


@contextmanager
def hold_suite(warehouse: Warehouse, suite: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Keep other runs of a suite away for this block, after waiting up to `wait_s` seconds for the end of another.

    Raises WarehouseBusy when one is still under way then, WarehouseUnwritable when no lock can be laid.
    """

    def name_holder() -> str:
        # No row yet where it is still starting.
        rows = warehouse.read_rows(read_query("runs/under_way"), {"suite": suite}) if warehouse.exists() else []
        which = f"run {rows[0]['run_id']} of suite {suite!r}" if rows else f"another run of suite {suite!r}"
        return f"{which} is under way, and runs of one suite never overlap; wait for its end, or stop it there"

    name = f"suite-{hashlib.sha256(suite.encode()).hexdigest()[:16]}"
    with hold(warehouse.location, name, patience_s=max(wait_s, SWEPT_S), busy=name_holder):
        yield


def _find_newest(runs: Sequence[RunRow], place: int, suite: str | None) -> RunRow:
    """The run at a place counted from the newest, of a suite where one is named."""
    of_suite = [run for run in runs if suite is None or run.suite == suite]
    if not of_suite and suite is None:
        raise WarehouseError("no evaluation is on record yet; start one with `evalhouse run`, or name a run by its id")
    if not of_suite:
        suites = ", ".join(sorted({run.suite for run in runs if run.suite})) or "none"
        raise WarehouseError(f"no run is of suite {suite!r}; suites on record: {suites}")
    if place >= len(of_suite):
        of_what = "" if suite is None else f" of suite {suite!r}"
        raise WarehouseError(f"there is only one run{of_what} so far, so there is no previous one")
    return of_suite[place]


def _write_config(config: object) -> str:
    return json.dumps(config, ensure_ascii=False, sort_keys=True)


def _to_plain(columns: Mapping[str, object]) -> list[object]:
    """The values of columns as DuckDB takes them, without secrets."""
    if messages.noted:
        (columns,) = messages.hide_in_rows([columns])
    return [list(value) if isinstance(value, tuple) else value for value in columns.values()]


def _list_ids(runs: Sequence[RunRow]) -> str:
    return ", ".join(run.run_id for run in runs[:5])


def _to_row(row: dict[str, Any]) -> RunRow:
    row["tags"] = tuple(row["tags"] or ())
    row["metrics"] = tuple(row["metrics"] or ())
    row["kb_changed"] = None if row["kb_changed"] is None else tuple(row["kb_changed"])
    row["config"] = json.loads(row["config"]) if row["config"] else {}
    return RunRow(**row)


@dataclass(frozen=True, kw_only=True)
class KbUpdateRow:
    """One row of `kb_updates`."""

    event_id: str
    kb_name: str
    kb_version: str | None
    kb_changed: tuple[str, ...] | None
    occurred_at: datetime
    run_id: str


def list_answered(warehouse: Warehouse, *, suite: str, kb_name: str) -> frozenset[str]:
    """The ids of the events that runs of a suite have answered."""
    rows = warehouse.read_rows(read_query("runs/answered_updates"), {"suite": suite, "kb_name": kb_name})
    return frozenset(str(row["event_id"]) for row in rows)


def append_updates(warehouse: Warehouse, updates: Sequence[KbUpdateRow], run_id: str) -> None:
    """Put on record which updates a run answers; a second call for the same run does nothing."""
    frame = build_frame("kb_updates", [vars(update) | {"run_id": run_id} for update in updates])
    warehouse.append(Batch(key=f"kb_updates:{run_id}", run_id=run_id, tables={"kb_updates": frame}))


_MARK: Final = re.compile(r"forgotten on \d{4}-\d\d-\d\d \(\d+ bytes(?:, 中文)?, ([0-9a-f]{16})\)")


@dataclass(frozen=True, kw_only=True)
class ForgottenTexts:
    """Texts of a run that were forgotten: on which day first, and of how many samples (`is_whole`: of all)."""

    forgotten_at: datetime
    is_whole: bool
    n_samples: int

    @property
    def words(self) -> str:
        """What a person reads above the run."""
        of_what = "texts, requests and replies" if self.is_whole else f"texts of {self.n_samples:,} of its samples"
        return f"its {of_what} were forgotten on {self.forgotten_at:%Y-%m-%d}; scores and verdicts are what they were"


def find_forgotten(warehouse: Warehouse, run_id: str) -> ForgottenTexts | None:
    """What was forgotten of a run that is on record; None where nothing was."""
    rows = warehouse.read(read_query("forget/of_run"), {"run_id": run_id}).to_dicts()
    return ForgottenTexts(**rows[0]) if rows else None


def refuse_forgotten(warehouse: Warehouse, run: RunRow, instead: str) -> None:
    """Raise WarehouseError where all texts of a run are gone, with what to do instead."""
    forgotten = find_forgotten(warehouse, run.run_id)
    if forgotten is not None and forgotten.is_whole:
        raise WarehouseError(
            f"the texts of run {run.run_id} were forgotten on {forgotten.forgotten_at:%Y-%m-%d}; {instead}"
        )


def read_hash(text: str | None) -> str | None:
    """The hash of the text whose place a mark has; None for what is no mark."""
    match = _MARK.fullmatch(text or "")
    return match[1] if match else None


def hash_text(text: str) -> str:
    """The hash that the mark of a text ends in."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:16]


_COMPONENTS = read_query("repeats/components")


@dataclass(frozen=True, kw_only=True)
class RepeatCounts:
    """Questions of a run that were answered again, these answers, and the questions answered otherwise at least once.

    Another answer is one whose text or contexts differ in anything.
    """

    n_questions: int
    n_answers: int
    n_otherwise: int


def list_repeats(warehouse: Warehouse, run_id: str) -> list[RunRow]:
    """The runs that asked questions of a run again, the first one first."""
    repeats = list_runs(warehouse, kinds=("repeats",))
    return sorted((run for run in repeats if run.parent_run_id == run_id), key=lambda run: (run.started_at, run.run_id))


def list_asked(warehouse: Warehouse, run_id: str) -> dict[str, bool]:
    """The samples of a run in their order, each with whether the run itself asked for its response and got one."""
    rows = warehouse.read_rows(read_query("repeats/asked"), {"run_id": run_id})
    return {str(row["sample_id"]): bool(row["is_asked"]) for row in rows}


def read_components(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """The rows of the view `noise_components` of a run, without the run; none where nothing was asked again."""
    if not any(one.status in ("completed", "incomplete") for one in list_repeats(warehouse, run_id)):
        return []
    of_run = f"with repeated_runs as (select $run_id as run_id) from ({_COMPONENTS})"
    return warehouse.read_rows(f"select * exclude (run_id) from ({of_run}) order by metric", {"run_id": run_id})


def read_answer_means(warehouse: Warehouse, *, base: str, candidate: str) -> pl.DataFrame:
    """One row per metric and sample that both runs scored by one formula: `base` and `candidate`, the means over all
    answers, those of the repeats too, and n_base and n_candidate, how many these are."""
    return warehouse.read(read_query("repeats/answer_means"), {"base": base, "candidate": candidate})


def count_repeats(warehouse: Warehouse, run_id: str) -> RepeatCounts:
    """What came of asking a run's questions again, by those of its repeats that came to their end."""
    (row,) = warehouse.read_rows(read_query("repeats/otherwise"), {"run_id": run_id})
    return RepeatCounts(**{name: int(str(row[name])) for name in ("n_questions", "n_answers", "n_otherwise")})


_AGAINST = "against "


def tag_replay(base_id: str) -> str:
    """What `runs.tags` of a replay says of the run that its candidate is compared with."""
    return f"{_AGAINST}{base_id}"


def find_replayed_base(run: RunRow) -> str | None:
    """The run that a replay's candidate is compared with."""
    return next((tag.removeprefix(_AGAINST) for tag in run.tags if tag.startswith(_AGAINST)), None)


def list_replays(warehouse: Warehouse, *, base: str, candidate: str) -> list[RunRow]:
    """The replays of two runs, the newest first."""
    replays = list_runs(warehouse, kinds=("replay",))
    return [run for run in replays if run.parent_run_id == candidate and find_replayed_base(run) == base]


def read_replay_samples(
    warehouse: Warehouse, *, base: str, candidate: str, sample_ids: Sequence[str]
) -> list[dict[str, Any]]:
    """One row per sample and run that has it: texts, contexts with their ids, metadata; of_candidate says which."""
    return warehouse.read(
        read_query("replay/samples"),
        {"base": base, "candidate": candidate},
        frames={"wanted": pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})},
    ).to_dicts()


def read_replay_scores(warehouse: Warehouse, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """One row per answer and metric of these replays: ask_id, metric, value, and why there is none."""
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    return warehouse.read(read_query("replay/scores"), frames={"wanted": wanted}).to_dicts()


def read_usage(warehouse: Warehouse, run_id: str) -> dict[str, float]:
    """What judging one sample of a run takes: `requests`, and `cost_usd` as far as replies have a price."""
    (row,) = warehouse.read_rows(read_query("replay/usage"), {"run_id": run_id})
    return {name: float(str(row[name] or 0.0)) for name in ("requests", "cost_usd")}
