"""`evalhouse compare`: what moved between two runs, whether that is more than chance, and why."""

from dataclasses import asdict
from typing import Any

import click
import polars as pl

from evalhouse.flows.commands.options import JSON_OPTION, SEED_OPTION, WAREHOUSE_OPTION, count_option
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.comparison import corrected_pair_table, print_comparison, read_noise_components
from evalhouse.flows.results.output import print_json, print_line, print_table
from evalhouse.flows.results.run_origin import find_other_run
from evalhouse.tasks.comparing.changes import find_flips
from evalhouse.tasks.comparing.intervals import ALPHA
from evalhouse.tasks.comparing.runs import (
    Comparison,
    ComparisonSettings,
    MetricComparison,
    compare_all_answers,
    compare_runs,
    rank_samples,
)
from evalhouse.tasks.reviews.export import pair_corrected
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import CLUSTER_COLUMNS, NO_CLUSTER
from evalhouse.warehouse.rows.scores import read_flips
from evalhouse.warehouse.store import Warehouse

_RUN_COLUMNS = (
    "run_id", "status", "suite", "label", "dataset", "dataset_hash", "judge", "embeddings", "language", "kb_name",
    "kb_version", "started_at", "n_samples",
)  # fmt: skip


@click.command()
@click.argument("base", metavar="[BASE]", default="previous")
@click.argument("candidate", metavar="[CANDIDATE]", default="latest")
@click.option(
    "--cluster",
    metavar="COLUMN",
    help="Metadata column whose values group samples that are not independent, such as those of one conversation; "
    f"`{NO_CLUSTER}` for none. Default: the first of {', '.join(CLUSTER_COLUMNS)} that all samples have.",
)
@click.option("--sample", metavar="ID", help="Show this sample alone, with its texts.")
@count_option("--top", default=3, text="Samples to show whose scores moved most; --json has all.")
@click.option("--by", metavar="METRIC", help="The metric that says which samples moved most. Default: all together.")
@SEED_OPTION
@WAREHOUSE_OPTION
@JSON_OPTION
def compare(
    *,
    base: str,
    candidate: str,
    cluster: str | None,
    sample: str | None,
    top: int,
    by: str | None,
    seed: int,
    warehouse: Warehouse,
    as_json: bool,
) -> None:
    """Compare the run CANDIDATE with the run BASE: what moved, whether that is chance, and why.

    Both are run ids, unique prefixes of one, labels, `latest`, `previous`, `latest-completed`, or one of these words of
    a suite, such as `latest:SUITE`. Without them `previous` is compared with `latest`.

    Means, differences and tests are over the samples that both runs scored: a 95 % interval, and a sign-flip test
    whose p is adjusted over all metrics. The whole change of a mean is then split by what changed in its samples:
    answers, contexts, ground truths, the judge, the formula, which samples there are, or nothing, which is the judge's
    own noise.

    Where the runs asked questions again it is also said what the scores vary by, and what the difference is over all
    answers.

    The noise floor is what that noise alone reaches in 95 of 100 comparisons, by the runs of `evalhouse run --noise`.
    It explains a change and decides nothing. A judge that scores the same texts otherwise than it did is warned of.
    """
    base_run = find_run(warehouse, base)
    pair = RunPair(warehouse, base_run, find_other_run(warehouse, base_run, candidate, sides="BASE and CANDIDATE"))
    settings = ComparisonSettings(cluster=cluster, seed=seed)
    comparison = compare_runs(pair, settings)
    metrics = [compared.metric for compared in comparison.metrics]
    if by is not None and by not in metrics:
        raise SettingsError(f"--by: neither run has a metric {by!r}; {suggest(by, metrics)}")
    moved = _list_moved(pair, comparison, by, sample=sample, top=None if as_json else top)
    corrected = pair_corrected(warehouse, pair.base.run_id, pair.candidate.run_id)
    document = {
        "base": _describe_run(pair.base),
        "candidate": _describe_run(pair.candidate),
        "n_samples": {
            "base": comparison.n_base,
            "candidate": comparison.n_candidate,
            "common": comparison.n_common,
        },
        "cluster": comparison.cluster,
        "alpha": ALPHA,
        "seed": settings.seed,
        "resamples": settings.resamples,
        "warnings": list(comparison.warnings),
        "metrics": [_flatten(compared) for compared in comparison.metrics],
        "retrieval": [{**asdict(finding), "text": finding.describe()} for finding in comparison.retrieval],
        "noise": {
            "run_ids": list(comparison.noise_run_ids),
            "steps": read_flips(pair.warehouse, comparison.noise_run_ids) if comparison.noise_run_ids else [],
            "shifts": [asdict(shift) for shift in comparison.shifts],
        },
    } | {"moved": moved, "corrected": [asdict(row) for row in corrected]}
    # What the scores vary by, by repeats of the candidate or else the base, and the difference over all answers.
    sides = ((run, read_noise_components(pair.warehouse, run)) for run in (pair.candidate, pair.base))
    run, components = next(((run, rows) for run, rows in sides if rows), (None, []))
    document |= {
        "components": components,
        "components_of": run.run_id if run else None,
        "all_answers": [asdict(row) for row in compare_all_answers(pair, settings)] if components else [],
    }
    if as_json:
        print_json(document)
    else:
        print_comparison(document)
        if corrected:
            print_line()
            print_table(corrected_pair_table(corrected))


