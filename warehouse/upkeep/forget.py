"""Forgetting: texts, requests and replies of runs or of a sample are deleted; scores and verdicts stay unless asked.

What is to be deleted is recorded in one transaction (a dry run rolls it back), and deleted in others, of some runs
each, so that an interrupted forgetting resumes where it stopped. Runs share texts: a text is deleted when no kept row
refers to it, and so is a reply. A mark with the day, the length and a hash takes the place of each text, so that counts
and comparisons of texts do not change; no mark is reused as a reply.

The bytes themselves leave the disk when the warehouse is compacted.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal

import duckdb
import polars as pl

from evalhouse.warehouse import steps
from evalhouse.warehouse.engine.connection import explain_failure, lending, open_writer
from evalhouse.warehouse.engine.lake import FORGETTING, NAME
from evalhouse.warehouse.engine.locks import list_held
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import list_names, suggest
from evalhouse.warehouse.mover import delete_refused, take_in_orphans
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.gates import find_user
from evalhouse.warehouse.rows.progress import JournalReader
from evalhouse.warehouse.rows.runs import make_run_id, now_utc
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, TABLES, Warehouse, build_frame, derive, insert_frame, list_later

Kind = Literal["text", "texts", "statement", "words", "members", "json", "nothing"]
_VERDICT_TEXTS: Final[Mapping[str, Kind]] = {
    "text": "words",
    "statement": "words",
    "reason": "words",
    "marker": "words",
}
TEXTS: Final[Mapping[str, Mapping[str, Kind]]] = {
    **{
        table.name: {column: kind for column, kind in _VERDICT_TEXTS.items() if column in table.columns}
        for table in steps.VERDICT_TABLES
    },
    "statements": {"text": "statement"},
    "outcomes": {"detail": "words"},
    "scores": {"detail": "words"},
    "preferences": {"reason": "words"},
    "responses": {
        "answer": "text", "thoughts": "text", "contexts": "texts", "error": "words", "context_sources": "nothing",
    },
    "run_samples": {"metadata": "members"},
    "reviews": {"note": "words"},
    "testset_candidates": {
        "question": "words", "ground_truth": "words", "conversation": "nothing", "spans": "nothing", "detail": "words",
    },
    "testset_checks": {"detail": "words"},
    "testset_changes": {"detail": "words", "before": "words", "after": "words"},
}  # fmt: skip
"""The columns that hold texts in tables whose rows belong to one run, with the kind of mark that replaces each."""
SHARED: Final[Mapping[str, Mapping[str, Kind]]] = {
    "samples": {
        "question": "text", "answer": "text", "ground_truth": "text", "contexts": "texts", "metadata": "members",
        "conversation": "json",
    },
    "llm_calls": {
        "request": "json", "reply": "words", "thoughts": "words", "error": "words", "logprobs": "nothing",
    },
}  # fmt: skip
"""The same for tables whose rows other runs may rest on."""
_OF_SETS: Final[Mapping[str, Mapping[str, Kind]]] = {
    **{table: TEXTS[table] for table in ("testset_candidates", "testset_checks", "testset_changes")},
    "testset_questions": {
        "question": "words", "ground_truth": "words", "conversation": "nothing", "spans": "nothing",
    },
}  # fmt: skip
"""The columns with texts of a sample that a test set made, found by `question_id`."""
_OF_CHECKS: Final = (
    "candidate_id = $sample_id or (run_id, candidate_id) in "
    "(select (run_id, candidate_id) from testset_candidates where question_id = $sample_id)"
)
KEPT: Final = frozenset({"batches", "kb_updates", "served_models", "forgotten", "forgotten_items", "forgotten_traces"})
"""Tables that lose no row with a run: batches, events, served models, and the record of forgetting itself."""
_MARKS: Final[Mapping[Kind, str]] = {
    "text": "text_mark({0})", "texts": "list_transform({0}, lambda entry: text_mark(entry))",
    "statement": "statement_mark({0})", "words": "words_mark({0})", "members": "members_mark({0})",
    "json": "if({0} is null, null, to_json(words_mark({0} ->> '$')))", "nothing": "null",
}  # fmt: skip
_SIZES: Final[Mapping[Kind, str]] = {
    "texts": "list_sum(list_transform({0}, lambda entry: strlen(entry)))",
    **dict.fromkeys(("text", "statement", "words", "members", "json", "nothing"), "strlen({0}::varchar)"),
}  # fmt: skip
# A reply that a kept sample rests on stays, and so does its call.
_DELETED: Final = {"llm_calls": "(reply is null or request_key not in (from kept_keys))"}
_AT_ONCE: Final = 20_000
"""Rows of long texts, and samples of runs, that one transaction takes."""
_ALL: Final = 2**62
_MEMORY: Final = "1GB"
_MACROS: Final = ("is_mark", "make_mark", "text_mark", "statement_mark", "words_mark", "members_mark")
_TEMPORARY: Final = (
    "here", "gone_runs", "gone_pairs", "kept_keys", "going_calls", "going_samples", "going_traces",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule for forgetting: runs by their ids, runs that began before a time (of a suite), or one sample."""

    words: str
    run_ids: tuple[str, ...] = ()
    before: datetime | None = None
    suite: str | None = None
    sample_id: str | None = None
    with_scores: bool = False


