"""The pages of two runs side by side: their settings, what moved, whether that is more than chance, and why; verdicts
that flipped, samples, and one sample in both. The numbers are the same as in `evalhouse compare`.

A comparison of thousands of samples takes most of a second, and so do the verdicts that flipped. Both are cached until
a score of either run changes; for a running run they are computed each time.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Literal, TypeVar

import polars as pl
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from rapidfuzz.distance import LCSseq

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.charts import write_change
from evalhouse.flows.report.sections import build_pair_head, describe_parts, explain_metrics
from evalhouse.flows.results.baseline import MIN_CHANGE
from evalhouse.flows.results.comparison import name_part, write_p
from evalhouse.flows.results.headline import describe_causes, lay_against
from evalhouse.flows.results.output import explain_support, name_support, write_interval, write_json, write_value
from evalhouse.flows.results.run_facts import group_metrics, load_advice, sort_first
from evalhouse.flows.ui.pages import PageNumber, check_choice, find_warehouse, link, render, use_cached
from evalhouse.tasks.comparing.changes import WAYS, find_metric_steps, list_verdict_flips, match_items
from evalhouse.tasks.comparing.runs import Comparison, ComparisonSettings, compare_runs, rank_samples
from evalhouse.tasks.reviews.export import CorrectedPair, explain_uncorrected, pair_corrected
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.metric_files import SIGNS, load_metrics
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import WORDS, RunRow, list_runs, pick_run

T = TypeVar("T")
_PIECES: Final = re.compile(r"[\u2e80-\uffdc\U00020000-\U0003ffff]|\w+|\s+|.", re.DOTALL)
_MAX_PIECES: Final = 4000
"""Comparing takes time in proportion to the product of both lengths; longer texts are not marked."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a text; `is_other` if the other text does not have it there."""

    text: str
    is_other: bool


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both texts in pieces; None for a missing text."""

    base: Sequence[Piece] | None
    candidate: Sequence[Piece] | None
    differ: bool


def mark_changes(base: str | None, candidate: str | None) -> Sides:
    """Return the texts in pieces that are the same and pieces that are not."""
    before, after = _PIECES.findall(base or ""), _PIECES.findall(candidate or "")
    is_long = max(len(before), len(after)) > _MAX_PIECES
    if base is None or candidate is None or base == candidate or is_long:
        whole = [None if text is None else [Piece(text=text, is_other=False)] for text in (base, candidate)]
        return Sides(base=whole[0], candidate=whole[1], differ=base != candidate)
    sides: tuple[list[Piece], list[Piece]] = ([], [])
    for step in LCSseq.opcodes(before, after):
        stretches = before[step.src_start : step.src_end], after[step.dest_start : step.dest_end]
        for side, pieces in zip(sides, stretches, strict=True):
            text, is_other = "".join(pieces), step.tag != "equal"
            if not text:
                continue
            # A blank between two words that differ belongs to them.
            if not is_other and text.isspace() and side and side[-1].is_other:
                is_other = True
            if side and side[-1].is_other == is_other:
                text = side.pop().text + text
            side.append(Piece(text=text, is_other=is_other))
    return Sides(base=sides[0], candidate=sides[1], differ=True)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison, how often the judge contradicts itself by step, and the means that people's labels correct."""

    comparison: Comparison
    noise_steps: list[dict[str, Any]]
    corrected: list[CorrectedPair]


def find_pair(request: Request, base: str, candidate: str, runs: Sequence[RunRow] | None = None) -> RunPair:
    """Find the two runs; raises WarehouseError for one that does not exist, SettingsError if both are the same."""
    runs = list_runs(find_warehouse(request)) if runs is None else runs
    if not runs:
        raise WarehouseError("No run yet: two runs of `evalhouse run` can be compared here.")
    if not (base and candidate):
        raise SettingsError("No other run to compare with; name two runs.")
    if base.startswith("previous"):
        after = pick_run(runs, candidate)
        before = pick_run(runs, base, beside=after)
    else:
        before = pick_run(runs, base)
        after = pick_run(runs, candidate, beside=before)
    if before.run_id == after.run_id:
        raise SettingsError(f"both are run {after.run_id}; name two runs")
    return RunPair(find_warehouse(request), before, after)


