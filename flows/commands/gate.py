"""`evalhouse gate`: let a run through or not, by limits given on the command line; exit status 1 when it is not."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Literal

import click

from evalhouse.flows.commands.options import JSON_OPTION, RUN_ARGUMENT, SEED_OPTION, WAREHOUSE_OPTION
from evalhouse.flows.display.output import print_json, print_text
from evalhouse.flows.documents.gate import STDOUT, decide, print_gate, read_scores, write_gate_files, write_markdown
from evalhouse.flows.documents.run_origin import find_other_run
from evalhouse.flows.errors import GATE_FAILED, INCOMPLETE, SettingsError
from evalhouse.tasks.comparing.gate_checks import Limits, Score
from evalhouse.tasks.comparing.runs import ComparisonSettings
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import NO_CLUSTER
from evalhouse.warehouse.store import Warehouse

_LIMIT = "METRIC=NUMBER"


class RunUnfinished(click.ClickException):
    """The run has no end yet, so that there is nothing to decide on."""

    exit_code = INCOMPLETE


@click.command()
@RUN_ARGUMENT
@click.option("--against", metavar="BASE", help="The baseline of --max-drop: a run, named as RUN is.")
@click.option(
    "--min",
    "minimums",
    multiple=True,
    metavar=_LIMIT,
    help="Lowest mean allowed. Passed when the whole 95 % interval of the mean, as `show` has it, is not below it; "
    "failed when the whole interval is below it or nothing is scored; else undecided. Repeatable.",
)
@click.option(
    "--max",
    "maximums",
    multiple=True,
    metavar=_LIMIT,
    help="Highest mean allowed, for metrics that are better when low, such as hallucination; decided like --min. "
    "Repeatable.",
)
@click.option(
    "--max-drop",
    "drops",
    multiple=True,
    metavar=_LIMIT,
    help="How much worse than BASE the mean may be, over the samples that both scored. Passed when the whole interval "
    "of the paired difference keeps the limit; failed when the whole interval is beyond it and "
    "the change is not chance (p, adjusted over all drops checked, at most 0.05), or when RUN has no score; else "
    "undecided, as with another judge, prompt, setting or formula than BASE's, or fewer than 6 independent samples. "
    "Repeatable.",
)
@click.option(
    "--min-coverage",
    "coverages",
    multiple=True,
    metavar="[METRIC=]SHARE",
    help="Lowest share of the samples that must be scored, such as 0.9: of one metric, or of all of RUN. Repeatable.",
)
@click.option(
    "--max-cost",
    "cost_usd",
    metavar="USD",
    help="Highest cost of the calls sent, in dollars; undecided when the price of some is not known.",
)
@click.option(
    "--undecided",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What an undecided check does to the gate.",
)
@click.option(
    "--cluster",
    metavar="COLUMN",
    help="Metadata column of samples that are not independent, as for `evalhouse compare`, for means as for drops; "
    f"`{NO_CLUSTER}` for none.",
)
@SEED_OPTION
@click.option("--junit", metavar="FILE", help="Also write JUnit XML there.")
@click.option(
    "--markdown", metavar="FILE", help="Also write a summary for a pull request there; `-` prints it and no table."
)
@WAREHOUSE_OPTION
@JSON_OPTION
def gate(
    *,
    run: str,
    against: str | None,
    minimums: tuple[str, ...],
    maximums: tuple[str, ...],
    drops: tuple[str, ...],
    coverages: tuple[str, ...],
    cost_usd: str | None,
    undecided: Literal["pass", "fail"],
    cluster: str | None,
    seed: int,
    junit: str | None,
    markdown: str | None,
    warehouse: Warehouse,
    as_json: bool,
) -> int:
    """Check RUN against limits; exit status 1 when it fails.

    RUN and BASE are run ids, unique prefixes of one, labels, `latest`, `previous`, or `latest:SUITE` and
    `previous:SUITE`. Every limit is one check that ends as passed, failed or undecided. The gate fails when a check
    failed, and, with `--undecided fail`, when one is undecided.
    """
    if as_json and markdown == STDOUT:
        raise SettingsError("--json and --markdown - both print on standard output; name a file for --markdown")
    checked_run = find_run(warehouse, run)
    _check_status(checked_run)
    scores = read_scores(warehouse, checked_run, cluster=cluster)
    limits = Limits(
        minimums=_parse_limits("--min", minimums, scores),
        maximums=_parse_limits("--max", maximums, scores),
        drops=_parse_limits("--max-drop", drops, scores, least=0.0),
        coverages=_parse_coverages(coverages, scores),
        cost_usd=None if cost_usd is None else _parse_number("--max-cost", cost_usd, cost_usd, least=0.0),
    )
    _check_limits(limits, against, scores)
    base = None if against is None else find_other_run(warehouse, checked_run, against)
    settings = ComparisonSettings(cluster=cluster, seed=seed)
    document = decide(
        warehouse, checked_run, base, scores=scores, limits=limits, settings=settings, undecided=undecided
    )
    write_gate_files(document, junit=junit, markdown=markdown)
    if as_json:
        print_json(document)
    elif markdown == STDOUT:
        print_text(write_markdown(document))
    else:
        print_gate(document)
    return 0 if document["outcome"] == "passed" else GATE_FAILED


def _check_status(run: RunRow) -> None:
    if run.status not in ("completed", "incomplete"):
        raise RunUnfinished(
            f"run {run.run_id} is {run.status}, so there is nothing to decide on; wait for its end, or go on with "
            f"`evalhouse resume {run.run_id}`"
        )


def _check_limits(limits: Limits, against: str | None, scores: Mapping[str, Score]) -> None:
    """Raises SettingsError where limits are missing or make no sense together."""
    if limits == Limits():
        raise SettingsError(
            "there is nothing to check; give at least one of --min, --max, --max-drop, --min-coverage, --max-cost"
        )
    if limits.drops and against is None:
        raise SettingsError("--max-drop needs a baseline; name one with --against, such as `--against previous`")
    if against is not None and not limits.drops:
        raise SettingsError(f"--against {against} has nothing to compare; give --max-drop, or leave --against out")
    for metric in limits.minimums:
        if scores[metric].better == "low":
            raise SettingsError(f"--min {metric}: this metric is better when low; use --max")


def _parse_limits(
    option: str, texts: Sequence[str], scores: Mapping[str, Score], *, least: float = -inf, most: float = inf
) -> dict[str, float]:
    """`METRIC=NUMBER` by metric; raises SettingsError for another form, an unknown metric, or one that came twice."""
    limits: dict[str, float] = {}
    for text in texts:
        metric, equals, number = text.rpartition("=")
        if not equals:
            raise SettingsError(f"{option}: {text!r} is not METRIC=NUMBER, such as factual_f1=0.8")
        if metric not in scores:
            raise SettingsError(f"{option}: the run has no metric {metric!r}; it has: {', '.join(scores) or 'none'}")
        if metric in limits:
            raise SettingsError(f"{option}: {metric} came twice; give it one limit")
        limits[metric] = _parse_number(option, text, number, least=least, most=most)
    return limits


def _parse_coverages(texts: Sequence[str], scores: Mapping[str, Score]) -> dict[str, float]:
    """Shares by metric. One without a metric is for all that have none of their own."""
    for_all = [text for text in texts if "=" not in text]
    if len(for_all) > 1:
        raise SettingsError(f"--min-coverage: {' and '.join(for_all)} are both for all metrics; give one")
    own = _parse_limits("--min-coverage", [text for text in texts if "=" in text], scores, least=0.0, most=1.0)
    if not for_all:
        return own
    share = _parse_number("--min-coverage", for_all[0], for_all[0], least=0.0, most=1.0)
    return {metric: own.get(metric, share) for metric in scores}


def _parse_number(option: str, text: str, number: str, *, least: float = -inf, most: float = inf) -> float:
    try:
        value = float(number)
    except ValueError:
        raise SettingsError(f"{option}: {text!r} has no number; give one such as 0.8") from None
    if not isfinite(value) or not least <= value <= most:
        ends = f"from {least:g} to {most:g}" if most != inf else f"of at least {least:g}" if least != -inf else "finite"
        raise SettingsError(f"{option}: {text!r} is out of range; allowed is a number {ends}")
    return value
