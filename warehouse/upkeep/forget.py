"""Forgetting: texts, requests and replies of runs or of a sample go; scores and verdicts stay, unless they go as well.

What is to go is decided and put on record in one transaction (a dry run takes that back), and carried out in others, of
some runs each, so that what was cut short goes on where it stopped. Texts stand once, whatever runs share them: one
goes when nothing refers to it that is kept, and so does a reply. Where a text was stands a mark with the day, its
length and a hash, so that whatever counts or compares texts comes to what it did; no mark is reused as a reply.

The bytes themselves are gone from the disk when the warehouse was compacted.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final, Literal

import duckdb
import polars as pl

from evalhouse.warehouse import steps
from evalhouse.warehouse.engine.connection import explain_failure, open_writer
from evalhouse.warehouse.engine.lake import FORGETTING, NAME
from evalhouse.warehouse.engine.locks import list_held
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.gates import find_user
from evalhouse.warehouse.rows.progress import JournalReader
from evalhouse.warehouse.rows.runs import make_run_id, now_utc
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, derive, insert_frame, list_later
from evalhouse.warehouse.tables import TABLES, build_frame

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
    "preferences": {"reason": "words"},
    "responses": {"answer": "text", "contexts": "texts", "error": "words"},
    "run_samples": {"metadata": "members"},
    "reviews": {"note": "words"},
    "testset_candidates": {
        "question": "words", "ground_truth": "words", "conversation": "nothing", "spans": "nothing", "detail": "words",
    },
    "testset_checks": {"detail": "words"},
    "testset_changes": {"detail": "words", "before": "words", "after": "words"},
}  # fmt: skip
"""The columns that hold texts in tables whose rows are a run's own, and what takes a text's place there."""
SHARED: Final[Mapping[str, Mapping[str, Kind]]] = {
    "samples": {
        "question": "text", "answer": "text", "ground_truth": "text", "contexts": "texts", "metadata": "members",
        "conversation": "json",
    },
    "llm_calls": {
        "request": "json", "reply": "words", "thoughts": "words", "error": "words", "logprobs": "nothing",
    },
}  # fmt: skip
"""The same of tables whose rows other runs may rest on."""
_OF_SETS: Final[Mapping[str, Mapping[str, Kind]]] = {
    **{table: texts for table, texts in TEXTS.items() if table in ("testset_candidates", "testset_changes")},
    "testset_questions": {
        "question": "words", "ground_truth": "words", "conversation": "nothing", "spans": "nothing",
    },
}  # fmt: skip
"""Where the texts of a sample stand that a test set made, by `question_id`."""
KEPT: Final = frozenset({"batches", "kb_updates", "served_models", "forgotten", "forgotten_items", "forgotten_traces"})
"""Tables of which nothing is deleted with a run: what was written, answered and served, and the record itself."""
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
_GOES: Final = {"llm_calls": "(reply is null or request_key not in (from kept_keys))"}
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
    """What is to be forgotten: runs that are named, those that began before a time (of a suite), or one sample."""

    words: str
    run_ids: tuple[str, ...] = ()
    before: datetime | None = None
    suite: str | None = None
    sample_id: str | None = None
    with_scores: bool = False


@dataclass(frozen=True)
class GoneTraces:
    """Traces that were deleted, or would be: what there was of them, and when the first and the last of them began."""

    n_traces: int
    n_spans: int
    n_events: int
    n_bytes: int
    first_began_at: datetime | None
    last_began_at: datetime | None

    @property
    def tables(self) -> dict[str, int]:
        """How many rows, by table."""
        return {table: n for table, n in (("spans", self.n_spans), ("span_events", self.n_events)) if n}


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """What was forgotten, or would be: rows and bytes of texts by table; `under_way` are runs that were left out.

    `traces` are received ones that went with it, None where none did.
    """

    rule: Rule
    run_ids: tuple[str, ...]
    n_samples: int
    tables: Mapping[str, int]
    n_bytes: int
    under_way: tuple[str, ...]
    traces: GoneTraces | None = None


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A forgetting on record whose rows are not all gone."""

    forgetting_id: str
    sample_id: str | None
    with_scores: bool
    decided_at: datetime
    run_ids: list[str]


