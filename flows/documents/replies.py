"""How a run's judge replied, by step: what was of use at once, what had to be asked again, what came too late."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from evalhouse.tasks.asking.asker import LATE
from evalhouse.tasks.asking.patience import is_near
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.asking.verdicts import COPIED
from evalhouse.tasks.judge.errors import NOT_TAKEN
from evalhouse.tasks.judge.names import list_judges
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

# Of fewer replies nothing is said, and of a share below this one neither.
_LEAST_REPLIES = 4
_TOO_MANY = 0.5

Rows = Sequence[Mapping[str, Any]]


def read_replies(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """One row per step whose model was asked."""
    return warehouse.read_rows(read_query("runs/replies"), {"run_id": run_id, "copied": COPIED, "late": LATE})


def describe_dropped(warehouse: Warehouse, run_id: str) -> Iterator[str]:
    """A line for each thing that an endpoint refused in a run and was asked without, in its own words."""
    for row in warehouse.read_rows(read_query("runs/dropped"), {"run_id": run_id, "not_taken": NOT_TAKEN}):
        yield f"{row['judge']} was asked without what its endpoint does not take: {shorten(str(row['refusal']), 300)}"


def list_troubled(rows: Rows) -> Rows:
    """The steps with a reply that was not of use at once, or with none in time."""
    return [row for row in rows if row["n_complete"] < row["n_replies"] or row["n_late"]]


def describe_replies(rows: Rows) -> Iterator[str]:
    """A line for each step that the judge cannot do, and one where replies came too late."""
    for row in rows:
        useless = row["n_incomplete"] + row["n_unusable"]
        if row["n_replies"] >= _LEAST_REPLIES and useless >= _TOO_MANY * row["n_replies"]:
            copied = f", {row['n_copied']:,} of them in the words of the prompt's example" if row["n_copied"] else ""
            yield (
                f"the judge is not up to {row['step']}: {useless:,} of {row['n_replies']:,} replies were unreadable or "
                f"left something out{copied}; a larger model may be"
            )
    n_late, n_requests = (sum(row[name] for row in rows) for name in ("n_late", "n_requests"))
    if n_late:
        yield f"{n_late:,} of {n_requests:,} requests got no reply in time: raise --timeout or lower --concurrency"


def describe_local(counts: Usage, judge: str | None, identified: Collection[str] = ()) -> Iterator[str]:
    """What the counts of a run say of a model on one's own machine that its replies do not.

    `identified` are the models of which the server said which ones they are.
    """
    if counts.shortened:
        yield (
            f"the endpoint counted less than half of the tokens of {counts.shortened:,} requests: where its context "
            "window is too small it cuts them without a word (Ollama: num_ctx); raise it, or set "
            "EVALHOUSE_REQUEST_TOKENS lower"
        )
    endpoint = os.environ.get("OPENAI_BASE_URL", "")
    named = [name.removeprefix("openai:") for name in list_judges(judge or "") if name.startswith("openai:")]
    models = [name for name in named if name not in identified]
    if counts.reused and models and is_near(endpoint):
        yield (
            f"{counts.reused:,} replies on record were those of {' or '.join(map(repr, models))} at this address, "
            "which are known by their name alone; if another model bears it now, ask again with --fresh"
        )