@dataclass(frozen=True)
class GoneTraces:
    """Traces that were deleted, or would be: their rows and bytes, and when the first and the last of them began."""

    n_traces: int
    n_spans: int
    n_events: int
    n_bytes: int
    first_began_at: datetime | None
    last_began_at: datetime | None

    @property
    def tables(self) -> dict[str, int]:
        """The number of rows by table."""
        return {table: n for table, n in (("spans", self.n_spans), ("span_events", self.n_events)) if n}


@dataclass(kw_only=True)
class Forgotten:
    """The result of forgetting, or of a dry run: rows and bytes of texts by table, and running runs, left out.

    `traces` are received ones that were deleted with it, None where none were. `later_turns` are the samples whose
    conversation holds a forgotten sample as an earlier turn.
    """

    rule: Rule
    run_ids: tuple[str, ...] = ()
    n_samples: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0
    running: tuple[str, ...] = ()
    traces: GoneTraces | None = None
    later_turns: tuple[str, ...] = ()

    def count(self, table: str, n_rows: int, n_bytes: int) -> None:
        """Add rows of a table."""
        self.tables[table] = self.tables.get(table, 0) + n_rows
        self.n_bytes += n_bytes

    def add(self, other: "Forgotten") -> None:
        """Add the result for another name of the sample."""
        self.run_ids = tuple(dict.fromkeys((*self.run_ids, *other.run_ids)))
        self.running = tuple(sorted({*self.running, *other.running}))
        self.later_turns += other.later_turns
        self.n_samples += other.n_samples
        self.n_bytes += other.n_bytes
        for table, n_rows in other.tables.items():
            self.count(table, n_rows, 0)


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A recorded forgetting whose rows are not all deleted."""

    forgetting_id: str
    words: str
    sample_id: str | None
    with_scores: bool
    decided_at: datetime
    run_ids: list[str]


def forget(warehouse: Warehouse, rule: Rule, *, dry_run: bool = False) -> Forgotten:
    """Forget by a rule, and finish what was interrupted before; a dry run changes nothing.

    Running runs are left out. Raises WarehouseError for a run of `rule.run_ids` that is running, and for an unknown
    sample.
    """
    warehouse.migrate()
    take_in_orphans(warehouse)
    warehouse.flush()
    names = [rule.sample_id]
    if rule.sample_id is not None:
        known = warehouse.fetch("forget/known_samples")["sample_id"].to_list()
        if rule.sample_id not in known:
            advice = suggest(rule.sample_id, known, otherwise="such as")
            raise WarehouseError(f"no run has a sample {rule.sample_id!r}; {advice}")
        parts = [name for name in known if _name_trace(name) == rule.sample_id != name]
        samples = "select 1 from run_samples where sample_id = $sample_id limit 1"
        if parts and not warehouse.read(samples, {"sample_id": rule.sample_id}).height:
            named = list_names(sorted(parts))
            raise WarehouseError(f"trace {rule.sample_id} became several samples; forget each of {named}")
        replayed = warehouse.read(read_query("forget/replayed"), {"sample_id": rule.sample_id})["sample_id"].to_list()
        names = [*replayed, rule.sample_id]
    if not dry_run:
        _carry_out(warehouse)
    forgotten, forgetting_id = Forgotten(rule=rule), ""
    for name in names:
        forgetting_id = make_run_id(now_utc())
        forgotten.add(_decide(warehouse, replace(rule, sample_id=name), forgetting_id, dry_run=dry_run))
        if not dry_run:
            _carry_out(warehouse)
    # Rows that their tables could not hold lie in files beside the warehouse.
    pairs = set(warehouse.read("select distinct run_id, sample_id from forgotten").iter_rows())
    pairs |= {(run_id, name) for run_id in forgotten.run_ids for name in names}

    def is_forgotten(table: str, row: Mapping[str, object]) -> bool:
        return (row.get("run_id"), None) in pairs or (row.get("run_id"), row.get("sample_id")) in pairs

    for table, n_rows, n_bytes in delete_refused(warehouse.location, is_forgotten, dry_run=dry_run):
        forgotten.count(table, n_rows, n_bytes)
    # A suite's rule is about its runs; the traces that they were made of have the rules of the receiver.
    if rule.sample_id is not None or (rule.before is not None and rule.suite is None):
        gone = forget_traces(warehouse, rule, forgetting_id=forgetting_id, dry_run=dry_run)
        if gone.n_traces:
            forgotten.traces = gone
            forgotten.n_bytes += gone.n_bytes
            for table, n_rows in gone.tables.items():
                forgotten.count(table, n_rows, 0)
    return forgotten


def finish_forgetting(warehouse: Warehouse) -> list[Forgotten]:
    """Finish what was cut short, and return it; its runs and samples may not be found any more."""
    if not warehouse.exists() or not (pending := warehouse.fetch_rows("forget/pending")):
        return []
    warehouse.migrate()
    _carry_out(warehouse)
    finished = []
    for row in pending:
        rule = Rule(words=row["words"], sample_id=row["sample_id"], with_scores=row["with_scores"])
        forgotten = Forgotten(rule=rule, run_ids=tuple(row["run_ids"]))
        recorded = warehouse.fetch_rows("forget/recorded", forgetting_id=row["forgetting_id"])
        for one in recorded:
            if one["table_name"] == "run_samples":
                forgotten.n_samples = one["n_rows"]
            if one["table_name"] != "run_samples" or row["with_scores"]:
                forgotten.count(one["table_name"], one["n_rows"], one["n_bytes"])
        finished.append(forgotten)
    return finished


def forget_traces(
    warehouse: Warehouse, rule: Rule, *, forgetting_id: str | None = None, dry_run: bool = False
) -> GoneTraces:
    """Delete the traces that began before a rule's time, or the one that it names, with their spans and logged events.

    The deletion is recorded with it; a dry run changes nothing.
    """
    trace_id = None if rule.sample_id is None else _name_trace(rule.sample_id)
    with _writing(warehouse) as connection:
        connection.execute(read_query("forget/going_traces"), {"before": rule.before, "trace_id": trace_id})
        (counted,) = connection.execute(read_query("forget/count_traces")).fetchall()
        gone = GoneTraces(*counted)
        if gone.n_traces and not dry_run:
            now = now_utc()
            record = {
                **asdict(gone), "forgetting_id": forgetting_id or make_run_id(now), "rule": rule.words,
                "trace_id": trace_id, "forgotten_by": find_user(), "forgotten_at": now,
            }  # fmt: skip
            connection.begin()
            insert_frame(connection, "forgotten_traces", build_frame("forgotten_traces", [record]))
            for table in gone.tables:
                connection.execute(read_query("forget/delete_traces").format(table=table))
            _commit(connection, warehouse)
    started = None if rule.before is None else rule.before.replace(tzinfo=UTC).timestamp() * 1e6

    def is_forgotten(table: str, row: Mapping[str, object]) -> bool:
        if table not in ("spans", "span_events"):
            return False
        at = row.get("started_at" if table == "spans" else "logged_at")
        is_old = started is not None and isinstance(at, int | float) and at < started
        return is_old or (trace_id is not None and row.get("trace_id") == trace_id)

    list(delete_refused(warehouse.location, is_forgotten, dry_run=dry_run))
    return gone


def _name_trace(sample_id: str) -> str:
    """Return the id of a sample's trace, of which it may be one of several questions: TRACE/2."""
    trace_id, _, number = sample_id.rpartition("/")
    return trace_id if number.isdecimal() and trace_id else sample_id


