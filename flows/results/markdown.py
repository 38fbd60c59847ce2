"""A gate as a comment on a pull request: what changed in one sentence, main metrics, causes that grew, and samples.

Names, labels and statements are texts of others: they are in code spans, where no markup, mention or HTML is read.
They are cut, and so is the table of checks: GitHub refuses a comment of more than 65,536 characters.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalhouse.flows.results.comparison import name_metric, write_difference
from evalhouse.flows.results.gate import (
    SIDES,
    Document,
    describe_verdict,
    lay_out_checks,
    list_baseline,
    list_explanations,
)
from evalhouse.flows.results.headline import describe_causes, lay_against, write_headline
from evalhouse.flows.results.output import write_count, write_dollars, write_interval, write_value
from evalhouse.flows.results.run_facts import FIRST
from evalhouse.tasks.comparing.changes import Flip, find_flips
from evalhouse.tasks.comparing.runs import ComparisonSettings, MetricComparison, compare_runs, rank_samples
from evalhouse.warehouse.messages import clean_text, cut, shorten
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_TICKS = re.compile(r"`+")
_OF_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~@])")
# What may not be in the name of a series within an HTML comment.
_NOT_NAME = re.compile(r"[^\w.:/-]+|--+")
_MARKS = {"failed": "❌ failed", "undecided": "❔ undecided", "passed": "✅ passed"}
_MAX_SAMPLES = 10
_MAX_FLIPS = 4
_MAX_CHECKS = 50
_MAX_TEXT = 200
_MAX_LINE = 600
# GitHub makes a mention or a link of these, escaped or not, but not with a mark of no width within.
_LINKED = re.compile(r"(?<=@)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_WORD_JOINER = "\u2060"
_SEEN = ("label", "supported", "useful", "rating")


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes since another run: the sentence on top, the main metrics, the causes that grew, and the samples that
    moved most, with their question and the items whose verdict changed."""

    sentence: str
    metrics: Sequence[MetricComparison]
    causes: Sequence[Mapping[str, Any]]
    samples: Mapping[str, tuple[str, Sequence[Flip]]]


def find_changes(warehouse: Warehouse, base: RunRow, run: RunRow) -> Changes:
    """Find what changed from a run to another one."""
    pair = RunPair(warehouse, base, run)
    comparison = compare_runs(pair, ComparisonSettings())
    headline = write_headline(lay_against(pair, "the baseline", lambda _: comparison))
    ranked = rank_samples(comparison.moves)
    flips = find_flips(**pair.fetch_verdicts(ranked))
    changed = {
        sample_id: [flip for flip in of_sample if flip.change != "moved"] for sample_id, of_sample in flips.items()
    }
    moved = [sample_id for sample_id in ranked if changed.get(sample_id)][:_MAX_SAMPLES]
    questions = {
        row["sample_id"]: str(row["question"])
        for row in pair.fetch("texts", {"sample_id": moved}).to_dicts()
        if row["of_candidate"]
    }
    by_name = {compared.metric: compared for compared in comparison.metrics if compared.paired.n}
    return Changes(
        sentence=headline.sentence,
        metrics=[by_name[name] for name in FIRST if name in by_name],
        causes=[cause for cause in describe_causes(comparison) if cause["n_candidate"] > cause["n_base"]],  # type: ignore[operator]
        samples={sample_id: (questions.get(sample_id, ""), changed[sample_id]) for sample_id in moved},
    )


