"""Samples, staged from a dataset into Parquet and taken into `samples` and `run_samples` by SQL, and their scores.

Staging first means that a dataset with a problem in its last row leaves nothing in the warehouse, and that
numbering repeated ids and finding stored samples are set operations that take little memory of this process.

Their scores, by each metric's SQL over a run's verdicts, the queries of rows derived from them, and the judge's noise:
a noise run is a row of `runs` of kind noise with calls, verdicts and scores over some samples of its parent, judged
again. The table `noise` follows the scores: whenever parent or noise run are scored, its rows are written again.
"""

import math
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Literal

import duckdb
import orjson
import polars as pl

from evalhouse.warehouse.engine.connection import (
    MAX_COMMIT_BYTES,
    are_long,
    explain_failure,
    keep_groups_apart,
    lending,
    needing_room,
    to_frame,
)
from evalhouse.warehouse.engine.locks import Scratch, remove_abandoned
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnwritable, first_line
from evalhouse.warehouse.messages import hide_secrets, write_error
from evalhouse.warehouse.metric_files import COLUMNS, MetricFile, SetMetric, load_function, set_metrics
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.steps import GRADE_STEP
from evalhouse.warehouse.store import (
    FLUSH_PATIENCE_S,
    Batch,
    Warehouse,
    build_frame,
    cut_by_bytes,
    derive,
    list_later,
    measure_bytes,
    write_batch,
)

CONVERSATION_NAMES: Final = (
    "conversation_id", "thread_id", "session_id", "chat_id", "dialog_id", "dialogue_id",
    "conversationId", "threadId", "sessionId", "chatId", "dialogId", "dialogueId",
)  # fmt: skip
"""Metadata columns with the id of a row's conversation."""
CLUSTER_COLUMNS: Final = (*CONVERSATION_NAMES, "document_id", "doc_id", "group_id")
"""Metadata columns that group samples without being named: the first one that has at least MIN_GROUPS groups."""
MIN_GROUPS: Final = 6
"""Groups below which a column is not taken unless it is named. Of n groups the smallest p of a sign-flip test is
2 / 2ⁿ, which is below 0.05 from six on: fewer can never show a drop, however deep."""
NO_CLUSTER: Final = "none"
PART_BYTES: Final = 8_000_000
"""The texts of samples that are read from a dataset, or judged, together."""
_PICKS: Final = "sample_picks"
# Reasons that a resumed run tries to fix; the others follow from the dataset.
FAILURE_REASONS = ("judge_failed", "embedding_failed", "target_failed", "budget_exhausted", "cancelled")