def _decide(warehouse: Warehouse, rule: Rule, forgetting_id: str, *, dry_run: bool) -> Forgotten:
    """Record what is to be deleted, in one transaction; a dry run rolls it back."""
    with _writing(warehouse) as connection:
        scope = {
            "run_ids": list(rule.run_ids), "before": rule.before, "suite": rule.suite, "sample_id": rule.sample_id,
            "with_scores": rule.with_scores,
        }  # fmt: skip
        rows = connection.execute(read_query("forget/scope"), scope).fetchall()
        locks = [f"run-{run_id}" for run_id, status, _ in rows if status == "running"]
        held = list_held(warehouse.location, locks) if locks else set()
        running = {name.removeprefix("run-") for name in held}
        if named := running.intersection(rule.run_ids):
            raise WarehouseError(f"run {min(named)} is running; wait for its end, or stop it, and forget it then")
        n_samples = {run_id: int(n) for run_id, _, n in rows if run_id not in running}
        forgotten = Forgotten(
            rule=rule, run_ids=tuple(n_samples), n_samples=sum(n_samples.values()), running=tuple(sorted(running))
        )
        if not n_samples:
            return forgotten
        if rule.sample_id is not None:
            later = connection.execute(read_query("forget/later_turns"), {"sample_id": rule.sample_id}).fetchall()
            forgotten.later_turns = tuple(sample_id for (sample_id,) in later)
        now = now_utc()
        head = {
            "forgetting_id": forgetting_id, "sample_id": rule.sample_id, "rule": rule.words,
            "with_scores": rule.with_scores, "forgotten_by": find_user(), "decided_at": now,
        }  # fmt: skip
        records = [
            {**head, "run_id": run_id, "table_name": "run_samples", "n_rows": n, "n_bytes": 0}
            for run_id, n in n_samples.items()
        ]
        connection.begin()
        insert_frame(connection, "forgotten", build_frame("forgotten", records))
        _prepare(connection, warehouse, now, list(n_samples))
        records = []
        for table, run_id, n_rows, n_bytes in _count_rows(connection, rule):
            records.append({**head, "run_id": run_id, "table_name": table, "n_rows": n_rows, "n_bytes": n_bytes})
            forgotten.count(table, n_rows, n_bytes)
        insert_frame(connection, "forgotten", build_frame("forgotten", records))
        reviewed = "select 1 from review_picks union all select 1 from reviews limit 1"
        if not rule.with_scores and connection.execute(reviewed).fetchone():
            connection.execute(read_query("forget/keep_items"), {"sample_id": rule.sample_id})
        if dry_run:
            connection.rollback()
        else:
            _commit(connection, warehouse)
    return forgotten