def write_markdown(
    document: Document, changes: Changes | None = None, *, cost_usd: float | None = None, report_url: str | None = None
) -> str:
    """Return a gate as Markdown: the verdict, what changed, the runs, warnings, a table of all checks, and samples."""
    mark = "✅" if document["outcome"] == "passed" else "❌"
    # By its first line the comment of the run before is found, which this one renews.
    series = _NOT_NAME.sub("-", document["run"]["suite"] or document["run"]["dataset"] or "")
    lines = [f"<!-- evalhouse {series} -->", f"### {mark} evalhouse {describe_verdict(document)}", ""]
    if changes is not None:
        lines += [f"**{_escape(cut(changes.sentence, _MAX_LINE))}.**", ""]
    for side in SIDES:
        if run := document[side]:
            label = f" ({_quote(run['label'])})" if run["label"] else ""
            lines.append(
                f"- {side}: {_quote(run['run_id'])}{label}, {run['n_samples']} samples of {_quote(run['dataset'])}, "
                f"judge {_quote(run['judge'])}"
            )
    lines += [f"- {_quote(line, _MAX_LINE)}" for line in list_baseline(document)]
    lines += [f"- ⚠️ {_quote(warning, _MAX_LINE)}" for warning in document["warnings"]]
    lines += [f"- {_quote(line, _MAX_LINE)}" for line in list_explanations(document)]
    if cost_usd is not None:
        lines.append(f"- cost: {write_dollars(cost_usd)}")
    if report_url is not None:
        lines.append(f"- [report]({report_url})")
    if changes is not None and changes.metrics:
        rows = [
            [_quote(one.metric), write_value(one.common_base), write_value(one.common_candidate),
             write_difference(one.paired.difference), write_interval(one.paired.ci_low, one.paired.ci_high),
             one.paired.verdict]
            for one in changes.metrics
        ]  # fmt: skip
        columns = ["metric", "#baseline", "#now", "#difference", "95 % interval", "verdict"]
        lines += ["", *_write_table(columns, rows)]
    if changes is not None and changes.causes:
        rows = [[cause["name"], str(cause["n_base"]), str(cause["n_candidate"])] for cause in changes.causes]
        lines += ["", *_write_table(["cause that grew", "#baseline", "#now"], rows)]
    # The name of a slice is a value of the dataset, and the detail of a check may repeat one.
    checks = [
        {
            **check,
            "outcome": _MARKS[check["outcome"]],
            "metric": _quote(name_metric(check)),
            "by_column": None,
            "detail": _escape(shorten(check["detail"], _MAX_TEXT)),
        }
        for check in document["checks"][:_MAX_CHECKS]
    ]
    lines += ["", *_write_table(*lay_out_checks(checks))]
    if n_more := len(document["checks"]) - len(checks):
        lines += ["", f"and {write_count(n_more, 'more check')}"]
    if changes is not None and changes.samples:
        what = write_count(len(changes.samples), "sample")
        lines += ["", f"<details><summary>{what} whose verdicts changed, the largest moves first</summary>", ""]
        for sample_id, (question, flips) in changes.samples.items():
            lines.append(f"- {_quote(sample_id)}: {_quote(question)}")
            lines += [f"  - {_write_flip(flip)}" for flip in flips[:_MAX_FLIPS]]
            if len(flips) > _MAX_FLIPS:
                lines.append(f"  - and {len(flips) - _MAX_FLIPS} more")
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table; `#` before a column sets its numbers to the right."""
    lines = [f"| {' | '.join(column.removeprefix('#') for column in columns)} |"]
    lines.append(f"|{'|'.join('--:' if column.startswith('#') else '---' for column in columns)}|")
    for row in rows:
        cells = [cell.replace("|", r"\|") for cell in row]  # a bar ends a cell even in a code span
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _write_flip(flip: Flip) -> str:
    """Return one changed item: `FP, new`, or its verdict before and now, and its text."""
    sides = [
        "–"
        if item is None
        else ", ".join(_name_verdict(name, value) for name in _SEEN if (value := item.get(name)) is not None)
        for item in (flip.base, flip.candidate)
    ]
    item: Mapping[str, Any] = flip.candidate or flip.base or {}
    text = _quote(str(item.get("text") or ""))
    return f"{flip.kind.replace('_', ' ')}: {sides[0]} → {sides[1]}: {text}"


def _name_verdict(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return str(value)


def _escape(sentence: str) -> str:
    """Return a sentence, which may name runs and suites, with a backslash before each sign of Markdown."""
    return _LINKED.sub(_WORD_JOINER, _OF_MARKDOWN.sub(r"\\\1", clean_text(sentence)))


def _quote(text: str | None, max_length: int = _MAX_TEXT) -> str:
    """Return a code span on one line, with a fence that is longer than any within."""
    flat = shorten(clean_text(text or ""), max_length)
    if not flat:
        return "–"
    fence = "`" * (max((len(run) for run in _TICKS.findall(flat)), default=0) + 1)
    padding = " " if "`" in (flat[0], flat[-1]) else ""
    return f"{fence}{padding}{flat}{padding}{fence}"