def forget(warehouse: Warehouse, rule: Rule, *, dry_run: bool = False) -> Forgotten:
    """Forget what the rule says, and finish whatever was cut short before; a dry run changes nothing.

    Runs under way are left out. Raises WarehouseError for a run that is named and under way, and for an unknown sample.
    """
    warehouse.migrate()
    take_in_orphans(warehouse)
    warehouse.flush()
    _check_sample(warehouse, rule)
    if not dry_run:
        _carry_out(warehouse)
    forgetting_id = make_run_id(now_utc())
    forgotten = _decide(warehouse, rule, forgetting_id, dry_run=dry_run)
    if not dry_run:
        _carry_out(warehouse)
    # Of a suite the runs go by its rules; the traces that they were made of go by those of the receiver.
    if rule.sample_id is None and (rule.before is None or rule.suite is not None):
        return forgotten
    gone = forget_traces(warehouse, rule, forgetting_id=forgetting_id, dry_run=dry_run)
    if not gone.n_traces:
        return forgotten
    tables, n_bytes = {**forgotten.tables, **gone.tables}, forgotten.n_bytes + gone.n_bytes
    return replace(forgotten, tables=tables, n_bytes=n_bytes, traces=gone)


def forget_traces(
    warehouse: Warehouse, rule: Rule, *, forgetting_id: str | None = None, dry_run: bool = False
) -> GoneTraces:
    """Delete the traces that began before a rule's time, or the one that it names: their spans, and what was logged
    about these. That goes on record with it; a dry run changes nothing."""
    with _writing(warehouse) as connection:
        connection.execute(read_query("forget/going_traces"), {"before": rule.before, "trace_id": rule.sample_id})
        (counted,) = connection.execute(read_query("forget/count_traces")).fetchall()
        gone = GoneTraces(*counted)
        if gone.n_traces and not dry_run:
            now = now_utc()
            record = {
                **asdict(gone), "forgetting_id": forgetting_id or make_run_id(now), "rule": rule.words,
                "trace_id": rule.sample_id, "forgotten_by": find_user(), "forgotten_at": now,
            }  # fmt: skip
            connection.begin()
            insert_frame(connection, "forgotten_traces", build_frame("forgotten_traces", [record]))
            for table in gone.tables:
                connection.execute(read_query("forget/delete_traces").format(table=table))
            _commit(connection, warehouse)
    return gone


def _check_sample(warehouse: Warehouse, rule: Rule) -> None:
    if rule.sample_id is None:
        return
    known = warehouse.fetch("forget/known_samples")["sample_id"].to_list()
    if rule.sample_id not in known:
        advice = suggest(rule.sample_id, known, otherwise="such as")
        raise WarehouseError(f"no run has a sample {rule.sample_id!r}; {advice}")


def _decide(warehouse: Warehouse, rule: Rule, forgetting_id: str, *, dry_run: bool) -> Forgotten:
    """Put on record what is to go, in one transaction; a dry run takes it back."""
    with _writing(warehouse) as connection:
        rows = connection.execute(
            read_query("forget/scope"),
            {
                "run_ids": list(rule.run_ids), "before": rule.before, "suite": rule.suite, "sample_id": rule.sample_id,
                "with_scores": rule.with_scores,
            },
        ).fetchall()  # fmt: skip
        under_way = _list_under_way(warehouse, [run_id for run_id, status, _ in rows if status == "running"])
        _refuse_under_way(rule, under_way)
        n_samples = {run_id: int(n) for run_id, _, n in rows if run_id not in under_way}
        forgotten = Forgotten(
            rule=rule, run_ids=tuple(n_samples), n_samples=sum(n_samples.values()), tables={}, n_bytes=0,
            under_way=tuple(sorted(under_way)),
        )  # fmt: skip
        if not n_samples:
            return forgotten
        connection.begin()
        forgotten = _put_on_record(connection, warehouse, forgotten, forgetting_id, n_samples)
        if dry_run:
            connection.rollback()
        else:
            _commit(connection, warehouse)
    return forgotten


@contextmanager
def _writing(warehouse: Warehouse) -> Iterator[duckdb.DuckDBPyConnection]:
    """A writer with memory for all that is counted; what it opens it commits or rolls back itself."""
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


def _list_under_way(warehouse: Warehouse, run_ids: Sequence[str]) -> set[str]:
    held = list_held(warehouse.location, [f"run-{run_id}" for run_id in run_ids]) if run_ids else set()
    return {name.removeprefix("run-") for name in held}


def _refuse_under_way(rule: Rule, under_way: set[str]) -> None:
    named = under_way.intersection(rule.run_ids)
    if named:
        raise WarehouseError(f"run {min(named)} is under way; wait for its end, or stop it, and forget it then")