Role = Literal["user", "assistant"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One earlier turn of a conversation; `contexts` belong to an assistant's turn, None where they are unknown."""

    role: Role
    text: str
    contexts: list[str] | None = None
    context_ids: list[str] | None = None

    @property
    def line(self) -> str:
        """The text with its speaker, as judges and reviewers see it."""
        return f"{self.role}: {self.text}"


def plain_turns(turns: Sequence[Turn]) -> list[dict[str, object]]:
    """Return turns as JSON values; a field that a turn does not have is left out."""
    return [{name: value for name, value in vars(turn).items() if value is not None} for turn in turns]


def dump_turns(turns: Sequence[Turn] | None) -> str | None:
    """Return turns as the column `conversation` has them; None for none."""
    return orjson.dumps(plain_turns(turns)).decode() if turns else None


def load_turns(text: str | None) -> list[Turn]:
    """Return the turns of the column `conversation`; none where they were forgotten."""
    turns = orjson.loads(text) if text else []
    return [Turn(**turn) for turn in turns] if isinstance(turns, list) else []


@dataclass(frozen=True, kw_only=True)
class StoredSample:
    """One sample of a run, as the steps need it."""

    ordinal: int
    sample_id: str
    input_hash: str
    question: str
    answer: str | None
    ground_truth: str | None
    contexts: list[str] | None
    context_ids: list[str] | None
    reference_context_ids: list[str] | None
    metadata_json: str | None = None
    conversation_json: str | None = None
    context_sources: str | None = None  # as JSON, the names of each context of a target besides its id
    target_error: str | None = None  # why the application under test gave no answer, where it was asked and failed

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The other columns of the sample's row."""
        members: Mapping[str, Any] = orjson.loads(self.metadata_json) if self.metadata_json else {}
        return members

    @cached_property
    def conversation(self) -> list[Turn]:
        """The turns before the question, the oldest first; none where it is the first."""
        return load_turns(self.conversation_json)

    @cached_property
    def accepted_answers(self) -> list[str]:
        """All accepted answers, the ground truth first; none without a ground truth."""
        if self.ground_truth is None:
            return []
        several = self.metadata.get("ground_truths")
        return several if isinstance(several, list) and self.ground_truth in several else [self.ground_truth]

    @property
    def is_unanswerable(self) -> bool:
        """True for a question without a ground truth that a test set marks as one without an answer."""
        is_marked = self.metadata.get("kind") == "unanswerable" or marks_unanswerable(self.metadata)
        return self.ground_truth is None and is_marked


def marks_unanswerable(metadata: Mapping[str, Any]) -> bool:
    """Return True if a column `answerable` is false; in CSV it is a text."""
    return str(metadata.get("answerable")).strip().casefold() in ("false", "no", "0")


def find_turn(metadata: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return the conversation that a row is of, by the first of CONVERSATION_NAMES, and the number of its `turn`, None
    where it has none. A number may be text, as in CSV, or a float, as in a column with empty cells."""
    name = next((metadata[name] for name in CONVERSATION_NAMES if metadata.get(name) is not None), None)
    try:
        turn = float(str(metadata.get("turn")))
    except ValueError:
        turn = math.nan
    is_number = turn.is_integer() and not isinstance(metadata.get("turn"), bool)
    return None if name is None else str(name), int(turn) if is_number else None


@dataclass(frozen=True, kw_only=True)
class EarlierScore:
    """A sample's score in the latest of some runs, by one metric, and the spread of its scores over these runs.

    `input_hash` is that of the texts which were scored.
    """

    run_id: str
    input_hash: str
    value: float
    spread: float


class Staging:
    """A temporary folder of Parquet parts; `discard` it when done."""

    def __init__(self) -> None:
        remove_abandoned()
        self._scratch = Scratch()
        self._folder = self._scratch.folder
        self._writing_ids = threading.Lock()
        self._sizes: list[int] = []  # of each part, the bytes of its texts
        self.n_rows = 0

    def add(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows with the columns of `staged_samples`, in parts of bounded size: DuckDB reads a whole one."""
        for part in cut_by_bytes(rows, measure_bytes, max_bytes=PART_BYTES):
            frame = build_frame("staged_samples", part)
            with needing_room(f"to stage the dataset in {self._folder.parent}"):
                frame.write_parquet(self._folder / f"{self.n_rows:012d}.parquet", compression="lz4")
            self._sizes.append(measure_bytes(part))
            self.n_rows += len(part)

    @property
    def bytes_of_row(self) -> int:
        """The bytes of the texts of a row, on average."""
        return sum(self._sizes) // max(1, self.n_rows)

    def read_parts(self) -> Iterator[list["StoredSample"]]:
        """Yield the staged samples, a part at a time, before repeated ids are numbered."""
        as_json = {"metadata": "metadata_json", "conversation": "conversation_json"}
        others = {*as_json.values(), "context_sources", "target_error"}  # of responses
        names = [name for name in StoredSample.__dataclass_fields__ if name not in others]
        for path in self.parts:
            rows = pl.read_parquet(path, columns=[*names, *as_json]).rename(as_json).to_dicts()
            yield [StoredSample(**row) for row in rows]

    def has_conversations(self) -> bool:
        """Return whether any staged question was asked in a conversation."""
        return any(pl.read_parquet(path, columns=["conversation"])["conversation"].count() for path in self.parts)

    def read_between(self, first: int, last: int) -> list["StoredSample"]:
        """Return the staged samples with ordinals from `first` to `last`, repeated ids numbered as in `run_samples`."""
        begins = [int(Path(path).stem) for path in self.parts]  # of each part the number of rows before it
        parts = self.parts[max(bisect_left(begins, first) - 1, 0) : bisect_left(begins, last)]
        if not parts:
            return []
        ids = self._folder / "ids"  # ordinals and ids, written once, when all rows are staged
        # Sorting the ids of a large dataset goes to disk, as it does when they are written into the warehouse.
        config: dict[str, str | bool | int | float | list[str]] = {
            "threads": 1, "memory_limit": "192MB", "temp_directory": str(self._folder),
        }  # fmt: skip
        with duckdb.connect(config=config) as connection:
            with self._writing_ids:  # shards are read at the same time
                if not ids.exists():
                    connection.execute(read_query("samples/staged_ids"), {"parts": self.parts})
                    connection.execute(
                        f"copy (select ordinal, sample_id from staged_ids order by ordinal) to '{ids}' (format parquet)"
                    )
            parameters = {"parts": parts, "ids": str(ids), "first": first, "last": last}
            rows = to_frame(connection.sql(read_query("samples/staged_between"), params=parameters))
        return [StoredSample(**row) for row in rows.iter_rows(named=True)]

    @property
    def parts(self) -> list[str]:
        """The paths of all parts, in order."""
        return [str(path) for path in sorted(self._folder.glob("*.parquet"))]

    def group_parts(self) -> list[list[str]]:
        """Return the paths of all parts in groups, each of which one transaction can hold."""
        sizes = dict(zip(self.parts, self._sizes, strict=True))
        return list(cut_by_bytes(sizes, sizes.__getitem__, max_bytes=MAX_COMMIT_BYTES))

    def discard(self) -> None:
        """Remove the folder."""
        self._scratch.close()


def take_in_samples(
    warehouse: Warehouse, run_id: str, staging: Staging, *, cluster: str | None = None, beside: Batch | None = None
) -> int:
    """Write the staged rows for a run, and a batch `beside` them, in one transaction; returns their number.

    Of more texts than one transaction can hold most are written ahead of it, and then belong to no run yet.
    With `sample_picks` in that batch only picked samples become the run's. `cluster` is the metadata column whose
    values group samples that are not independent, NO_CLUSTER for none, or None to look for one of CLUSTER_COLUMNS. Does
    nothing when the run has its samples already, so that a repeated load is harmless.
    """
    last = _insert_ahead(warehouse, run_id, staging)
    with _writing(warehouse, run_id, staging) as connection:
        if beside is not None:
            write_batch(connection, beside)
        loaded = connection.execute("select count(*) from run_samples where run_id = ?", [run_id]).fetchone()
        if loaded and loaded[0]:
            return int(loaded[0])
        _insert_staged(connection, run_id, staging, last, cluster)
        n_samples = staging.n_rows
        if beside is not None and _PICKS in beside.tables:
            n_samples = int(beside.tables[_PICKS]["picked"].sum())
            connection.execute(read_query("samples/drop_unpicked"), {"run_id": run_id})
            connection.execute(read_query("samples/number_picked"), {"run_id": run_id})
        connection.execute("update runs set n_samples = ? where run_id = ?", [n_samples, run_id])
    return n_samples


def fetch_earlier_scores(
    warehouse: Warehouse,
    run_id: str,
    *,
    suite: str | None,
    variant: str | None,
    dataset: str | None,
    metrics: Sequence[str],
) -> dict[str, dict[str, EarlierScore]]:
    """Return by sample and metric the scores in earlier runs of a suite or its variant, else of a dataset."""
    parameters = {
        "run_id": run_id, "suite": suite, "variant": variant, "dataset": dataset, "metrics": list(metrics),
    }  # fmt: skip
    found: dict[str, dict[str, EarlierScore]] = {}
    for row in warehouse.fetch("samples/earlier_scores", **parameters).iter_rows(named=True):
        sample_id, metric = row.pop("sample_id"), row.pop("metric")
        found.setdefault(sample_id, {})[metric] = EarlierScore(**row)
    return found


def renew_samples(warehouse: Warehouse, run_id: str, staging: Staging, *, cluster: str | None = None) -> None:
    """Replace the rows that a run has under the same ids by staged ones, in one transaction."""
    last = _insert_ahead(warehouse, run_id, staging)
    with _writing(warehouse, run_id, staging) as connection:
        connection.execute(
            "delete from run_samples where run_id = $run_id and ordinal in (select ordinal from read_parquet($parts))",
            {"run_id": run_id, "parts": staging.parts},
        )
        _insert_staged(connection, run_id, staging, last, cluster)


@contextmanager
def _writing(warehouse: Warehouse, run_id: str, staging: Staging) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open one transaction that inserts samples, in separate row groups where their texts are long."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        if warehouse.location.lake is None and are_long(staging.bytes_of_row, 1):
            keep_groups_apart(connection)
        yield connection


def _insert_ahead(warehouse: Warehouse, run_id: str, staging: Staging) -> list[str]:
    """Insert the texts of all parts that do not fit into one transaction together; return the parts of the last one."""
    *ahead, last = staging.group_parts() or [[]]
    for parts in ahead:
        with _writing(warehouse, run_id, staging) as connection:
            _insert_texts(connection, staging, parts)
            connection.execute("drop table staged_ids")
    return last


def _insert_texts(connection: duckdb.DuckDBPyConnection, staging: Staging, parts: Sequence[str]) -> None:
    """Insert the texts of these parts that are not stored, and make the table `staged_ids` of all parts."""
    connection.execute(read_query("samples/staged_ids"), {"parts": staging.parts})
    connection.execute(read_query("samples/restored_samples"), {"parts": parts})
    connection.execute(read_query("samples/new_samples"), {"parts": parts})


def _insert_staged(
    connection: duckdb.DuckDBPyConnection, run_id: str, staging: Staging, last: Sequence[str], cluster: str | None
) -> None:
    _insert_texts(connection, staging, last)
    connection.execute(read_query("samples/run_samples"), {"run_id": run_id, "parts": staging.parts})
    connection.execute("drop table staged_ids")
    if cluster != NO_CLUSTER:
        columns, least = (list(CLUSTER_COLUMNS), MIN_GROUPS) if cluster is None else ([cluster], 2)
        parameters = {"run_id": run_id, "columns": columns, "least": least}
        connection.execute(read_query("samples/clusters"), parameters)


def fetch_samples_between(warehouse: Warehouse, run_id: str, first: int, last: int) -> list[StoredSample]:
    """Return the samples of a run with ordinals from `first` to `last`, both included."""
    frame: pl.DataFrame = warehouse.fetch("samples/shard", run_id=run_id, first=first, last=last)
    return [StoredSample(**row) for row in frame.to_dicts()]


def list_unfinished_shards(
    warehouse: Warehouse, run_id: str, shard_size: int, failures: Sequence[str] = FAILURE_REASONS
) -> list[int]:
    """Return the numbers (from 0) of shards with a sample that has no verdicts yet or failed for one of `failures`."""
    parameters = {"run_id": run_id, "shard_size": shard_size, "failures": list(failures)}
    return [int(number) for number in warehouse.fetch("samples/unfinished", **parameters)["number"]]


def find_owners(ids: Iterable[str]) -> dict[str, list[str]]:
    """Return for each id of a document or passage the ids that it may belong to and, last, its compared form.

    The rule is that of the metrics, in `queries/ids/owners.sql`.
    """
    with _open_scratch().cursor() as connection:
        return dict(connection.execute(read_query("ids/of_texts"), {"ids": sorted({*ids})}).fetchall())


@cache
def _open_scratch() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def count_samples(warehouse: Warehouse, run_id: str) -> int:
    """Return the number of samples that a run has in the warehouse."""
    frame = warehouse.read("select count(*) as n from run_samples where run_id = $run_id", {"run_id": run_id})
    return int(frame["n"][0])


def write_no_noise(warehouse: Warehouse, run_id: str) -> None:
    """Record that a run's judge is deterministic: rows of `noise` that name the run itself."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        connection.execute("delete from noise where noise_run_id = ?", [run_id])
        connection.execute(read_query("noise/write_none"), {"run_id": run_id})


def find_previous(warehouse: Warehouse, run_id: str) -> str | None:
    """Return the evaluation before this one in its series that came to an end."""
    rows = warehouse.fetch_rows("history/previous", run_id=run_id)
    return rows[0]["run_id"] if rows else None


def copy_samples(warehouse: Warehouse, *, run_id: str, again_run_id: str, sample_ids: Collection[str]) -> None:
    """Copy samples of a parent to a run that judges or asks them again."""
    picked = pl.DataFrame({"sample_id": list(sample_ids)})
    with (
        warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=again_run_id) as connection,
        lending(connection, {"picked_samples": picked}),
    ):
        connection.execute(read_query("noise/copy"), {"run_id": run_id, "again_run_id": again_run_id})


def fetch_asked(warehouse: Warehouse, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return by run and step of its calls: `judges`, each with its prompt's hash, of questions without earlier turns;
    `judges_of_talks`, of the others; and the `models` that answered."""
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {run_id: {} for run_id in run_ids}
    for row in warehouse.fetch_rows("noise/asked", {"run_id": run_ids}):
        by_run[row["run_id"]][row["step"]] = row
    return by_run


MetricSettings = Mapping[str, Mapping[str, float]]
_FEW_SAMPLES, _MANY_SAMPLES = 5_000, 384_000
VIEWS_OF_METRICS: Final = ("sample_steps", "sample_statement_counts", "sample_rankings", "statement_citations")
"""The views that built-in metrics read: planning them takes longer than a metric's own work on a small run."""


def score_run(warehouse: Warehouse, run_id: str, metrics: Sequence[MetricFile], settings: MetricSettings) -> int:
    """Replace the scores of these metrics for one run with all that rests on them, and write the run's noise again.

    Returns how many samples a judge or the target failed. `settings` gives parameters by metric where they differ from
    the file's own. Raises WarehouseError that names a metric whose SQL fails.
    """
    wanted = set_metrics(metrics, settings)
    built_in = [metric for metric in wanted if not metric.file.is_own]
    own = [metric for metric in wanted if metric.file.is_own]
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        ((n_samples,),) = connection.execute("select count(*) from run_samples where run_id = ?", [run_id]).fetchall()
        # A writer's own 384 MB are enough for 384,000 samples: sorting and grouping spill to disk, but not all of it.
        if n_samples > _MANY_SAMPLES:
            connection.execute(f"set memory_limit = '{n_samples // 1000} MB'")
        # Of a small run the views become tables with its rows, made once for all metrics. Of a large run they stay
        # views: planning them is nothing then, and the tables would not fit into a writer's memory.
        small = n_samples <= _FEW_SAMPLES
        views = [view for view in VIEWS_OF_METRICS if small and any(view in metric.file.sql for metric in built_in)]
        for view in views:
            connection.execute(f"create temp table {view} as from main.{view} where run_id = ?", [run_id])
        for metric in built_in:
            parameters = {"run_id": run_id, **metric.parameters}
            try:
                connection.execute(f"create or replace temp table metric_scores as\n{metric.file.sql}", parameters)
                _write_scores(connection, run_id, metric)
            except duckdb.Error as error:
                explained = explain_failure(warehouse.location, error)
                if isinstance(explained, WarehouseBusy | WarehouseUnwritable):
                    raise explained from None
                place, text = metric.file.place, first_line(str(error))
                raise WarehouseError(f"metric {metric.file.name!r} ({place}) failed: {text}") from None
        for view in views:
            connection.execute(f"drop table temp.{view}")
        if not own:
            return _finish_scores(connection, run_id)
        derive(connection, [run_id], ["scores"])
    # Outside of the transaction, because the query process reads what is committed.
    from evalhouse.warehouse.sandbox.query_process import select_apart  # noqa: PLC0415  # few runs have one

    frames = [
        call_function(warehouse, run_id, metric.file)
        if metric.file.function
        else select_apart(warehouse.location, run_id, metric, n_samples)
        for metric in own
    ]
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        for metric, frame in zip(own, frames, strict=True):
            with lending(connection, {"selected_scores": frame}):
                connection.execute("create or replace temp table metric_scores as from selected_scores")
            _write_scores(connection, run_id, metric)
        return _finish_scores(connection, run_id)


def _write_scores(connection: duckdb.DuckDBPyConnection, run_id: str, metric: SetMetric) -> None:
    """Replace the scores of a run in one metric with the rows of `metric_scores`.

    Raises WarehouseError where these are not one row per sample with a value or a reason.
    """
    file = metric.file
    found = connection.execute(read_query("runs/score_faults"), {"run_id": run_id})
    faults = dict(zip([column[0] for column in found.description], found.fetchall()[0], strict=True))
    for fault, number in faults.items():
        if number:
            raise WarehouseError(
                f"metric {file.name!r} gave {number} {fault}; its SQL must give one row per sample of the run, "
                "with a value or else an unscored_reason"
            )
    connection.execute("delete from scores where run_id = ? and metric = ?", [run_id, file.name])
    columns = {"metric": file.name, "version": metric.version, "better": file.better, "minimum": file.minimum}
    detail = "detail" if file.function else "null as detail"
    connection.execute(read_query("runs/write_scores").replace("$detail", detail), {"run_id": run_id, **columns})


def call_function(warehouse: Warehouse, run_id: str, metric: MetricFile) -> pl.DataFrame:
    """Return the rows of a metric that is a Python function: sample_id, value, unscored_reason, detail.

    It is called in this process: the file is the user's code, as a target's function is. What it raises, and a result
    that is neither a finite number nor a reason, leave the sample unscored (`measure_failed`).
    """
    function = load_function(metric)
    reasons = warehouse.read("select reason from unscored_reasons order by precedence").to_series().to_list()
    tables = [need for need in metric.arguments if need not in COLUMNS]
    rows: list[tuple[str, float | None, str | None, str | None]] = []
    last = 0
    while samples := fetch_samples_between(warehouse, run_id, last + 1, last + _FEW_SAMPLES):
        between = {"run_id": run_id, "first": last + 1, "last": last + _FEW_SAMPLES}
        last += _FEW_SAMPLES
        ended = warehouse.fetch("samples/step_reasons", {"step": list(metric.needs)}, **between)
        missing = dict(ended.iter_rows())
        verdicts: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in tables}
        for name in tables:
            is_grade = name.startswith(GRADE_STEP)
            sql = read_query("samples/verdicts_between").format(table="grades" if is_grade else name)
            if is_grade:
                sql += f"\nand rubric = '{name.removeprefix(GRADE_STEP)}'"
            for row in warehouse.read_rows(sql, between):
                verdicts[name].setdefault(str(row["sample_id"]), []).append(row)
        for sample in samples:
            given = {
                "conversation": plain_turns(sample.conversation),
                **{name: getattr(sample, name) for name in COLUMNS if name != "conversation"},
                **{name: of_samples.get(sample.sample_id, []) for name, of_samples in verdicts.items()},
            }
            absent = [COLUMNS[name] for name in metric.arguments if given[name] is None]
            reason = absent[0] if absent else missing.get(sample.sample_id)
            if "no_ground_truth" in absent:  # the metric does not apply to it
                reason = "no_ground_truth"
            elif absent and sample.target_error:
                reason = "target_failed"
            if reason is not None:
                rows.append((sample.sample_id, None, reason, None))
                continue
            try:
                result = function(**{name: given[name] for name in metric.arguments})
                if hasattr(result, "item"):  # a number of NumPy or PyTorch
                    result = result.item()
                value = float(result) if isinstance(result, int | float) else math.nan
                printed = f"{result!r:.80}"
            except (Exception, SystemExit) as error:
                problem = hide_secrets(first_line(f"{type(error).__name__}: {write_error(error)}"))
                rows.append((sample.sample_id, None, "measure_failed", problem))
                continue
            if isinstance(result, str) and result in reasons:
                rows.append((sample.sample_id, None, result, None))
            elif math.isfinite(value):
                rows.append((sample.sample_id, value, None, None))
            else:
                problem = (
                    f"{metric.function} ({metric.place}) returned {printed}; let it return a finite number, or one of "
                    f"{', '.join(map(repr, reasons))}"
                )
                rows.append((sample.sample_id, None, "measure_failed", hide_secrets(first_line(problem))))
    schema = {"sample_id": pl.String, "value": pl.Float64, "unscored_reason": pl.String, "detail": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _finish_scores(connection: duckdb.DuckDBPyConnection, run_id: str) -> int:
    """Store the rows that follow from a run's scores; return how many samples a judge or the target failed."""
    connection.execute("drop table if exists metric_scores")
    derive(connection, [run_id], ["scores", "causes"])
    if connection.execute("select 1 from runs where run_id = ? and status = 'running'", [run_id]).fetchone():
        # A run that was resumed may have other verdicts than before.
        derive(connection, list_later(connection, [run_id]), ["causes"])
    write_noise(connection, run_id)
    reasons = {"run_id": run_id, "reasons": list(FAILURE_REASONS)}
    ((n_failed,),) = connection.execute(read_query("runs/n_failed"), reasons).fetchall()
    return int(n_failed)


def write_noise(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Write the rows of `noise` again for every pair of a run and a noise run that this run is part of."""
    for noise_run_id, parent_run_id in connection.execute(read_query("noise/pairs"), {"run_id": run_id}).fetchall():
        connection.execute("delete from noise where noise_run_id = ?", [noise_run_id])
        connection.execute(read_query("noise/write"), {"run_id": parent_run_id, "noise_run_id": noise_run_id})


Derived = Literal["scores", "causes", "costs"]
_VIEWS: Final = {"scores": "run_scores", "causes": "run_causes", "costs": "run_costs"}


def fetch_derived(warehouse: Warehouse, part: Derived, run_ids: Collection[str]) -> pl.DataFrame:
    """Read the rows that `run_scores`, `run_causes` or `run_costs` has of these runs."""
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    sql = f"from {_VIEWS[part]} where run_id in (select run_id from wanted)"
    return warehouse.read(sql, frames={"wanted": wanted})


def fetch_score_history(warehouse: Warehouse, run_id: str | None = None, *, series: str | None = None) -> pl.DataFrame:
    """Return the rows of `fetch_histories` of a series, or of a run's, up to that run."""
    run_ids = warehouse.fetch("history/run_ids", run_id=run_id, series=series).to_series().to_list()
    return fetch_histories(warehouse, run_ids)


def fetch_histories(warehouse: Warehouse, run_ids: Collection[str]) -> pl.DataFrame:
    """Return the rows of `score_history` of these runs, each with the run before it.

    `change` and `n_shared` are given for the newest run of each series and metric, NULL elsewhere: they rest on the
    scores of single samples, and no page shows more of them.
    """
    chain = warehouse.fetch("history/chain", {"run_id": run_ids})
    newest = chain.filter(pl.col("mean").is_not_null()).group_by("series", "metric", maintain_order=True).last()
    return chain.join(fetch_shared(warehouse, newest), on=["run_id", "metric"], how="left", maintain_order="left")


def fetch_shared(warehouse: Warehouse, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return for each `run_id`, `metric` and `previous_run_id` the `change` of the mean over the samples that both runs
    scored, and their number (`n_shared`); no row without such samples."""
    sql = read_query("history/shared").replace("from score_chain\n", "from wanted_pairs as score_chain\n")
    wanted = pairs.select(pl.col("run_id", "metric", "previous_run_id").cast(pl.String))
    return warehouse.read(sql, frames={"wanted_pairs": wanted.drop_nulls()})


def fetch_shared_with(
    warehouse: Warehouse, run_id: str, base: str, metrics: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return by metric the `change` of a run's mean from another run's and `n_shared`, as `fetch_shared` has them."""
    pairs = pl.DataFrame({"metric": list(metrics)}, schema={"metric": pl.String})
    pairs = pairs.with_columns(run_id=pl.lit(run_id), previous_run_id=pl.lit(base))
    return {row["metric"]: row for row in fetch_shared(warehouse, pairs).to_dicts()}