def compare_cached(request: Request, pair: RunPair) -> Compared:
    """Return the comparison of two runs as `evalhouse compare` makes it."""

    def compare() -> Compared:
        comparison = compare_runs(pair, ComparisonSettings())
        run_ids = comparison.noise_run_ids
        return Compared(
            comparison=comparison,
            noise_steps=pair.warehouse.fetch_rows("noise/flips", {"run_id": run_ids}) if run_ids else [],
            corrected=pair_corrected(pair.warehouse, pair.base.run_id, pair.candidate.run_id),
        )

    return _cache_of_pair(request, pair, "compared", compare)


def _cache_of_pair(request: Request, pair: RunPair, what: str, read: Callable[[], T]) -> T:
    """Return what was read of a pair, unless a score of either run has changed or one of them is running."""
    is_running = "running" in (pair.base.status, pair.candidate.status)
    state = None if is_running else pair.fetch_state()
    return use_cached(request, (what, pair.base.run_id, pair.candidate.run_id), state, read)


_NAMES: Final[Mapping[str, str]] = {
    "judge": "judge",
    "embeddings": "embeddings",
    "language": "language of the prompts",
    "plan": "how the judge is asked",
    "dataset": "dataset",
    "dataset_hash": "content of the dataset",
    "kb_name": "knowledge base",
    "kb_version": "version of the knowledge base",
    "kb_changed": "documents that changed in it",
    "suite": "suite",
    "suite_hash": "content of the suite's file",
    "code_version": "version of the code",
    "tags": "tags",
    "metrics": "metrics",
    "status": "status",
}
_ELSEWHERE: Final = frozenset(field.name for field in fields(RunRow)) | {"plan"}
"""Settings that the runs' own columns have as well."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting or a property of both runs, in words of a page."""

    name: str
    base: str
    candidate: str

    @property
    def differs(self) -> bool:
        """Return True if it differs between the runs."""
        return self.base != self.candidate


def list_differences(pair: RunPair) -> list[Difference]:
    """List all properties of both runs, in the order of a page, and the settings that either run has."""
    differences = []
    for column, name in _NAMES.items():
        differences.append(
            Difference(
                name=name, base=_write(getattr(pair.base, column)), candidate=_write(getattr(pair.candidate, column))
            )
        )
    # By step the prompts and the models that answered, where either run asked.
    sides: dict[str, dict[bool, Mapping[str, Any]]] = {}
    for row in pair.fetch("prompts").to_dicts():
        sides.setdefault(row["step"], {})[row["of_candidate"]] = row
    for column, what in (("prompts", "prompt"), ("models", "model that answered")):
        for step, rows in sides.items():
            before, after = (rows.get(side, {}).get(column) for side in (False, True))
            # A run that took every reply from the record heard from no model, which is not another one.
            if (before or after) and (column == "prompts" or (before and after)):
                differences.append(Difference(name=f"{what}, {step}", base=_write(before), candidate=_write(after)))
    for name in dict.fromkeys((*pair.base.config, *pair.candidate.config)):
        if name not in _ELSEWHERE:
            before, after = (run.config.get(name) for run in (pair.base, pair.candidate))
            differences.append(Difference(name=f"setting {name}", base=_write(before), candidate=_write(after)))
    return differences


def _write(value: object) -> str:
    if isinstance(value, tuple | list) and all(isinstance(entry, str) for entry in value):
        return ", ".join(value) or "–"
    return write_json(value, indent=False) if isinstance(value, dict | list) else write_value(value)


router = APIRouter()
_MAX_CHOICES: Final = 200
_MAX_MOVED: Final = 10
_MAX_SCORES: Final = 3
_MAX_LETTERS: Final = 300


