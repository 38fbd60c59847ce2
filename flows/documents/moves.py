"""What moved in a run against the run before it in its series, and why: for the page that Prefect shows of its end.

The changes of the means are those of the notification. Beside them stand what the two runs were measured with where
that differs, what became of the causes of bad answers, and the samples that fell furthest. All of it is read from what
is stored of the two runs, so that a night does not wait for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalhouse.flows.display.output import escape_markdown, write_count, write_value
from evalhouse.flows.documents.baseline import find_previous
from evalhouse.flows.documents.diagnosis import load_advice
from evalhouse.warehouse.engine.connection import readers_kept
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import YARDSTICKS, RunRow
from evalhouse.warehouse.rows.told import read_causes, read_of_causes, read_shared_with
from evalhouse.warehouse.store import Warehouse

_MOST_SAMPLES: Final = 5
_LONGEST: Final = 160
_LEAST: Final = 0.0005  # what three decimals show
_UNMOVED: Final[Mapping[str, Any]] = {"change": 0.0}
_NO_FAULTS: Final = frozenset({"fine", "refused_rightly"})


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a run has other than the run before; `is_break` where it makes their scores another measure."""

    text: str
    is_break: bool


def list_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """What differs of two rows of `runs`, each with its plan."""
    for name in YARDSTICKS:
        if before[name] != after[name]:
            yield Difference(text=f"{name}: {before[name] or 'none'} → {after[name] or 'none'}", is_break=True)
    bases = [" ".join(filter(None, (run["kb_name"], run["kb_version"]))) for run in (before, after)]
    if bases[0] != bases[1]:
        yield Difference(text=f"knowledge base: {bases[0] or 'none'} → {bases[1] or 'none'}", is_break=False)
    if before["suite_hash"] != after["suite_hash"]:
        yield Difference(text="suite file: another text", is_break=False)


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What moved. `changes` are by metric, `causes` how many samples had one before and have it now, by their names;
    `samples` those that fell furthest, the worst first."""

    previous: RunRow
    means: Sequence[Mapping[str, Any]]
    changes: Mapping[str, Mapping[str, Any]]
    differences: Sequence[Difference]
    causes: Mapping[str, tuple[int, int]]
    samples: Sequence[Mapping[str, Any]]


def list_means(warehouse: Warehouse, run: RunRow) -> list[dict[str, Any]]:
    """The means of a run, in the order of its own metrics."""
    return warehouse.read_rows(read_query("runs/means"), {"run_id": run.run_id, "metrics": list(run.metrics)})


def read_moves(warehouse: Warehouse, run: RunRow) -> Moves | None:
    """What moved against the run before; None for the first of a series."""
    with readers_kept():  # to open the warehouse for each read takes as long as what is read
        previous = find_previous(warehouse, run)
        if previous is None:
            return None
        columns = (*YARDSTICKS, "kb_name", "kb_version", "suite_hash")
        before, after = ({name: getattr(one, name) for name in columns} for one in (previous, run))
        means = list_means(warehouse, run)
        return Moves(
            previous=previous,
            means=means,
            changes=read_shared_with(warehouse, run.run_id, previous.run_id, [str(row["metric"]) for row in means]),
            differences=list(list_differences(before, after)),
            causes=_read_causes(warehouse, run, previous),
            samples=_read_fallen(warehouse, run, previous),
        )


def _read_causes(warehouse: Warehouse, run: RunRow, previous: RunRow) -> dict[str, tuple[int, int]]:
    advice = load_advice("en")
    before = {row["cause"]: row["n_samples"] for row in read_causes(warehouse, previous.run_id)}
    return {
        advice[row["cause"]].name: (before.get(row["cause"], 0), row["n_samples"])
        for row in read_causes(warehouse, run.run_id)
        if row["cause"] not in _NO_FAULTS and row["n_samples"] != before.get(row["cause"], 0)
    }


def _read_fallen(warehouse: Warehouse, run: RunRow, previous: RunRow) -> list[dict[str, Any]]:
    pair = {"candidate": run.run_id, "base": previous.run_id, "most": _MOST_SAMPLES}
    fallen = warehouse.read_rows(read_query("history/worse"), pair)
    wanted = {"run_id": run.run_id, "sample_ids": [row["sample_id"] for row in fallen]}
    rows = read_of_causes(warehouse, "diagnosis/of_samples", wanted).to_dicts() if fallen else []
    causes = {row["sample_id"]: row for row in rows}
    return [{**row, **causes.get(row["sample_id"], {"cause": None, "evidence": None})} for row in fallen]


def write_moves(moves: Moves) -> list[str]:
    """The same as lines of Markdown."""
    start = f"{moves.previous.started_at:%Y-%m-%d %H:%M}"
    moved = [row for row in moves.means if abs(moves.changes.get(row["metric"], _UNMOVED)["change"]) >= _LEAST]
    still = [row["metric"] for row in moves.means if row["metric"] in moves.changes and row not in moved]
    table = [_write_metric(row, moves.changes[row["metric"]]) for row in moved]
    return [
        f"## Against run `{moves.previous.run_id}` of {start} UTC",
        *(["", "| metric | mean | change | over |", "| --- | --- | --- | --- |", *table] if table else []),
        *(["", f"As before: {escape_markdown(', '.join(still))}."] if still else []),
        *_write_list("Measured or made otherwise than then:", [_write_difference(one) for one in moves.differences]),
        *_write_list("Causes, then → now:", [_write_cause(name, *counts) for name, counts in moves.causes.items()]),
        *_write_list("Fallen furthest:", [_write_sample(sample) for sample in moves.samples]),
    ]


def _write_list(title: str, items: Sequence[str]) -> list[str]:
    return ["", title, "", *(f"- {item}" for item in items)] if items else []


def _write_metric(row: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    over = write_count(shared["n_shared"], "sample")
    return f"| {escape_markdown(row['metric'])} | {write_value(row['mean'])} | {shared['change']:+.3f} | {over} |"


def _write_difference(difference: Difference) -> str:
    note = " (so the means are no longer the same measure)" if difference.is_break else ""
    return f"{escape_markdown(difference.text)}{note}"


def _write_cause(name: str, before: int, now: int) -> str:
    return f"{escape_markdown(name)}: {before:,} → {now:,}"


def _write_sample(sample: Mapping[str, Any]) -> str:
    """The metric that fell most, and why: the cause that verdicts point to, what decided, whether its input changed."""
    move = sample["moves"][0]
    fall = f"{move['metric']} {write_value(move['before'])} → {write_value(move['after'])}"
    why = [] if sample["cause"] in (None, "not_judged") else [load_advice("en")[sample["cause"]].name]
    why += [sample["evidence"]] if why and sample["evidence"] else []
    why += ["its answer or contexts changed" if sample["input_changed"] else "nothing of it changed"]
    text = f"{sample['sample_id']}, {fall}: {'; '.join(why)}. {sample['question'] or ''}"
    return escape_markdown(shorten(text, 2 * _LONGEST))
