"""`evalhouse gate`: check a run against limits on the command line, with exit status 1 if it fails; or accept a run as
baseline with `--accept`."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal

import click

from evalhouse.flows.commands.options import (
    JSON_OPTION,
    SEED_OPTION,
    UNDECIDED_OPTION,
    WAREHOUSE_OPTION,
    refuse_database,
)
from evalhouse.flows.errors import GATE_FAILED, INCOMPLETE, SettingsError
from evalhouse.flows.results.baseline import (
    NAMES,
    Baseline,
    describe_acceptance,
    find_baseline,
    make_decision,
    name_series,
)
from evalhouse.flows.results.gate import (
    STDOUT,
    decide,
    find_changes,
    print_gate,
    read_scores,
    write_failure,
    write_junit,
    write_markdown,
)
from evalhouse.flows.results.output import print_json, print_line, print_notice, print_text
from evalhouse.flows.results.run_facts import find_other_run
from evalhouse.tasks.comparing.gate_checks import Limits, Score, cover_all
from evalhouse.tasks.comparing.runs import ComparisonSettings
from evalhouse.tasks.comparing.slices import find_slices
from evalhouse.tasks.settings.suite import MAX_K, MEAN_OF_PASSED, PASSED, PREVIOUS_ANY, SliceGate, explain_scale
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.gates import accept_run, find_user, list_nights, record_decision
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import NO_CLUSTER
from evalhouse.warehouse.store import WRITE_PATIENCE_S, Warehouse

_LIMIT = "METRIC=NUMBER"


class RunUnfinished(click.ClickException):
    """The run has not ended, so there is nothing to decide on."""

    exit_code = INCOMPLETE


@click.command()
@click.argument("run", metavar="RUN", required=False)
@click.option(
    "--against",
    metavar="BASE",
    help="The baseline of --max-drop: a run, named as RUN is; or, of RUN's suite (outside suites, of its dataset): "
    f"`{PASSED}`, the last run before RUN that passed its gate or was accepted; `{MEAN_OF_PASSED}`, the mean of the "
    f"last --k of them, sample by sample; `{PREVIOUS_ANY}`, the last completed one, even if it failed its gate.",
)
@click.option(
    "--k",
    type=click.IntRange(1, MAX_K),
    default=5,
    show_default=True,
    metavar="N",
    help=f"How many runs {MEAN_OF_PASSED} is the mean of.",
)
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
    "--trend",
    "trends",
    multiple=True,
    metavar=_LIMIT,
    help="How far the mean may have fallen over many runs: the last of RUN's suite (or dataset) against the first "
    "since one was accepted, RUN and those before it that passed their gate. Fails when the drop is statistically "
    "significant (corrected p at most 0.003, since it is checked every night), its whole interval is beyond the limit, "
    "and RUN is still down; else passes. Repeatable.",
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
    "--max-latency-p95-ms",
    "latency_p95_ms",
    metavar="MS",
    help="Highest 95th percentile of the milliseconds that the application took to answer; undecided when RUN asked it "
    "nothing.",
)
@UNDECIDED_OPTION
@click.option(
    "--cluster",
    metavar="COLUMN",
    help="Metadata column of samples that are not independent, as for `evalhouse compare`, for means as for drops; "
    f"`{NO_CLUSTER}` for none.",
)
@SEED_OPTION
@click.option("--junit", metavar="FILE", callback=refuse_database, help="Also write JUnit XML there.")
@click.option(
    "--markdown",
    metavar="FILE",
    callback=refuse_database,
    help="Also write a comment for a pull request there, with what changed since the baseline, or else since the run "
    "before; `-` prints it and no table.",
)
@click.option("--report-url", metavar="URL", help="A link to the run's report, for --markdown.")
@click.option(
    "--accept",
    "accepted",
    metavar="RUN",
    help="Check nothing, and make this run the baseline of its suite (or dataset) from now on, even if it failed its "
    "gate. Takes --why.",
)
@click.option("--why", metavar="TEXT", help="The reason for --accept, which is stored.")
@click.option("--accepted-by", metavar="NAME", help="Who accepts. Default: the user of this process.")
@click.option(
    "--by",
    "columns",
    multiple=True,
    metavar="COLUMN",
    help="Check --min, --max and --max-drop also for each value of this column of the dataset, such as language. "
    "Repeatable.",
)
@WAREHOUSE_OPTION
@JSON_OPTION
def gate(
    *,
    run: str | None,
    against: str | None,
    k: int,
    minimums: tuple[str, ...],
    maximums: tuple[str, ...],
    drops: tuple[str, ...],
    trends: tuple[str, ...],
    coverages: tuple[str, ...],
    cost_usd: str | None,
    latency_p95_ms: str | None,
    undecided: Literal["pass", "fail"],
    cluster: str | None,
    seed: int,
    junit: str | None,
    markdown: str | None,
    report_url: str | None,
    accepted: str | None,
    why: str | None,
    accepted_by: str | None,
    columns: tuple[str, ...],
    warehouse: Warehouse,
    as_json: bool,
) -> int:
    """Check RUN against limits; exit status 1 when it fails. Or accept a run as baseline: `--accept RUN --why TEXT`.

    Without any limit a run of a suite is checked against the suite's own [gate], as it was when the run began.

    RUN and BASE are run ids, unique prefixes of one, labels, `latest`, `previous`, or `latest:SUITE` and
    `previous:SUITE`. Every limit is one check that ends as passed, failed or undecided. The gate fails when a check
    failed, and, with `--undecided fail`, when one is undecided. The decision is stored.
    """
    if accepted is not None or why is not None or accepted_by is not None:
        limits_given = minimums or maximums or drops or trends or coverages or cost_usd or latency_p95_ms
        why, accepted_by = (why or "").strip(), (find_user() if accepted_by is None else accepted_by).strip()
        if accepted is None:
            raise SettingsError("--why and --accepted-by belong to --accept RUN")
        if run or against or limits_given or columns:
            raise SettingsError("--accept checks nothing; give it with --why and --accepted-by alone")
        if not why or not accepted_by:
            raise SettingsError("--accept takes --why TEXT, which is stored: say why this run is the new baseline")
        chosen = find_run(warehouse, accepted)
        _check_status(chosen, "accept")
        if chosen.kind != "evaluation":
            raise SettingsError(
                f"run {chosen.run_id} is of kind {chosen.kind}, and a gate cannot use such a run as its baseline"
            )
        warehouse.migrate()
        acceptance = accept_run(warehouse, chosen.run_id, accepted_by=accepted_by, why=why)
        if as_json:
            print_json(vars(acceptance) | {"series": name_series(chosen), "gate": chosen.gate})
            return 0
        print_line(describe_acceptance(vars(acceptance)))
        had = f"; its gate had {chosen.gate}" if chosen.gate else ""
        is_incomplete = chosen.status == "incomplete"
        lacks = ", and it is incomplete: what it has not scored is not compared" if is_incomplete else ""
        print_line(f"the next runs of {name_series(chosen)} are compared with it, until one passes{had}{lacks}")
        return 0
    if run is None:
        raise click.UsageError("name the RUN to check, or one to accept with --accept")
    if as_json and markdown == STDOUT:
        raise SettingsError("--json and --markdown - both print on standard output; name a file for --markdown")
    if report_url is not None and (markdown is None or not report_url.startswith(("https://", "http://"))):
        raise SettingsError("--report-url takes an address that begins with https://, for --markdown FILE")
    checked_run = find_run(warehouse, run)
    if markdown not in (None, STDOUT) and checked_run.status in ("failed", "cancelled"):
        Path(str(markdown)).write_text(write_failure(checked_run, report_url), encoding="utf-8")
    _check_status(checked_run)
    scores = read_scores(warehouse, checked_run, cluster=cluster)
    # A share without a metric is for all others that apply to any sample.
    for_all = [text for text in coverages if "=" not in text]
    if len(for_all) > 1:
        raise SettingsError(f"--min-coverage: {' and '.join(for_all)} are both for all metrics; give one")
    shares = _parse_limits(
        "--min-coverage", [text for text in coverages if "=" in text], scores, min_value=0.0, max_value=1.0
    )
    if for_all:
        share = _parse_number("--min-coverage", for_all[0], for_all[0], min_value=0.0, max_value=1.0)
        shares = cover_all(scores, share) | shares
    numbers = {}
    given = (("cost_usd", "--max-cost", cost_usd), ("latency_p95_ms", "--max-latency-p95-ms", latency_p95_ms))
    for name, option, text in given:
        if text is not None:
            numbers[name] = _parse_number(option, text, text, min_value=0.0)
    limits = Limits(
        minimums=_parse_limits("--min", minimums, scores),
        maximums=_parse_limits("--max", maximums, scores),
        drops=_parse_limits("--max-drop", drops, scores, min_value=0.0),
        trends=_parse_limits("--trend", trends, scores, min_value=0.0),
        coverages=shares,
        **numbers,
    )
    if limits == Limits() and against is None and not columns and checked_run.config.get("gate"):
        from evalhouse.flows.serving.suite_runs import decide_suite_gate  # noqa: PLC0415  # imports all that runs

        document = decide_suite_gate(warehouse, checked_run)
        assert document is not None, "a run with a gate has ended"
        return _report(warehouse, checked_run, document, junit=junit, markdown=markdown, report_url=report_url,
                       as_json=as_json)  # fmt: skip
    if limits == Limits():
        raise SettingsError(
            "there is nothing to check; give at least one of --min, --max, --max-drop, --trend, --min-coverage, "
            "--max-cost, --max-latency-p95-ms, or name a run of a suite with a [gate]"
        )
    if limits.drops and against is None:
        raise SettingsError("--max-drop needs a baseline; name one with --against, such as `--against passed`")
    if against is not None and not limits.drops:
        raise SettingsError(f"--against {against} has nothing to compare; give --max-drop, or leave --against out")
    given_limits = {
        "--min": limits.minimums, "--max": limits.maximums, "--max-drop": limits.drops, "--trend": limits.trends,
    }  # fmt: skip
    for option, by_metric in given_limits.items():
        if problem := explain_scale(by_metric, load_metrics()):
            raise SettingsError(f"{option}: {problem}")
    for metric in limits.minimums:
        if scores[metric].better == "low":
            raise SettingsError(f"--min {metric}: this metric is better when low; use --max")
    for option, by_metric in (("--max-drop", limits.drops), ("--trend", limits.trends)):
        if neutral := [metric for metric in by_metric if scores[metric].better == "neutral"]:
            raise SettingsError(
                f"{option} {', '.join(neutral)}: neither a drop nor a rise of it is worse; use --min or --max"
            )
    of_slice = SliceGate(min=dict(limits.minimums), max=dict(limits.maximums), max_drop=dict(limits.drops))
    if columns and of_slice == SliceGate():
        raise SettingsError("--by checks --min, --max and --max-drop for each value; give at least one of them")
    for column in columns:
        find_slices(warehouse, checked_run, column)
    settings = ComparisonSettings(cluster=cluster, seed=seed)
    nights = list_nights(warehouse, checked_run) if against in NAMES or limits.trends else []
    if against is None:
        baseline = Baseline()
    elif against in NAMES:
        baseline = find_baseline(warehouse, checked_run, against, k=k, nights=nights)
    else:
        find_other_run(warehouse, checked_run, against)  # refuses the run itself and an unknown one
        baseline = find_baseline(warehouse, checked_run, against, k=k, nights=())
    document = decide(
        warehouse, checked_run, baseline, nights=nights, scores=scores, limits=limits, settings=settings,
        undecided=undecided, slices=dict.fromkeys(columns, of_slice),
    )  # fmt: skip
    # If the warehouse cannot be written to, the decision is still printed.
    try:
        record_decision(warehouse, make_decision(document, "hand"), patience_s=WRITE_PATIENCE_S)
    except WarehouseError as error:
        print_notice(f"The decision is not stored: {error}.")
    return _report(warehouse, checked_run, document, junit=junit, markdown=markdown, report_url=report_url,
                   as_json=as_json)  # fmt: skip


def _report(
    warehouse: Warehouse,
    run: RunRow,
    document: Mapping[str, Any],
    *,
    junit: str | None,
    markdown: str | None,
    report_url: str | None,
    as_json: bool,
) -> int:
    """Write a decision where it is wanted, and return the exit status."""
    if junit is not None:
        Path(junit).write_bytes(write_junit(document))
    comment = ""
    if markdown is not None:
        # What changed since the run of the check, or without one since the last night that passed.
        base = None
        if document["against"]:
            base = find_run(warehouse, document["against"]["run_id"])
        elif nights := list_nights(warehouse, run):
            base = nights[-1].run
        spent = [row["priced_usd"] for row in warehouse.fetch_rows("gate/costs", run_id=run.run_id)]
        comment = write_markdown(
            document,
            find_changes(warehouse, base, run) if base else None,
            cost_usd=sum(spent) if spent else None,
            report_url=report_url,
        )
        if markdown != STDOUT:
            Path(markdown).write_text(comment, encoding="utf-8")
    if as_json:
        print_json(document)
    elif markdown == STDOUT:
        print_text(comment)
    else:
        print_gate(document)
    return 0 if document["outcome"] == "passed" else GATE_FAILED


def _check_status(run: RunRow, what: str = "decide on") -> None:
    if run.status not in ("completed", "incomplete"):
        raise RunUnfinished(
            f"run {run.run_id} is {run.status}, so there is nothing to {what}; wait for its end, or resume it with "
            f"`evalhouse resume {run.run_id}`"
        )


def _parse_limits(
    option: str, texts: Sequence[str], scores: Mapping[str, Score], *, min_value: float = -inf, max_value: float = inf
) -> dict[str, float]:
    """Parse `METRIC=NUMBER`; raises SettingsError for another form, an unknown metric, or a metric given twice."""
    limits: dict[str, float] = {}
    for text in texts:
        metric, equals, number = text.rpartition("=")
        if not equals:
            raise SettingsError(f"{option}: {text!r} is not METRIC=NUMBER, such as factual_f1=0.8")
        if metric not in scores:
            raise SettingsError(
                f"{option}: the run has no metric {metric!r}; {suggest(metric, scores, otherwise='it has')}"
            )
        if metric in limits:
            raise SettingsError(f"{option}: {metric} is given twice; give it one limit")
        limits[metric] = _parse_number(option, text, number, min_value=min_value, max_value=max_value)
    return limits


def _parse_number(option: str, text: str, number: str, *, min_value: float = -inf, max_value: float = inf) -> float:
    try:
        value = float(number)
    except ValueError:
        raise SettingsError(f"{option}: {text!r} has no number; give one such as 0.8") from None
    if not isfinite(value) or not min_value <= value <= max_value:
        ends = "finite"
        if max_value != inf:
            ends = f"from {min_value:g} to {max_value:g}"
        elif min_value != -inf:
            ends = f"of at least {min_value:g}"
        raise SettingsError(f"{option}: {text!r} is out of range; allowed is a number {ends}")
    return value
