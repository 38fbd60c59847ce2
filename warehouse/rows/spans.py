"""Reads of the spans that were received."""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

_TRACES_AT_ONCE: Final = 500


def read_trace_spans(
    warehouse: Warehouse, since: datetime, until: datetime, service: str | None
) -> Iterator[list[dict[str, Any]]]:
    """The spans of each trace that began in [since, until), as rows, and of the earlier ones of their sessions.

    Those of a session follow each other in the order in time. Nothing of a warehouse that is not there yet.
    """
    if not warehouse.exists():
        return
    wanted = {"since": since, "until": until, "service": service}
    traces = warehouse.read(read_query("spans/between"), wanted).with_row_index("ordinal")
    for chunk in traces.iter_slices(_TRACES_AT_ONCE):
        rows = warehouse.read(read_query("spans/of_traces"), frames={"wanted": chunk}).to_dicts()
        for _, spans in groupby(rows, itemgetter("trace_id")):
            yield list(spans)


def count_spans(warehouse: Warehouse) -> int:
    """How many spans are on record."""
    return int(warehouse.read("select count(*) as n from spans")["n"][0])
