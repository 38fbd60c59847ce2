"""Two runs side by side: what moved, whether that is more than chance, and why.

Everything `evalhouse compare` says of two runs; verdicts that flipped, samples and one of them have pages of their own.
"""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from evalhouse.flows.display.output import write_interval, write_value
from evalhouse.flows.documents.comparison import name_part, write_p
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.charts import write_change
from evalhouse.flows.report.head import build_pair_head, explain_metrics, lay_against, sort_headline
from evalhouse.flows.report.sections import describe_parts
from evalhouse.flows.ui.pages import check_choice, find_warehouse, link, render
from evalhouse.flows.ui.pair.differences import list_differences
from evalhouse.flows.ui.pair.kept import Compared, compare_kept, find_pair
from evalhouse.tasks.comparing.runs import Comparison, MetricComparison, rank_samples
from evalhouse.tasks.reviews.corrected_means import explain_uncorrected
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import WORDS, RunRow, list_runs, pick_run

router = APIRouter()
_MOST_CHOICES: Final = 200
_MOST_MOVED: Final = 10
_MOST_SCORES: Final = 6


@router.get("/compare")
def show_pair(request: Request, base: str = "", candidate: str = "", by: str = "") -> Response:
    """Two runs, each by whatever the commands take for one; with one of them alone it is the other of its series."""
    runs = list_runs(find_warehouse(request))
    if not (base and candidate) and (completed := _complete(runs, base, candidate)):
        return RedirectResponse(link("/compare", base=completed[0], candidate=completed[1]), 303)
    try:
        pair = find_pair(request, base, candidate, runs)
    except (WarehouseError, SettingsError) as error:
        form = describe_form(runs, base, candidate)
        return render(request, "pair.html", 404 if base else 200, form=form, pair=None, problem=str(error))
    kept = compare_kept(request, pair)
    comparison = kept.comparison
    names = sort_headline([compared.metric for compared in comparison.metrics])
    check_choice("by", by, names)
    compared = {one.metric: one for one in comparison.metrics}
    return render(
        request,
        "pair.html",
        form=describe_form(runs, base, candidate, pair),
        problem=None,
        pair=pair,
        comparison=comparison,
        head=build_pair_head(lay_against(pair, "the base", lambda _: comparison)),
        differences=list_differences(pair),
        metrics=[describe_metric(compared[name]) for name in names],
        parts=describe_parts(comparison, names),
        retrieval=[finding.describe() for finding in comparison.retrieval],
        meanings=explain_metrics(names, load_metrics()),
        noise=describe_noise(kept),
        corrected=kept.corrected,
        corrected_note=explain_uncorrected(pair.candidate.metrics) if kept.corrected else (),
        by_choices={name: name for name in names},
        by=by,
        moved=describe_moved(pair, comparison, rank_samples(comparison.moves, by or None)[:_MOST_MOVED]),
        n_moved=comparison.moves["sample_id"].n_unique(),
    )


def _complete(runs: Sequence[RunRow], base: str, candidate: str) -> tuple[str, str] | None:
    """The run before CANDIDATE in its series, or the newest of BASE's; without either the newest run's own."""
    if not runs:
        return None
    try:
        named = pick_run(runs, candidate or base or "latest")
    except WarehouseError:
        return None
    of_series = [run for run in runs if is_of_series(run, named)]
    if base and not candidate:
        return (named.run_id, of_series[0].run_id) if of_series and of_series[0] != named else None
    earlier = [run for run in of_series if run.started_at < named.started_at]
    return (earlier[0].run_id, named.run_id) if earlier else None


def is_of_series(run: RunRow, other: RunRow) -> bool:
    """Whether both are evaluations that are compared from night to night, as `run_series` has them."""
    return run.series is not None and run.series == other.series


def describe_form(runs: Sequence[RunRow], base: str, candidate: str, pair: RunPair | None = None) -> dict[str, Any]:
    """What stands in the form, and the runs it offers: those of the same series first."""
    near = pair.candidate if pair else next((run for run in runs if run.run_id in (base, candidate)), None)
    evaluations = [run for run in runs if run.kind == "evaluation"]
    ordered = sorted(evaluations, key=lambda run: not (near and is_of_series(run, near)))
    choices = [
        {
            "value": run.run_id,
            "text": " · ".join(
                filter(None, (run.label, run.suite or run.dataset, f"{run.started_at:%Y-%m-%d %H:%M}", run.status))
            ),
        }
        for run in ordered[:_MOST_CHOICES]
    ]
    return {"base": base, "candidate": candidate, "choices": choices, "words": WORDS}


def describe_metric(compared: MetricComparison) -> dict[str, Any]:
    """A row of the scores."""
    paired = compared.paired
    return {
        "name": compared.metric,
        "is_low": compared.better == "low",
        "base": write_value(compared.common_base),
        "candidate": write_value(compared.common_candidate),
        "difference": write_change(paired.difference),
        "interval": write_interval(paired.ci_low, paired.ci_high),
        "floor": write_value(compared.noise_floor) if compared.noise_floor else None,
        "p": write_p(paired.p_adjusted),
        "verdict": paired.verdict,
        "n": paired.n,
        "n_higher": paired.n_higher,
        "n_lower": paired.n_lower,
        "scored_base": f"{compared.n_base:,} ({compared.coverage_base:.0%})",
        "scored_candidate": f"{compared.n_candidate:,} ({compared.coverage_candidate:.0%})",
    }


def describe_noise(kept: Compared) -> list[dict[str, Any]]:
    """What was judged twice by step and by metric, and how often otherwise; none without noise runs."""
    steps = [
        {"name": step["step"], "n": step["n_items"], "n_otherwise": step["n_flipped"], "share": step["flip_rate"]}
        for step in kept.noise_steps
    ]
    metrics = [(compared.metric, compared.noise.measured) for compared in kept.comparison.metrics if compared.noise]
    return steps + [
        {
            "name": name,
            "n": noise.n_pairs,
            "n_otherwise": noise.n_changed,
            "share": noise.n_changed / noise.n_pairs,
            "deviation": write_value(noise.deviation),
        }
        for name, noise in metrics
        if noise and kept.noise_steps
    ]


def describe_moved(pair: RunPair, comparison: Comparison, sample_ids: Sequence[str]) -> list[dict[str, Any]]:
    """These samples with their questions and the scores that moved, the furthest first."""
    questions = {row["sample_id"]: row["question"] for row in pair.read_texts(sample_ids).to_dicts()}
    moves: dict[str, list[dict[str, Any]]] = {sample_id: [] for sample_id in sample_ids}
    for row in comparison.moves.to_dicts():
        if row["sample_id"] in moves:
            moves[row["sample_id"]].append(row)
    return [
        {
            "sample_id": sample_id,
            "question": questions.get(sample_id),
            "scores": [
                {
                    "metric": row["metric"],
                    "base": write_value(row["base"]),
                    "candidate": write_value(row["candidate"]),
                    "because": name_part(row["changed"]),
                }
                for row in sorted(moves[sample_id], key=_measure_move, reverse=True)[:_MOST_SCORES]
            ],
            "n_scores": len(moves[sample_id]),
            "link": link("/compare/sample", base=pair.base.run_id, candidate=pair.candidate.run_id, id=sample_id),
        }
        for sample_id in sample_ids
    ]


def _measure_move(row: dict[str, Any]) -> float:
    return 1.0 if row["base"] is None or row["candidate"] is None else abs(row["candidate"] - row["base"])