def _put_on_record(
    connection: duckdb.DuckDBPyConnection,
    warehouse: Warehouse,
    forgotten: Forgotten,
    forgetting_id: str,
    n_samples: Mapping[str, int],
) -> Forgotten:
    now, rule = now_utc(), forgotten.rule
    head = {
        "forgetting_id": forgetting_id, "sample_id": rule.sample_id, "rule": rule.words,
        "with_scores": rule.with_scores, "forgotten_by": find_user(), "decided_at": now,
    }  # fmt: skip
    samples = [
        {**head, "run_id": run_id, "table_name": "run_samples", "n_rows": n, "n_bytes": 0}
        for run_id, n in n_samples.items()
    ]
    insert_frame(connection, "forgotten", build_frame("forgotten", samples))
    _lay_marks(connection, now)
    _name_runs(connection, list(n_samples))
    _find_going(connection, warehouse)
    counted = [
        {**head, "run_id": run_id, "table_name": table, "n_rows": n_rows, "n_bytes": n_bytes}
        for table, run_id, n_rows, n_bytes in _count(connection, rule)
    ]
    insert_frame(connection, "forgotten", build_frame("forgotten", counted))
    reviewed = "select 1 from review_picks union all select 1 from reviews limit 1"
    if not rule.with_scores and connection.execute(reviewed).fetchone():
        connection.execute(read_query("forget/keep_items"), {"sample_id": rule.sample_id})
    tables = {str(row["table_name"]): 0 for row in counted}
    for row in counted:
        tables[str(row["table_name"])] += int(str(row["n_rows"]))
    return Forgotten(
        rule=rule, run_ids=forgotten.run_ids, n_samples=forgotten.n_samples, under_way=forgotten.under_way,
        tables=tables, n_bytes=sum(int(str(row["n_bytes"])) for row in counted),
    )  # fmt: skip


def _count(connection: duckdb.DuckDBPyConnection, rule: Rule) -> Iterator[tuple[str, str, int, int]]:
    """Table, run, rows and bytes of all that goes."""
    # The samples themselves are on record already.
    tables = _list_run_tables(connection, rule.sample_id) if rule.with_scores else _list_marked(rule.sample_id)
    for table in sorted({*tables} - {"run_samples"}):
        texts = {**TEXTS, **SHARED}.get(table, {})
        holds = " or ".join(f"{column} is not null" for column in texts)
        sizes = " + ".join(f"coalesce({_SIZES[kind].format(column)}, 0)" for column, kind in texts.items())
        sql = read_query("forget/count").format(
            table=table,
            n_bytes=sizes or "0",
            sample=_name_sample(table, rule.sample_id),
            holds=_GOES.get(table, "true") if rule.with_scores else f"({holds})",
        )
        for run_id, n_rows, n_bytes in connection.execute(sql, {"sample_id": rule.sample_id}).fetchall():
            yield table, run_id, n_rows, n_bytes
    for table in ["samples"] if rule.with_scores else SHARED:
        sql = f"select run_id, count(*), sum(n_bytes)::bigint from going_{table.removeprefix('llm_')} group by run_id"
        for run_id, n_rows, n_bytes in connection.execute(f"{sql} having run_id is not null").fetchall():
            yield table, run_id, n_rows, n_bytes


def _list_marked(sample_id: str | None) -> list[str]:
    """The tables in which marks take the place of texts; those without samples only where whole runs are meant."""
    return [table for table in TEXTS if sample_id is None or "sample_id" in TABLES[table]]


def _list_run_tables(connection: duckdb.DuckDBPyConnection, sample_id: str | None) -> list[str]:
    """The tables that lose the rows of a run, or of a sample of it; of calls some may stay."""
    columns: dict[str, set[str]] = {}
    for table, column, _ in connection.execute(read_query("upkeep/columns")).fetchall():
        columns.setdefault(table, set()).add(column)
    wanted = {"run_id"} if sample_id is None else {"run_id", "sample_id"}
    return [table for table, names in columns.items() if wanted <= names and table not in KEPT]


def _name_sample(table: str, sample_id: str | None) -> str:
    """The column of samples; of a table that has none where whole runs are meant."""
    return "sample_id" if sample_id is not None or "sample_id" in TABLES.get(table, {}) else "null::varchar"


def _carry_out(warehouse: Warehouse) -> None:
    """Have all rows go that are on record as forgotten, some runs at a time, and then what they shared with others."""
    for row in warehouse.fetch_rows("forget/pending"):
        pending = _Pending(**row)
        for run_ids in _group(warehouse, pending.run_ids):
            _forget_rows(warehouse, pending, run_ids)
        while _mark_shared(warehouse, pending.decided_at):
            pass
        with _writing(warehouse) as connection:
            connection.begin()
            connection.execute(
                "update forgotten set forgotten_at = ? where forgetting_id = ? and forgotten_at is null",
                [now_utc(), pending.forgetting_id],
            )
            _commit(connection, warehouse)


