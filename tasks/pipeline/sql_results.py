"""SQL answers: the rows they return against those that were expected, and what that proves of two queries.

A sample's `tables` (rows, or paths) and `setup` (a script) are the data that its expected query (the ground truth) and
the bot's query (the answer) run on; `expected_rows` and `rows` may be given in their place.
"""

import asyncio

from evalhouse.prompts import Grade
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.pipeline.result_sets import (
    Agreement,
    ResultSet,
    compare_result_sets,
    must_differ,
    read_rows,
    run_on_tables,
)
from evalhouse.warehouse.errors import QueryError, QueryStopped, TableError
from evalhouse.warehouse.rows.samples import StoredSample

RUBRIC = "result_sets"


def compare_results(sample: StoredSample) -> list[Grade] | str:
    """Return grades from 0 to 1, or the reason why there are none.

    `row_precision`, `row_recall`, `column_precision`, `column_recall`, and the scores `any_order` (F1 of the cells) and
    `in_order` (F1 times the share of rows in the expected order). A bot's query that fails scores 0.
    Raises QueryStopped where it ran over a limit or ended its process, FatalJudgeError for tables that cannot be read.
    """
    try:
        expected = _find_rows(sample, sample.ground_truth, "expected_rows")
    except QueryError as error:
        raise FatalJudgeError(f"sample {sample.sample_id}: the expected query fails: {error}") from None
    except TableError as error:
        raise FatalJudgeError(f"sample {sample.sample_id}: {error}") from None
    if expected is None:
        return "no_ground_truth"
    try:
        made = _find_rows(sample, sample.answer, "rows")
    except QueryStopped as error:
        raise QueryStopped(f"the bot's query: {error}") from None
    except QueryError as error:
        return _grade(f"the bot's query fails: {error}")
    except TableError as error:
        if sample.metadata.get("rows") is None:  # then the tables are at fault, and not the bot
            raise FatalJudgeError(f"sample {sample.sample_id}: {error}") from None
        return _grade(f"the bot's rows cannot be read: {error}")
    return _grade(compare_result_sets(expected, made)) if made else "no_answer"


async def prove_by_running(sample: StoredSample) -> Grade | None:
    """Two queries that return different rows on the sample's data are not equivalent; anything else proves nothing.

    A query that fails proves nothing either: it may be written for another database. Raises FatalJudgeError for tables
    that cannot be read.
    """
    difference = await asyncio.to_thread(_find_difference, sample)
    if difference is None:
        return None
    return Grade(
        criterion="sql_equivalence",
        rating=0.0,
        reason=f"run on the sample's data they differ: {difference}",
        rule="settled by running both",
    )


def _find_difference(sample: StoredSample) -> str | None:
    try:
        expected, made = (_run(sample, sql) for sql in (sample.ground_truth, sample.answer))
    except QueryError:
        return None
    except TableError as error:
        raise FatalJudgeError(f"sample {sample.sample_id}: {error}") from None
    if expected is None or made is None or not must_differ(expected, made):
        return None
    return compare_result_sets(expected, made).note


def _find_rows(sample: StoredSample, sql: str | None, column: str) -> ResultSet | None:
    """Rows that were given, or those of a query; None when there is neither. Raises QueryError or TableError."""
    given = sample.metadata.get(column)
    if given is not None:
        return read_rows(given, f"column {column}")
    return _run(sample, sql)


def _run(sample: StoredSample, sql: str | None) -> ResultSet | None:
    tables, setup = sample.metadata.get("tables") or {}, str(sample.metadata.get("setup") or "")
    if sql is None or not (tables or setup):
        return None
    if not isinstance(tables, dict):
        raise TableError(f"column tables is {str(tables)[:80]!r}; it must be an object: table name to rows or a path")
    return run_on_tables(sql, tables, setup=setup)


def _grade(agreement: Agreement | str) -> list[Grade]:
    names = ("row_precision", "row_recall", "column_precision", "column_recall", "any_order", "in_order")
    if isinstance(agreement, str):
        ratings, note = dict.fromkeys(names, 0.0), agreement
    else:
        ratings = {name: getattr(agreement, name) for name in names[:4]}
        ratings |= {"any_order": agreement.f1, "in_order": agreement.f1 * agreement.in_order}
        note = agreement.note
    return [Grade(criterion=name, rating=rating, reason=note) for name, rating in ratings.items()]