def show_pair(request: Request, *, base: str, candidate: str, by: str) -> Response:
    """Show two runs, each by any name that the commands take; with one alone the other is of its series."""
    runs = list_runs(find_warehouse(request))
    if runs and not (base and candidate):
        # The run before CANDIDATE in its series, or the newest of BASE's; without either the newest run's own.
        with suppress(WarehouseError):
            named = pick_run(runs, candidate or base or "latest")
            of_series = [run for run in runs if run.series is not None and run.series == named.series]
            earlier = [run for run in of_series if run.started_at < named.started_at]
            before, after = (named, next(iter(of_series), named)) if base else (next(iter(earlier), named), named)
            if before != after:
                return RedirectResponse(link("/compare", base=before.run_id, candidate=after.run_id), 303)
    try:
        pair = find_pair(request, base, candidate, runs)
    except (WarehouseError, SettingsError) as error:
        form = describe_form(runs, base, candidate)
        return render(request, "pair.html", 404 if base else 200, form=form, pair=None, problem=str(error))
    compared_runs = compare_cached(request, pair)
    comparison = compared_runs.comparison
    names = sort_first([compared.metric for compared in comparison.metrics])
    check_choice("by", by, names)
    compared = {metric.metric: metric for metric in comparison.metrics}
    rows = {}
    for name in names:
        metric, paired = compared[name], compared[name].paired
        rows[name] = {
            "name": name,
            "is_low": metric.better == "low",
            "base": write_value(metric.common_base),
            "candidate": write_value(metric.common_candidate),
            "difference": write_change(paired.difference),
            "interval": write_interval(paired.ci_low, paired.ci_high),
            "floor": write_value(metric.noise_floor) if metric.noise_floor else None,
            "p": write_p(paired.p_adjusted),
            "verdict": paired.verdict,
            "n": paired.n,
            "n_higher": paired.n_higher,
            "n_lower": paired.n_lower,
            "scored_base": f"{metric.n_base:,} ({metric.coverage_base:.0%})",
            "scored_candidate": f"{metric.n_candidate:,} ({metric.coverage_candidate:.0%})",
        }
    # What was judged twice by step and by metric, and how often otherwise; empty without noise runs.
    noise_rows = [
        {
            "name": step["step"],
            "n": step["n_items"],
            "n_otherwise": step["n_flipped"],
            "share": step["flip_rate"],
            "deviation": None,
        }
        for step in compared_runs.noise_steps
    ]
    for metric in comparison.metrics:
        noise = metric.noise.measured if metric.noise else None
        if noise and compared_runs.noise_steps:
            noise_rows.append(
                {
                    "name": metric.metric,
                    "n": noise.n_pairs,
                    "n_otherwise": noise.n_changed,
                    "share": noise.n_changed / noise.n_pairs,
                    "deviation": write_value(noise.deviation),
                }
            )
    return render(
        request,
        "pair.html",
        form=describe_form(runs, base, candidate, pair),
        problem=None,
        pair=pair,
        comparison=comparison,
        head=build_pair_head(lay_against(pair, "the base", lambda _: comparison)),
        causes=[row for row in describe_causes(comparison) if row["n_base"] or row["n_candidate"]],
        differences=list_differences(pair),
        metrics=rows,
        groups=group_metrics(names, pair.candidate.config),
        parts=describe_parts(comparison, names),
        meanings=explain_metrics(names, load_metrics()),
        noise=noise_rows,
        corrected=compared_runs.corrected,
        corrected_note=explain_uncorrected(pair.candidate.metrics) if compared_runs.corrected else (),
        by_choices={name: name for name in names},
        by=by,
        moved=describe_moved(pair, comparison, rank_samples(comparison.moves, by or None)[:_MAX_MOVED]),
        n_moved=comparison.moves["sample_id"].n_unique(),
    )


def describe_form(runs: Sequence[RunRow], base: str, candidate: str, pair: RunPair | None = None) -> dict[str, Any]:
    """Return the values of the form, and the runs it offers, with the runs of the same series first."""
    near = pair.candidate if pair else next((run for run in runs if run.run_id in (base, candidate)), None)
    evaluations = [run for run in runs if run.kind == "evaluation"]
    ordered = sorted(evaluations, key=lambda run: near is None or run.series is None or run.series != near.series)
    choices = [
        {
            "value": run.run_id,
            "text": " · ".join(
                filter(None, (run.label, run.suite_name or run.dataset, f"{run.started_at:%Y-%m-%d %H:%M}", run.status))
            ),
        }
        for run in ordered[:_MAX_CHOICES]
    ]
    return {"base": base, "candidate": candidate, "choices": choices, "words": WORDS}


