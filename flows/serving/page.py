"""How a run of a served suite ended, as a page for Prefect and in a line: run, means, gate, what to type next."""

from collections.abc import Mapping
from typing import Any, Final

from evalhouse.flows.display.output import write_number
from evalhouse.flows.documents.gate import describe_verdict
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_MEANS: Final = """
select metric, mean, ci_low, ci_high, n_scored, n_unscored
from run_scores where run_id = $run_id
order by list_position($metrics, metric), metric
"""
# What Markdown would take for markup of its own.
_MARKUP: Final = "\\`*_{}[]<>()#+!|~"


def write_page(warehouse: Warehouse, run: RunRow, gate: Mapping[str, Any] | None, *, flow_run_url: str | None) -> str:
    """Markdown. What comes from outside (labels, versions, ids of documents) is shown as it is and marks nothing up."""
    lines = [
        f"# {_plain(run.suite or 'run')}: {run.status}",
        "",
        f"Run `{run.run_id}`, {_plain(describe_trigger(run))}.",
    ]
    if run.problem:
        lines += ["", f"**Problem:** {_plain(run.problem)}"]
    if gate is not None:
        lines += ["", f"**{_plain(describe_verdict(gate))}**"]
    lines += ["", "| metric | mean | 95 % interval | scored | not scored |", "| --- | --- | --- | --- | --- |"]
    rows = warehouse.read_rows(_MEANS, {"run_id": run.run_id, "metrics": list(run.metrics)})
    lines += [_write_row(row) for row in rows]
    lines += ["", "Next:", "", "```", *_list_commands(run), "```"]
    if flow_run_url:
        lines += ["", f"[The evaluation itself, with its table of scores]({flow_run_url})"]
    return "\n".join(lines)


def describe_trigger(run: RunRow) -> str:
    """Why a run happened: `on schedule`, or which update of which knowledge base."""
    if run.trigger == "event":
        version = f" to version {run.kb_version}" if run.kb_version else ""
        n_changed = len(run.kb_changed or ())
        documents = f", {n_changed} changed document{'s' if n_changed != 1 else ''}" if n_changed else ""
        return f"because {run.kb_name} was updated{version}{documents}"
    return "on schedule" if run.trigger == "schedule" else "started by hand"


def describe_end(run: RunRow, gate: Mapping[str, Any] | None) -> str:
    """A run's end in a sentence or two, with the next command."""
    told = f"run {run.run_id} {run.status}"
    if gate is not None:
        told += f", {describe_verdict(gate)}"
    if run.problem:
        told += f": {' '.join(run.problem.split())}"
    command = _list_commands(run)[0]
    return told if command in told else f"{told}; next: {command}"


def _list_commands(run: RunRow) -> list[str]:
    show = f"evalhouse show {run.run_id}"
    return [show] if run.status == "completed" else [f"evalhouse resume {run.run_id}", show]


def _write_row(row: Mapping[str, Any]) -> str:
    mean = "–" if row["mean"] is None else write_number(row["mean"])
    low, high = row["ci_low"], row["ci_high"]
    interval = "–" if low is None else f"{write_number(low)} to {write_number(high)}"
    return f"| {_plain(row['metric'])} | {mean} | {interval} | {row['n_scored']} | {row['n_unscored']} |"


def _plain(text: str) -> str:
    """A text with nothing in it that Markdown or HTML would act on."""
    flat = " ".join(text.split())
    return "".join(f"\\{one}" if one in _MARKUP else one for one in flat)