@contextmanager
def _writing(warehouse: Warehouse) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a writer with memory for the counts; the caller begins, commits or rolls back its transactions."""
    with open_writer(warehouse.location, patience_s=FLUSH_PATIENCE_S) as connection:
        try:
            ((before,),) = connection.execute("select current_setting('memory_limit')").fetchall()
            connection.execute(f"set memory_limit = '{_MEMORY}'")
            yield connection
            # The connection of a lake is used again.
            for name in _TEMPORARY:
                connection.execute(f"drop table if exists temp.{name}")
            connection.execute(f"set memory_limit = '{before}'")
        except duckdb.Error as error:
            raise explain_failure(warehouse.location, error) from None


def _commit(connection: duckdb.DuckDBPyConnection, warehouse: Warehouse) -> None:
    if warehouse.location.lake is not None:
        connection.execute(f"call {NAME}.set_commit_message('evalhouse', '{FORGETTING}')")
    connection.commit()


def _prepare(
    connection: duckdb.DuckDBPyConnection,
    warehouse: Warehouse,
    day: datetime,
    run_ids: Sequence[str],
    *,
    limit: int | None = _ALL,
) -> None:
    """Create the macros that write marks, the table `here` of the runs, and the tables of what is deleted.

    These are the calls and the contents of samples that go with all recorded forgettings (see `going_calls.sql`), up to
    `limit` of each; with None the caller does not need them.
    """
    for macro in _MACROS:
        connection.execute(read_query(f"forget/{macro}").format(day=f"{day:%Y-%m-%d}"))
    sql = "create or replace temp table here as select unnest($run_ids::varchar[]) as run_id"
    connection.execute(sql, {"run_ids": list(run_ids)})
    if limit is None:
        return
    # A running run has just reused these calls: the rows that refer to them are on their way to the table.
    live = JournalReader(warehouse.location).read("llm_calls")["reused_call_id"].drop_nulls().unique()
    with lending(connection, {"live": pl.DataFrame({"call_id": live})}):
        for name in ("gone_runs", "gone_pairs", "kept_keys"):
            connection.execute(read_query(f"forget/{name}"))
        for name in ("going_calls", "going_samples"):
            connection.execute(read_query(f"forget/{name}"), {"most": limit})


def _count_rows(connection: duckdb.DuckDBPyConnection, rule: Rule) -> Iterator[tuple[str, str, int, int]]:
    """Yield table, run, rows and bytes of everything that is to be deleted, but for the samples of the runs."""
    sample_id = rule.sample_id
    tables = _list_run_tables(connection, sample_id) if rule.with_scores else _list_marked_tables(sample_id)
    for table in sorted({*tables} - {"run_samples"}):
        texts = {**TEXTS, **SHARED}.get(table, {})
        holds = " or ".join(f"{column} is not null" for column in texts)
        sizes = " + ".join(f"coalesce({_SIZES[kind].format(column)}, 0)" for column, kind in texts.items())
        sql = read_query("forget/count").format(
            table=table,
            n_bytes=sizes or "0",
            sample=_name_sample(table, sample_id),
            holds=_DELETED.get(table, "true") if rule.with_scores else f"({holds})",
        )
        for run_id, n_rows, n_bytes in connection.execute(sql, {"sample_id": sample_id}).fetchall():
            yield table, run_id, n_rows, n_bytes
    for table in ["samples"] if rule.with_scores else SHARED:
        sql = f"select run_id, count(*), sum(n_bytes)::bigint from going_{table.removeprefix('llm_')} group by run_id"
        for run_id, n_rows, n_bytes in connection.execute(f"{sql} having run_id is not null").fetchall():
            yield table, run_id, n_rows, n_bytes


def _list_marked_tables(sample_id: str | None) -> list[str]:
    """Return the tables in which marks replace texts; those without samples only where whole runs are meant."""
    # The scores are written by SQL, and are not among TABLES.
    return [table for table in TEXTS if sample_id is None or "sample_id" in TABLES.get(table, ("sample_id",))]


def _list_run_tables(connection: duckdb.DuckDBPyConnection, sample_id: str | None) -> list[str]:
    """Return the tables that lose the rows of a run, or of a sample of it; some calls may stay."""
    columns: dict[str, set[str]] = {}
    for table, column, _ in connection.execute(read_query("upkeep/columns")).fetchall():
        columns.setdefault(table, set()).add(column)
    wanted = {"run_id"} if sample_id is None else {"run_id", "sample_id"}
    return [table for table, names in columns.items() if wanted <= names and table not in KEPT]


def _name_sample(table: str, sample_id: str | None) -> str:
    """Return the column of samples; NULL of a table that has none where whole runs are meant."""
    return "sample_id" if sample_id is not None or "sample_id" in TABLES.get(table, {}) else "null::varchar"


def _write_marks(texts: Mapping[str, Kind]) -> str:
    """Return the assignments of an UPDATE that replace these columns by marks."""
    return ", ".join(f"{column} = {_MARKS[kind].format(column)}" for column, kind in texts.items())


def _carry_out(warehouse: Warehouse) -> None:
    """Delete all rows that are recorded as forgotten, some runs at a time, and then what they shared with others."""
    for row in warehouse.fetch_rows("forget/pending"):
        pending = _Pending(**row)
        sizes = dict(warehouse.read("select run_id, count(*) from run_samples group by run_id").rows())
        group: list[str] = []
        for run_id in pending.run_ids:
            if group and sum(sizes.get(name, 0) for name in [*group, run_id]) > _AT_ONCE:
                _forget_rows(warehouse, pending, group)
                group = []
            group.append(run_id)
        if group:
            _forget_rows(warehouse, pending, group)
        while _mark_shared(warehouse, pending.decided_at):
            pass
        with _writing(warehouse) as connection:
            connection.begin()
            connection.execute(
                "update forgotten set forgotten_at = ? where forgetting_id = ? and forgotten_at is null",
                [now_utc(), pending.forgetting_id],
            )
            _commit(connection, warehouse)


def _forget_rows(warehouse: Warehouse, pending: _Pending, run_ids: Sequence[str]) -> None:
    """Mark the texts of rows that belong to these runs alone, or delete the rows. Doing so again changes nothing."""
    sample_id = pending.sample_id
    wanted = {"sample_id": sample_id}
    with _writing(warehouse) as connection:
        connection.begin()
        if pending.with_scores:
            _prepare(connection, warehouse, pending.decided_at, run_ids)
            later = [run_id for run_id in list_later(connection, run_ids) if run_id not in pending.run_ids]
            if sample_id is not None:
                connection.execute(
                    "update runs set n_samples = n_samples - 1 where run_id in (select run_id from here) and run_id in "
                    "(select run_id from run_samples where sample_id = $sample_id "
                    "union select run_id from outcomes where sample_id = $sample_id)",
                    wanted,
                )
            for table in _list_run_tables(connection, sample_id):
                sample, goes = _name_sample(table, sample_id), _DELETED.get(table, "true")
                connection.execute(read_query("forget/delete").format(table=table, sample=sample, goes=goes), wanted)
            if sample_id is not None:
                derive(connection, run_ids)
            derive(connection, later, ["causes"])
        else:
            _prepare(connection, warehouse, pending.decided_at, run_ids, limit=None)
            for table in _list_marked_tables(sample_id):
                marks, sample = _write_marks(TEXTS[table]), _name_sample(table, sample_id)
                connection.execute(read_query("forget/mark").format(table=table, marks=marks, sample=sample), wanted)
        if sample_id is not None:
            for table, texts in _OF_SETS.items():
                found = _OF_CHECKS if table == "testset_checks" else "question_id = $sample_id"
                connection.execute(f"update {table} set {_write_marks(texts)} where {found}", wanted)
        _commit(connection, warehouse)


def _mark_shared(warehouse: Warehouse, day: datetime) -> bool:
    """Mark some of the texts and replies that no kept row rests on; returns False when no more are left."""
    with _writing(warehouse) as connection:
        connection.begin()
        _prepare(connection, warehouse, day, [], limit=_AT_ONCE)
        ((n_calls,),) = connection.execute("select count(*) from going_calls").fetchall()
        ((n_samples,),) = connection.execute("select count(*) from going_samples").fetchall()
        if n_calls:
            connection.execute(
                f"update llm_calls set {_write_marks(SHARED['llm_calls'])} "
                "where call_id in (select call_id from going_calls)"
            )
        if n_samples:
            connection.execute(
                "delete from samples where (sample_id, input_hash) in "
                "(select (sample_id, input_hash) from going_samples where run_id is null)"
            )
            connection.execute(
                f"update samples set {_write_marks(SHARED['samples'])} where (sample_id, input_hash) in "
                "(select (sample_id, input_hash) from going_samples where run_id is not null)"
            )
        _commit(connection, warehouse)
    return bool(n_calls + n_samples)