def describe_moved(pair: RunPair, comparison: Comparison, sample_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return these samples with questions, answers, causes and the scores that moved, the furthest first."""
    texts: dict[str, dict[bool, dict[str, Any]]] = {sample_id: {} for sample_id in sample_ids}
    for row in pair.fetch("texts", {"sample_id": sample_ids}).to_dicts():
        texts[row["sample_id"]][row["of_candidate"]] = row
    of_samples = pl.col("sample_id").is_in(list(sample_ids))
    causes = {row["sample_id"]: row for row in pair.fetch("causes").filter(of_samples).to_dicts()}
    advice = load_advice("en")
    moves: dict[str, list[dict[str, Any]]] = {sample_id: [] for sample_id in sample_ids}
    # A score that only one run has counts as moved by 1.
    size = (pl.col("candidate") - pl.col("base")).abs().fill_null(1.0)
    for row in comparison.moves.filter(of_samples).sort(size, descending=True, maintain_order=True).to_dicts():
        moves[row["sample_id"]].append(row)
    described = []
    for sample_id in sample_ids:
        before, after = (texts[sample_id].get(side, {}) for side in (False, True))
        answers = (row.get("answer") and shorten(row["answer"], _MAX_LETTERS) for row in (before, after))
        cause = causes.get(sample_id)
        described.append(
            {
                "sample_id": sample_id,
                "question": after.get("question"),
                "answers": mark_changes(*answers),
                "causes": cause and [advice[cause[side]].name for side in ("base", "candidate")],
                "scores": [
                    {
                        "metric": row["metric"],
                        "base": write_value(row["base"]),
                        "candidate": write_value(row["candidate"]),
                        "because": name_part(row["changed"]),
                    }
                    for row in moves[sample_id][:_MAX_SCORES]
                ],
                "n_scores": len(moves[sample_id]),
                "link": link("/compare/sample", base=pair.base.run_id, candidate=pair.candidate.run_id, id=sample_id),
            }
        )
    return described


_ROWS: Final = 25
_TITLES: Final = {
    "moved": "Samples that moved",
    "base": "Samples only in the base",
    "candidate": "Samples only in the candidate",
}


@router.get("/compare/samples")
def show_samples(
    request: Request,
    base: str,
    candidate: str,
    *,
    which: Literal["moved", "base", "candidate"] = "moved",
    by: str = "",
    page: PageNumber = 1,
) -> Response:
    """Show the samples with another score, or the samples of only one of the runs, a page at a time."""
    pair = find_pair(request, base, candidate)
    comparison = compare_cached(request, pair).comparison
    names = sort_first([compared.metric for compared in comparison.metrics])
    check_choice("by", by, names)
    if which == "moved":
        ranked = rank_samples(comparison.moves, by or None)
    else:
        other = "candidate" if which == "base" else "base"
        ranked = pair.fetch("samples").filter(pl.col(f"in_{which}") & ~pl.col(f"in_{other}"))["sample_id"].to_list()
    start = (page - 1) * _ROWS
    shown = ranked[start : start + _ROWS]
    if which == "moved":
        samples = describe_moved(pair, comparison, shown)
    else:
        run_id = pair.base.run_id if which == "base" else pair.candidate.run_id
        questions = {row["sample_id"]: row["question"] for row in pair.fetch("texts", {"sample_id": shown}).to_dicts()}
        samples = [
            {
                "sample_id": sample_id,
                "question": questions.get(sample_id),
                "link": link(f"/runs/{run_id}/sample", id=sample_id),
            }
            for sample_id in shown
        ]
    given = {"base": base, "candidate": candidate, "which": which, "by": by}
    return render(
        request,
        "pair_samples.html",
        pair=pair,
        given=given,
        title=_TITLES[which],
        titles=_TITLES,
        choices={name: name for name in names},
        samples=samples,
        n=len(ranked),
        start=start,
        page=page,
        n_pages=-(-len(ranked) // _ROWS),
        address=lambda number: link("/compare/samples", **given, page=number),
    )


_PATH: Final = "/compare/verdicts"
_REASONS: Final = {"classify": "label_reason", "attribute": "support_reason"}


@router.get(_PATH)
def show_flips(
    request: Request,
    base: str,
    candidate: str,
    *,
    step: str = "",
    way: str = "",
    metric: str = "",
    around: str = "",
    page: PageNumber = 1,
) -> Response:
    """Show the verdicts that fit all that is given, a page at a time; a table above counts them by step and way."""
    pair = find_pair(request, base, candidate)
    flips = _cache_of_pair(request, pair, "flips", partial(list_verdict_flips, pair))
    # By metric of either run the steps it rests on, where one of them has a verdict that flipped.
    there = frozenset(flips["step"].unique())
    steps = find_metric_steps(pair)
    wanted = {*pair.base.metrics, *pair.candidate.metrics}
    metrics = {name: of_metric for name, of_metric in steps.items() if name in wanted and of_metric & there}
    check_choice("metric", metric, metrics)
    given = {"base": base, "candidate": candidate, "metric": metric, "around": around}
    counted = flips
    if metric:
        counted = counted.filter(pl.col("step").is_in(list(metrics[metric])))
    if around:
        counted = counted.filter(pl.col("around") == around)
    found = counted
    if step:
        found = found.filter(pl.col("step") == step)
    if way:
        found = found.filter(pl.col("way") == way)
    shown = found.slice((page - 1) * _ROWS, _ROWS)
    # A row per step: how many came to be worse and better, each with the address of just these.
    counts = {(step, way): n for step, way, n in counted.group_by("step", "way").len().sort("step", "way").iter_rows()}
    # What was judged, by run, sample, source and name: statements, contexts and ratings, with their reasons.
    items: dict[tuple[bool, str, str, str], Mapping[str, Any]] = {}
    if len(shown):
        sample_ids = shown["sample_id"].unique().to_list()
        named = [
            *((row["source"], row["statement_id"], row) for row in pair.fetch_statements(sample_ids).to_dicts()),
            *(
                ("context", str(row["context_rank"]), row)
                for row in pair.fetch("contexts", {"sample_id": sample_ids}).to_dicts()
            ),
            *(("rating", row["text"], row) for row in pair.fetch("grades", {"sample_id": sample_ids}).to_dicts()),
        ]
        items = {(row["of_candidate"], row["sample_id"], source, name): row for source, name, row in named}
    rows = []
    for row in shown.to_dicts():
        sides = {
            side: items.get((side == "candidate", row["sample_id"], row["source"], row[f"{side}_id"]), {})
            for side in ("base", "candidate")
        }
        reason = _REASONS.get(row["step"].partition("_")[0], "reason")
        rows.append(
            row
            | {
                "text": sides["candidate"].get("text"),
                "step": row["step"].replace("_", " "),
                "around": name_part(row["around"]),
                "sides": [
                    {"name": side, "verdict": row[side], "id": row[f"{side}_id"], "reason": item.get(reason)}
                    for side, item in sides.items()
                ],
                "link": link("/compare/sample", base=given["base"], candidate=given["candidate"], id=row["sample_id"]),
            }
        )
    return render(
        request,
        "pair_flips.html",
        pair=pair,
        given={**given, "step": step, "way": way},
        counts=[
            {
                "step": step.replace("_", " "),
                "ways": [
                    {"way": way, "n": counts.get((step, way), 0), "link": link(_PATH, **given, step=step, way=way)}
                    for way in WAYS
                ],
            }
            for step in dict.fromkeys(step for step, _ in counts)
        ],
        n_all=len(flips),
        n=len(found),
        rows=rows,
        start=(page - 1) * _ROWS,
        page=page,
        n_pages=-(-len(found) // _ROWS),
        address=lambda number: link(_PATH, **given, step=step, way=way, page=number),
        choices={
            "step": {name: name.replace("_", " ") for name in sorted(flips["step"].unique())},
            "way": {name: name for name in WAYS},
            "metric": {name: name for name in sorted(metrics)},
            "around": {name: name_part(name) for name in sorted(flips["around"].unique())},
        },
    )


_SECTIONS: Final = {
    "answer": "Statements of the answer",
    "ground_truth": "Statements of the ground truth",
    "context": "Contexts",
    "rating": "Ratings",
}
_TAGS: Final = {"TP": "is-tp", "FP": "is-fp", "FN": "is-fn"}
_TEXTS: Final = {"question": "Question", "answer": "Answer", "ground_truth": "Ground truth"}


@router.get("/compare/sample")
def show_sample(request: Request, base: str, candidate: str, id: str) -> Response:  # as in the address
    """Show one sample that both runs have."""
    pair = find_pair(request, base, candidate)
    texts = {row["of_candidate"]: row for row in pair.fetch("texts", {"sample_id": [id]}).to_dicts()}
    if len(texts) < 2:
        where = ", ".join(
            side.run_id for is_there, side in ((False, pair.base), (True, pair.candidate)) if is_there in texts
        )
        raise HTTPException(404, f"sample {id!r} is {f'only in {where}' if where else 'in neither run'}")
    items = match_items(
        statements=pair.fetch_statements([id]),
        contexts=pair.fetch("all_contexts", sample_id=id),
        grades=pair.fetch("grades", {"sample_id": [id]}),
    ).get(id, [])
    # The differences in the sample, or in how it was judged.
    steps = pair.list_changed_judges(id)
    names = [name.replace("_", " ") for name in (*_TEXTS, "contexts") if texts[False][name] != texts[True][name]]
    rows = {row["metric"]: row for row in pair.fetch("sample_scores", sample_id=id).to_dicts()}
    scores = []
    for name in sort_first(list(rows)):
        row = rows[name]
        written = []
        for value, reason in ((row["base"], row["base_reason"]), (row["candidate"], row["candidate_reason"])):
            written.append(reason.replace("_", " ") if value is None and reason else write_value(value))
        change, tone = None, ""
        if row["base"] is not None and row["candidate"] is not None:
            change = row["candidate"] - row["base"]
            if abs(change) >= MIN_CHANGE:
                tone = ("", "better", "worse")[SIGNS[row["better"]] * (1 if change > 0 else -1)]
        scores.append(
            {
                "metric": name,
                "base": written[0],
                "candidate": written[1],
                "change": write_change(change),
                "tone": tone,
            }
        )
    # Both sides of each thing that was judged; a text is shown once where it is the same.
    sections: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _SECTIONS}
    for item in items:
        before, after = item.base, item.candidate
        marked = mark_changes(before["text"] if before else None, after["text"] if after else None)
        sections[item.kind].append(
            {
                "change": item.change,
                "is_same": item.change in ("same", "moved"),
                "text": None if marked.differ else marked.candidate,
                "sides": [
                    {"name": name, "pieces": pieces if marked.differ else None, **describe_side(item.kind, side)}
                    for name, side, pieces in (("base", before, marked.base), ("candidate", after, marked.candidate))
                ],
            }
        )
    return render(
        request,
        "pair_sample.html",
        pair=pair,
        given={"base": base, "candidate": candidate},
        sample_id=id,
        links={run.run_id: link(f"/runs/{run.run_id}/sample", id=id) for run in (pair.base, pair.candidate)},
        texts={title: mark_changes(texts[False][name], texts[True][name]) for name, title in _TEXTS.items()},
        changed=[*names, *([f"judge, prompt or model ({', '.join(steps)})"] if steps else [])],
        scores=scores,
        sections=[{"title": title, "rows": sections[kind]} for kind, title in _SECTIONS.items()],
    )


def describe_side(kind: str, side: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the tags of one side, each with its colour, and its reasons; `is_there` is False where it is missing."""
    if side is None:
        return {"is_there": False, "tags": (), "reasons": ()}
    if kind == "rating":
        return {
            "is_there": True,
            "tags": ((f"{side['rating']:g} of {side['scale_max']:g}", ""),),
            "reasons": (side["reason"],),
        }
    if kind == "context":
        tags = [(f"C{side['context_rank']}", "")]
        if side["useful"] is not None:
            tags.append(("useful", "is-tp") if side["useful"] else ("not useful", "is-fn"))
        return {"is_there": True, "tags": tags, "reasons": (side["reason"],)}
    tags = [(side["statement_id"], "")]
    if side["label"]:
        tags.append((side["label"], _TAGS[side["label"]]))
    if side["supported"] is not None:
        tags.append((f"in {name_support(side)}", "is-tp") if side["supported"] else ("unsupported", "is-fp"))
    return {
        "is_there": True,
        "tags": tags,
        "reasons": (side["label_reason"], explain_support(side, side["support_reason"])),
    }