def _flatten(compared: MetricComparison) -> dict[str, Any]:
    metric = asdict(compared)
    paired, parts = metric.pop("paired"), metric.pop("parts")
    metric.pop("better")
    noise = None
    if compared.noise is not None:
        noise = {"n_anew": compared.noise.n_anew, "n_runs": 0, "n_pairs": 0, "n_changed": 0, "deviation": None}
        if compared.noise.measured:
            noise |= {name: getattr(compared.noise.measured, name) for name in list(noise)[1:]}
    return {
        **metric,
        "n_common": paired.pop("n"),
        **paired,
        # Its name while Holm's correction stood here; kept for those who read it.
        "p_holm": compared.paired.p_adjusted,
        "noise_floor": compared.noise_floor,
        "noise": noise,
        "is_real": compared.is_real,
        "parts": parts,
    }


def _describe_run(run: RunRow) -> dict[str, object]:
    return {name: getattr(run, name) for name in _RUN_COLUMNS}


def _list_moved(
    pair: RunPair, comparison: Comparison, by: str | None, *, sample: str | None, top: int | None
) -> list[dict[str, Any]]:
    """Samples of both runs whose scores or verdicts are others, those that moved most first."""
    ranked = rank_samples(comparison.moves, by)
    common = pair.read_samples().filter("in_base", "in_candidate")["sample_id"].to_list()
    if sample is not None:
        if sample not in common:
            raise SettingsError(
                f"--sample: {sample!r} is not in both runs {pair.base.run_id} and {pair.candidate.run_id}; "
                f"{suggest(sample, common, otherwise='of those in both')}"
            )
        shown = [sample]
    else:
        shown = common if top is None else ranked[:top]
    flips = find_flips(**pair.read_verdicts(shown))
    scores: dict[str, dict[str, Any]] = {}
    for row in comparison.moves.filter(pl.col("sample_id").is_in(shown)).to_dicts():
        scores.setdefault(row.pop("sample_id"), {})[row.pop("metric")] = row
    texts: dict[str, dict[str, Any]] = {}
    for row in pair.read_texts(shown).to_dicts() if sample is not None else ():
        side = "candidate" if row.pop("of_candidate") else "base"
        texts.setdefault(row.pop("sample_id"), {"texts": {}})["texts"][side] = row
    return [
        {
            "sample_id": sample_id,
            "scores": scores.get(sample_id, {}),
            "flips": [asdict(flip) for flip in flips.get(sample_id, [])],
            **texts.get(sample_id, {}),
        }
        for sample_id in dict.fromkeys((*ranked, *common))
        if sample_id in scores or sample_id in flips or sample_id == sample
    ]
