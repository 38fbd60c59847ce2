"""What a run's scores vary by, for `show`, `compare` and the gate: how much is questions, bot and judge, and what it
takes to see a drop."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evalhouse.flows.display.output import print_line, print_section, write_interval
from evalhouse.flows.errors import SettingsError
from evalhouse.tasks.comparing.components import POWER, describe_components
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.rows.again import list_repeats, read_components
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]


def read_noise_components(
    warehouse: Warehouse, run: RunRow, *, drops: Sequence[str] = (), power: float = POWER
) -> list[dict[str, Any]]:
    """By metric of a run that asked questions again its components, the smallest drop it shows, and plans.

    `drops` are METRIC=NUMBER texts; without any those of the run's own gate are planned for. Raises SettingsError for
    other texts, for a metric that the run has no components of, and for a run that asked nothing again.
    """
    rows = read_components(warehouse, run.run_id)
    if drops and not rows:
        raise SettingsError(_explain_none(warehouse, run))
    gate = run.config.get("gate") or {}
    wanted = _parse_drops(drops, [row["metric"] for row in rows]) if drops else gate.get("max_drop") or {}
    return describe_components(rows, wanted, power=power)


def read_components_of(warehouse: Warehouse, run: RunRow, drops: Mapping[str, float]) -> list[dict[str, Any]]:
    """The same of the metrics of which drops are limited, each planned for its limit."""
    rows = read_components(warehouse, run.run_id) if drops else []
    return describe_components([row for row in rows if row["metric"] in drops], drops)


def print_components(rows: Sequence[Row]) -> None:
    """A table of the metrics in which anything wavered, and a line for each plan."""
    if not rows:
        return
    is_known = all(row["judge_variance"] is not None for row in rows)
    parts = {"question": "questions", "bot": "bot", "judge": "judge"}
    if not is_known:
        parts = {"question": "questions", "answer": "bot and judge"}
    cells = [
        [row["metric"], row["n_repeated"], row["n_otherwise"], *(_write_part(row, part) for part in parts),
         row["smallest_drop"]]
        for row in rows
        if row["n_otherwise"] or row["n_judged_otherwise"]
    ]  # fmt: skip
    title = f"What the scores vary by: variances, and the drop of a mean that shows with {rows[0]['power']:.0%} power"
    columns = ["metric", "#asked again", "#otherwise", *parts.values(), "#drop"]
    print_section(title, columns, cells)
    if not cells:
        print_line(f"No score came out otherwise when {rows[0]['n_repeated']} questions were asked again.")
    if not is_known:
        print_line(
            "note: the judge's noise was not measured, so that bot and judge cannot be told apart; [noise] share in "
            "the suite, or --noise, measures it"
        )
    for line in list_plans(rows):
        print_line(line)


def list_plans(rows: Sequence[Row]) -> list[str]:
    """What it takes to see the drops that were asked for, a sentence each."""
    return [row["plan"]["text"] for row in rows if row["plan"]]


def describe_shares(row: Row) -> str:
    """What one metric's scores vary by, in a few words: `questions 70 %, bot 26 %, judge 4 % of the variance`."""
    if row["judge_variance"] is None:
        parts = {"questions": row["question_variance"], "bot and judge": row["answer_variance"]}
    else:
        parts = {"questions": row["question_variance"], "bot": row["bot_variance"], "judge": row["judge_variance"]}
    whole = sum(parts.values())
    shares = ", ".join(f"{name} {value / whole if whole else 0:.0%}" for name, value in parts.items())
    return f"{row['metric']} varies by {shares} of the variance ({row['n_repeated']} questions asked again)"


def _write_part(row: Row, part: str) -> str:
    return f"{row[f'{part}_variance']:.3f} ({write_interval(row[f'{part}_low'], row[f'{part}_high'])})"


def _parse_drops(texts: Sequence[str], metrics: Sequence[str]) -> dict[str, float]:
    drops = {}
    for text in texts:
        metric, separator, number = (part.strip() for part in text.partition("="))
        try:
            drop = float(number)
        except ValueError:
            drop = math.nan
        if not separator or not drop > 0 or math.isinf(drop):
            raise SettingsError(f"--drop got {text!r}; write METRIC=NUMBER with a number above 0, like factual_f1=0.02")
        if metric not in metrics:
            raise SettingsError(f"--drop: no answers were scored again by {metric!r}; {suggest(metric, metrics)}")
        drops[metric] = drop
    return drops


def _explain_none(warehouse: Warehouse, run: RunRow) -> str:
    if list_repeats(warehouse, run.run_id):
        return f"--drop: no answer of run {run.run_id} to a question asked again has a score"
    return (
        f"--drop: run {run.run_id} asked no question again, so that nobody knows how far its bot is from itself; set "
        "`repeats` in the [target] of its suite"
    )