def _group(warehouse: Warehouse, run_ids: Sequence[str]) -> Iterator[list[str]]:
    """Runs in groups that one transaction takes."""
    sizes = dict(warehouse.read("select run_id, count(*) from run_samples group by run_id").rows())
    group: list[str] = []
    for run_id in run_ids:
        if group and sum(sizes.get(name, 0) for name in [*group, run_id]) > _AT_ONCE:
            yield group
            group = []
        group.append(run_id)
    if group:
        yield group


def _forget_rows(warehouse: Warehouse, pending: _Pending, run_ids: Sequence[str]) -> None:
    """The rows that are the runs' own: without their texts, or altogether. Doing so again changes nothing."""
    wanted = {"sample_id": pending.sample_id}
    with _writing(warehouse) as connection:
        connection.begin()
        _lay_marks(connection, pending.decided_at)
        _name_runs(connection, run_ids)
        if pending.with_scores:
            _delete_rows(connection, warehouse, pending, run_ids)
        else:
            for table in _list_marked(pending.sample_id):
                marks, sample = _write_marks(TEXTS[table]), _name_sample(table, pending.sample_id)
                sql = read_query("forget/mark").format(table=table, marks=marks, sample=sample)
                connection.execute(sql, wanted)
        if pending.sample_id is not None:
            for table, texts in _OF_SETS.items():
                sql = f"update {table} set {_write_marks(texts)} where question_id = $sample_id"
                connection.execute(sql, wanted)
        _commit(connection, warehouse)


def _delete_rows(
    connection: duckdb.DuckDBPyConnection, warehouse: Warehouse, pending: _Pending, run_ids: Sequence[str]
) -> None:
    _find_going(connection, warehouse)
    later = [run_id for run_id in list_later(connection, run_ids) if run_id not in pending.run_ids]
    for table in _list_run_tables(connection, pending.sample_id):
        sample, goes = _name_sample(table, pending.sample_id), _GOES.get(table, "true")
        sql = read_query("forget/delete").format(table=table, sample=sample, goes=goes)
        connection.execute(sql, {"sample_id": pending.sample_id})
    if pending.sample_id is not None:
        connection.execute(
            "update runs set n_samples = (select count(*) from run_samples where run_samples.run_id = runs.run_id) "
            "where run_id in (select run_id from here)"
        )
        derive(connection, run_ids)
    derive(connection, later, ["causes"])


def _mark_shared(warehouse: Warehouse, day: datetime) -> bool:
    """Some of the texts and replies that nothing kept rests on; whether there were any."""
    n_marked = 0
    with _writing(warehouse) as connection:
        connection.begin()
        _lay_marks(connection, day)
        _find_going(connection, warehouse, most=_AT_ONCE)
        ((n_calls,),) = connection.execute("select count(*) from going_calls").fetchall()
        ((n_samples,),) = connection.execute("select count(*) from going_samples").fetchall()
        n_marked = n_calls + n_samples
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
    return bool(n_marked)


def _find_going(connection: duckdb.DuckDBPyConnection, warehouse: Warehouse, *, most: int = _ALL) -> None:
    """Which calls and which contents of samples go, with all that is on record as forgotten; see `going_calls.sql`."""
    # What a run under way has just reused is on its way to the table.
    live = JournalReader(warehouse.location).read("llm_calls")["reused_call_id"].drop_nulls().unique()
    connection.register("live", pl.DataFrame({"call_id": live}).to_arrow())
    for name in ("gone_runs", "gone_pairs", "kept_keys"):
        connection.execute(read_query(f"forget/{name}"))
    connection.execute(read_query("forget/going_calls"), {"most": most})
    connection.execute(read_query("forget/going_samples"), {"most": most})
    connection.unregister("live")


def _name_runs(connection: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> None:
    connection.execute(
        "create or replace temp table here as select unnest($run_ids::varchar[]) as run_id", {"run_ids": list(run_ids)}
    )


def _lay_marks(connection: duckdb.DuckDBPyConnection, day: datetime) -> None:
    for macro in _MACROS:
        connection.execute(read_query(f"forget/{macro}").format(day=f"{day:%Y-%m-%d}"))


def _write_marks(texts: Mapping[str, Kind]) -> str:
    return ", ".join(f"{column} = {_MARKS[kind].format(column)}" for column, kind in texts.items())
