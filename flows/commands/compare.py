"""`evalhouse compare`, `prefer` and `replay`: two runs compared by their scores, by a judge, or by asking again."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

import click
import polars as pl

from evalhouse.flows.commands.options import (
    BY_OPTION,
    DRY_RUN_OPTION,
    FRESH_OPTION,
    JSON_OPTION,
    REASONING_OPTION,
    SEED_OPTION,
    UNDECIDED_OPTION,
    WAREHOUSE_OPTION,
    WAREHOUSE_URL_OPTION,
    count_option,
    find_warehouse,
    limit_options,
    temperature_option,
    write_command,
)
from evalhouse.flows.errors import GATE_FAILED, INCOMPLETE, INTERRUPTED, SettingsError
from evalhouse.flows.results.comparison import (
    corrected_pair_table,
    print_comparison,
    print_summary,
    read_noise_components,
)
from evalhouse.flows.results.headline import describe_causes, lay_against, write_headline
from evalhouse.flows.results.output import (
    print_json,
    print_line,
    print_notice,
    print_section,
    print_table,
    write_count,
    write_dollars,
    write_interval,
)
from evalhouse.flows.results.run_facts import find_two_runs, list_first
from evalhouse.flows.results.variants import describe_variants, pick_headline_metrics, print_variants
from evalhouse.flows.run.outcome import show_run
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.tasks.comparing.changes import find_flips
from evalhouse.tasks.comparing.intervals import ALPHA
from evalhouse.tasks.comparing.replay import count_verdicts
from evalhouse.tasks.comparing.runs import (
    ComparisonSettings,
    MetricComparison,
    check_common,
    compare_all_answers,
    compare_runs,
    rank_samples,
)
from evalhouse.tasks.comparing.slices import BySlice, compare_slices, describe_fallen
from evalhouse.tasks.comparing.variants import compare_variants
from evalhouse.tasks.reviews.export import pair_corrected
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import CLUSTER_COLUMNS, MIN_GROUPS, NO_CLUSTER
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.flows.prefer import PreferPlan
    from evalhouse.flows.replay import Replay


_RUN_COLUMNS = (
    "run_id", "status", "suite", "label", "dataset", "dataset_hash", "judge", "embeddings", "language", "kb_name",
    "kb_version", "started_at", "n_samples",
)  # fmt: skip


@click.command()
@click.argument("base", metavar="[BASE]", default="previous")
@click.argument("candidate", metavar="[CANDIDATE]", default="latest")
@click.argument("further", metavar="[RUN]...", nargs=-1)
@click.option(
    "--cluster",
    metavar="COLUMN",
    help="Metadata column whose values group samples that are not independent, such as samples of one conversation; "
    f"`{NO_CLUSTER}` for none. Default: the suite's [gate] cluster, else the first of "
    f"{', '.join(filter(str.islower, CLUSTER_COLUMNS))} that groups samples by {MIN_GROUPS} values or more.",
)
@click.option("--sample", metavar="ID", help="Show this sample alone, with its texts.")
@click.option("--all", "shows_all", is_flag=True, help="Show all metrics, why each mean moved, noise, and samples.")
@click.option("--top", type=click.IntRange(min=0), metavar="N", help="Show so many samples whose scores moved most. "
    "Default: 3 with --all or --sort, 5 of three or more runs; --json has all.")  # fmt: skip
@click.option("--sort", metavar="METRIC", help="The metric that says which samples moved most. Default: all together.")
@click.option("--differ", is_flag=True, help="Of three or more runs: only samples whose scores differ between them.")
@BY_OPTION
@SEED_OPTION
@WAREHOUSE_OPTION
@JSON_OPTION
def compare(
    *,
    base: str,
    candidate: str,
    further: tuple[str, ...],
    cluster: str | None,
    sample: str | None,
    shows_all: bool,
    top: int | None,
    sort: str | None,
    differ: bool,
    by: str | None,
    seed: int,
    warehouse: Warehouse,
    as_json: bool,
) -> None:
    """Compare the run CANDIDATE with the run BASE: what moved, whether that is chance, and why.

    Both are run ids, unique prefixes of one, labels, `latest`, `previous`, `latest-completed`, or one of these words of
    a suite, such as `latest:SUITE`. `previous` is the run before the other one in its series: of the same suite, or
    outside suites of the same dataset. Without them `previous` is compared with `latest`. Two runs that share no sample
    are refused.

    Of three to ten runs, `evalhouse compare A B C`, each is compared with the first: who is better in which main metric
    (--all: in all), by how much, and in which samples the runs differ. p is adjusted over all runs and metrics at once,
    and so are the intervals.

    The first sentence names the stage of the bot that is clearly worse or better, and the causes of bad answers that
    grew or shrank. Below are the causes and main metrics that moved; --all shows the rest.

    Means, differences and tests are over the samples that both runs scored: a 95 % interval, and a sign-flip test
    whose p is adjusted over all metrics. The whole change of a mean is then split by what changed in its samples:
    answers, contexts, ground truths, the judge, the formula, which samples there are, or nothing, which is the judge's
    own noise.

    If the runs repeated questions, the sources of the scores' variance are shown too, and the difference over all
    answers.

    The noise floor is what that noise alone reaches in 95 of 100 comparisons, by the runs of `evalhouse run --noise`.
    It explains a change and decides nothing. If the judge now scores the same texts differently, you are warned.
    """
    settings = ComparisonSettings(cluster=cluster, seed=seed)
    if further:
        if sample is not None:
            raise SettingsError(f"--sample shows two runs: evalhouse compare {base} {candidate} --sample {sample}")
        runs = [find_run(warehouse, name) for name in (base, candidate, *further)]
        if not shows_all:
            settings = replace(settings, metrics=pick_headline_metrics(runs) | ({sort} if sort else set()))
        variants = compare_variants(warehouse, runs, settings, by=by)
        of_runs = dict.fromkeys(metric for run in runs for metric in run.metrics)
        if sort is not None and sort not in variants.scores:
            raise SettingsError(f"--sort: no run has a metric {sort!r}; {suggest(sort, [*of_runs])}")
        top = _TOP if top is None and not as_json else top
        compared_variants = describe_variants(variants, settings, sort=sort, differ=differ, top=top)
        if as_json:
            print_json(compared_variants)
        else:
            print_variants(compared_variants, sort=sort)
        return
    if differ:
        raise SettingsError("--differ is for three or more runs; of two only samples that differ are shown")
    pair = RunPair(warehouse, *find_two_runs(warehouse, base, candidate))
    check_common(pair)
    comparison = compare_runs(pair, settings)
    slices: BySlice = {}
    fallen: list[str] = []
    if by is not None:
        scored = [compared.metric for compared in comparison.metrics]
        slices = compare_slices(pair, settings, by, list_first(scored, pair.candidate.config))
        fallen = list(describe_fallen(by, slices, comparison))
    headline = write_headline(replace(lay_against(pair, "the base", lambda _: comparison), slices=tuple(fallen)))
    metrics = [compared.metric for compared in comparison.metrics]
    if sort is not None and sort not in metrics:
        raise SettingsError(f"--sort: neither run has a metric {sort!r}; {suggest(sort, metrics)}")
    # The samples of both runs whose scores or verdicts differ, the largest differences first.
    ranked = rank_samples(comparison.moves, sort)
    common = pair.fetch("samples").filter("in_base", "in_candidate")["sample_id"].to_list()
    if sample is not None:
        if sample not in common:
            raise SettingsError(
                f"--sample: {sample!r} is not in both runs {pair.base.run_id} and {pair.candidate.run_id}; "
                f"{suggest(sample, common, otherwise='in both are')}"
            )
        shown = [sample]
    else:
        shows_all = shows_all or top is not None or sort is not None
        shown = common if as_json else ranked[: 3 if top is None else top]
    flips = find_flips(**pair.fetch_verdicts(shown))
    scores: dict[str, dict[str, Any]] = {}
    for row in comparison.moves.filter(pl.col("sample_id").is_in(shown)).to_dicts():
        scores.setdefault(row.pop("sample_id"), {})[row.pop("metric")] = row
    texts: dict[str, dict[str, Any]] = {}
    for row in pair.fetch("texts", {"sample_id": shown}).to_dicts() if sample is not None else ():
        side = "candidate" if row.pop("of_candidate") else "base"
        texts.setdefault(row.pop("sample_id"), {"texts": {}})["texts"][side] = row
    moved = [
        {
            "sample_id": sample_id,
            "scores": scores.get(sample_id, {}),
            "flips": [asdict(flip) for flip in flips.get(sample_id, [])],
            **texts.get(sample_id, {}),
        }
        for sample_id in dict.fromkeys((*ranked, *common))
        if sample_id in scores or sample_id in flips or sample_id == sample
    ]
    corrected = pair_corrected(warehouse, pair.base.run_id, pair.candidate.run_id)
    document = {
        "base": {name: getattr(pair.base, name) for name in _RUN_COLUMNS},
        "candidate": {name: getattr(pair.candidate, name) for name in _RUN_COLUMNS},
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
        "headline": asdict(headline),
        "n_judged": comparison.causes.n,
        "stages": dict(comparison.causes.stages),
        "causes": describe_causes(comparison),
        "metrics": [_flatten(compared) for compared in comparison.metrics],
        "by": [
            {"by": by, "slice": value, **_flatten(compared)}
            for value, by_metric in slices.items()
            for compared in by_metric.values()
        ],
        "noise": {
            "run_ids": list(comparison.noise_run_ids),
            "steps": pair.warehouse.fetch_rows("noise/flips", {"run_id": comparison.noise_run_ids})
            if comparison.noise_run_ids
            else [],
            "shifts": [asdict(shift) for shift in comparison.shifts],
        },
    } | {"moved": moved, "corrected": [asdict(row) for row in corrected]}
    # What the scores vary by, by repeats of the candidate or else the base, and the difference over all answers.
    sides = ((run, read_noise_components(pair.warehouse, run)) for run in (pair.candidate, pair.base))
    run, components = next(((run, rows) for run, rows in sides if rows), (None, []))
    document |= {
        "components": components,
        "components_of": run.run_id if run else None,
        "all_answers": compare_all_answers(pair, settings) if components else [],
    }
    if as_json:
        print_json(document)
    elif not shows_all and sample is None:
        print_summary(document)
    else:
        print_comparison(document)
        if corrected:
            print_line()
            print_table(corrected_pair_table(corrected))


def _flatten(compared: MetricComparison) -> dict[str, Any]:
    metric = asdict(compared)
    paired, parts = metric.pop("paired"), metric.pop("parts")
    paired.pop("alone")
    for name in (
        "better", "plain_parts", "sizes", "shares", "is_unpicked", "cluster", "n_edited", "n_refused", "edits",
    ):  # fmt: skip
        metric.pop(name)
    noise = None
    if compared.noise is not None:
        noise = {"n_anew": compared.noise.n_judged_again, "n_runs": 0, "n_pairs": 0, "n_changed": 0, "deviation": None}
        if compared.noise.measured:
            noise |= {name: getattr(compared.noise.measured, name) for name in list(noise)[1:]}
    return {
        **metric,
        "n_common": paired.pop("n"),
        **paired,
        # Named after Holm's correction, which was used before; kept for programs that read it.
        "p_holm": compared.paired.p_adjusted,
        "noise_floor": compared.noise_floor,
        "noise": noise,
        "is_real": compared.is_real,
        "parts": parts,
    }


_MEANINGS = {
    "retrieval": "with the old contexts the bot scores as before",
    "generation": "with the old contexts too it scores as now",
    "both": "the old contexts bring back a part of it",
    "noise": "asked again, it answers differently each time",
    "judge": "answer and contexts are the same in both runs",
    "unknown": "an answer or its score is missing; the same command asks again",
}


@click.command()
@click.argument("base", metavar="[BASE]", default="previous")
@click.argument("candidate", metavar="[CANDIDATE]", default="latest")
@click.option("--metric", "metrics", multiple=True, metavar="METRIC", help="A metric that moved. Repeatable. Default: "
    "the first that both have of factual_f1, answer_correctness, accuracy and others.")  # fmt: skip
@click.option("--sample", "samples", multiple=True, metavar="ID", help="Look into this sample alone. Repeatable.")
@count_option("--limit", default=50, min_value=1, text="Number of samples to look into, the largest moves first.")
@click.option("--least", type=click.FloatRange(0, min_open=True), metavar="D", help="Smallest difference of a score to "
    "look into. Default: what the judge's noise was measured to reach, at least 0.1.")  # fmt: skip
@count_option("--times", default=3, min_value=1, text="Times each question is asked with the same contexts.")
@count_option("--documents", default=8, text="Documents to undo one at a time in a sample at most.")
@click.option("--suite", metavar="SUITE.toml", help="Ask the [target] of this suite, not the one CANDIDATE asked.")
@click.option("--budget", "budget_usd", type=float, metavar="USD", help="Stop judging when this much is spent.")
@click.option("--dry-run", is_flag=True, help="Say what would be asked, and ask nothing.")
@WAREHOUSE_OPTION
@JSON_OPTION
@wait_for_warehouse()
def replay(
    *,
    base: str,
    candidate: str,
    metrics: tuple[str, ...],
    samples: tuple[str, ...],
    suite: str | None,
    dry_run: bool,
    warehouse: Warehouse,
    as_json: bool,
    **numbers: Any,  # noqa: ANN401  # fields of ReplayOptions
) -> int:
    """Find out whether retrieval or generation moved the scores from run BASE to run CANDIDATE, by asking again.

    Samples that moved are asked again with the contexts of BASE and of CANDIDATE, and the answers are judged as in
    CANDIDATE. If the old contexts bring the old score back, retrieval moved it: then the contexts that differ are
    undone one at a time, which finds the document. If they do not, generation moved it. A bot that answers differently
    each time is reported as that.

    The bot has to take contexts from its caller: `{{contexts}}` in the body of its [target], or an argument `contexts`.
    Stored answers are not asked for again, also after an interruption.
    """
    from evalhouse.flows.replay import ReplayOptions, make_replay  # noqa: PLC0415  # these import what runs

    pair = RunPair(warehouse, *find_two_runs(warehouse, base, candidate))
    for run in (pair.base, pair.candidate):
        if run.kind != "evaluation":
            raise SettingsError(f"run {run.run_id} is of kind {run.kind} and has no scores to explain")
    options = ReplayOptions(metrics=metrics, sample_ids=samples, **numbers)
    target = None
    if suite is not None:
        from evalhouse.flows.preparing.request import resolve_suite  # noqa: PLC0415
        from evalhouse.flows.preparing.suites import load_suite  # noqa: PLC0415

        target = resolve_suite(load_suite(suite), flags={}).settings.target
        if target is None:
            raise SettingsError(f"--suite: {suite} has no [target], so there is nothing to ask")
    begun = make_replay(pair, options, target)
    if dry_run:
        plan = begun.estimate()
        if as_json:
            print_json({"base": begun.pair.base.run_id, "candidate": begun.pair.candidate.run_id,
                        "left_out": begun.left_out, **asdict(plan)})  # fmt: skip
        else:
            print_line(
                f"{write_count(plan.n_samples, 'sample')} moved: the bot would be asked {plan.n_asks:,} times with the "
                f"old contexts and the new ones ({plan.n_on_record:,} answers are stored), then at most "
                f"{plan.n_documents:,} times with one document undone, where retrieval did it."
            )
            print_line(
                f"Judging that takes at most about {plan.requests:,} requests, cost {write_dollars(plan.cost_usd)}, "
                "and none for a stored answer. Nothing was asked."
            )
        return 0
    with show_run() as watch:
        begun.carry_out(watch)
    findings = begun.list_findings()
    document = {
        "base": begun.pair.base.run_id,
        "candidate": begun.pair.candidate.run_id,
        "times": begun.options.times,
        "n_samples": len(begun.samples),
        "left_out": begun.left_out,
        "verdicts": count_verdicts(findings),
        "moves": [
            {**asdict(finding.move), **{name: value for name, value in asdict(finding).items() if name != "move"}}
            for finding in findings
        ],
        "runs": [{"run_id": outcome.run.run_id, "status": outcome.status} for outcome in begun.outcomes],
        "calls": {
            "requests": sum(outcome.counts.requests for outcome in begun.outcomes),
            "reused": sum(outcome.counts.reused for outcome in begun.outcomes),
            "cost_usd": sum(outcome.counts.cost_usd or 0.0 for outcome in begun.outcomes),
        },
        "problem": begun.problem,
        "warehouse": begun.warehouse.location.url,
    }
    status = 0
    if any(outcome.status == "cancelled" for outcome in begun.outcomes):
        status = INTERRUPTED
    elif begun.problem is not None or any(finding.verdict == "unknown" for finding in findings):
        status = INCOMPLETE
    if as_json:
        print_json(document)
    else:
        _print(begun, document, is_complete=status == 0)
    return status


def _print(begun: "Replay", document: dict[str, Any], *, is_complete: bool) -> None:
    findings = begun.list_findings()
    base, candidate = begun.pair.base.run_id, begun.pair.candidate.run_id
    print_line(
        f"replay of {write_count(len(begun.samples), 'sample')} that moved from {base} to {candidate}", bold=True
    )
    for why, n in begun.left_out.items():
        print_line(f"not looked into: {write_count(n, 'sample')} {why}")
    if not findings:
        print_line("No score moved by more than noise, so that nothing was asked.")
        return
    print_section(
        "What became of the scores with the old contexts",
        ["sample", "metric", "#before", "#after", "#with old contexts", "verdict", "document"],
        [
            [
                finding.move.sample_id,
                finding.move.metric,
                finding.move.before,
                finding.move.after,
                finding.with_old,
                finding.verdict,
                ", ".join(finding.documents) or finding.note or "",
            ]
            for finding in findings
        ],
    )
    print_section(
        "What did it",
        ["metric", "verdict", "#moves", "#share", "95 % interval", "which means"],
        [
            [share["metric"], share["verdict"], share["n"], share["share"],
             write_interval(share["ci_low"], share["ci_high"]), _MEANINGS[share["verdict"]]]
            for share in count_verdicts(findings)
        ],
    )  # fmt: skip
    calls = document["calls"]
    print_line()
    runs = document["runs"]
    print_line(
        f"{calls['requests']:,} requests to the judge, {calls['reused']:,} reused, cost "
        f"{write_dollars(calls['cost_usd'])}" + (f" (runs {', '.join(run['run_id'] for run in runs)})" if runs else "")
    )
    if begun.problem is not None:
        print_notice(f"The replay stopped: {begun.problem}")
    if not is_complete:
        print_line(f"next: {write_command()}   (resumes with what is missing)")
    else:
        print_line(f"next: evalhouse compare {base} {candidate} --sample {findings[0].move.sample_id}")


_KEPT_BACK = ("ground_truth", "contexts")
_TOP = 5
_USED = ("requests", "reused", "failed", "prompt_tokens", "completion_tokens", "cost_usd")


@click.command()
@click.argument("base", metavar="[BASE]", required=False)
@click.argument("candidate", metavar="[CANDIDATE]", required=False)
@click.option(
    "--columns", metavar="A,B", help="BASE is a dataset, as for `run`: compare the answers in its columns A and B.",
)  # fmt: skip
@click.option(
    "--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Of a dataset: read the column OURS from THEIRS."
)
@click.option("--judge", metavar="J", help="openai:MODEL, another PROVIDER:MODEL, module:factory or lexical. "
    "Default: CANDIDATE's, of a dataset as for `run`.")  # fmt: skip
@click.option(
    "--rubric",
    metavar="FILE|NAME",
    help="What to prefer by: a rubric of your own, a file NAME.yaml or one in the folder of --prompts. Default: which "
    "answer serves the person who asked better, correct first.",
)
@click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace the built-in ones.")
@click.option("--language", metavar="en|zh", help="Language of the prompts. Default: CANDIDATE's, of a dataset en.")
@click.option("--without", multiple=True, type=click.Choice(_KEPT_BACK), help="Keep this from the judge. Repeatable.")
@click.option(
    "--cluster",
    metavar="COLUMN",
    help=f"Metadata column whose values group samples that are not independent; `{NO_CLUSTER}` for none. Default: the "
    f"first of {', '.join(filter(str.islower, CLUSTER_COLUMNS))} of which some share a value.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N samples.")
@click.option(
    "--min-preference",
    type=click.FloatRange(0, 1),
    metavar="RATE",
    help="Lowest win rate of the candidate allowed, such as 0.5. Passed when the whole 95 % interval is not below it; "
    "failed, with exit status 1, when the whole interval is below it or nothing is judged; else undecided.",
)
@UNDECIDED_OPTION
@temperature_option("CANDIDATE's, of a dataset none is sent")
@REASONING_OPTION
@FRESH_OPTION
@count_option("--top", default=_TOP, text="Samples to show that the candidate lost; --json has all.")
@DRY_RUN_OPTION
@limit_options
@WAREHOUSE_URL_OPTION
@JSON_OPTION
def prefer(
    *,
    base: str | None,
    candidate: str | None,
    columns: str | None,
    maps: tuple[str, ...],
    rubric: str | None,
    without: tuple[str, ...],
    cluster: str | None,
    limit: int | None,
    min_preference: float | None,
    undecided: Literal["pass", "fail"],
    top: int,
    dry_run: bool,
    warehouse: str | None,
    as_json: bool,
    **flags: Any,  # noqa: ANN401  # settings
) -> int:
    """Ask a judge which of two answers is better: the answers of the runs BASE and CANDIDATE to the samples of both, or
    with --columns the answers in two columns of a dataset.

    Runs are named as for `compare`; without them `previous` is compared with `latest`. The judge is shown the question,
    the ground truth and the contexts of both sides where they are there, and both answers, twice, with either in
    front. Where both orders name the same answer it wins, where one says tie that is half a win, and where they
    contradict each other it is a tie. What the place does is measured and shown beside it.

    A pair is asked about once: `evalhouse resume` continues a stopped run, and pays for nothing twice. Exit
    status 3 when samples are left without a verdict, 1 when the candidate does not keep --min-preference.
    """
    from evalhouse.flows.prefer import (  # noqa: PLC0415
        PreferenceGate,  # all that asks
        PreferOptions,
        plan_columns,
        plan_runs,
    )

    flags |= {"limit": limit, "warehouse": find_warehouse(warehouse)}
    gate = PreferenceGate(least=min_preference, undecided=undecided) if min_preference is not None else None
    options = PreferOptions(rubric=rubric, without=without, cluster=cluster, gate=gate, flags=flags)
    with ExitStack() as held:
        if columns is not None:
            if base is None or candidate is not None:
                raise SettingsError("with --columns name one dataset: evalhouse prefer DATASET --columns A,B")
            plan = plan_columns(held, base, columns, maps, options)
        elif maps:
            raise SettingsError("--map names columns of a dataset; name it with two of its columns in --columns")
        else:
            plan = plan_runs(base or "previous", candidate or "latest", options)
        if dry_run:
            from evalhouse.flows.prefer import estimate_preferences  # noqa: PLC0415
            from evalhouse.flows.run.estimate import usage_table  # noqa: PLC0415

            usage = estimate_preferences(plan)
            if as_json:
                sides = {
                    "base": plan.base,
                    "candidate": plan.candidate,
                    "rubric": plan.rubric,
                    "judge": plan.settings.judge,
                }
                print_json(sides | {"n_samples": plan.pairs.n, "calls": usage.pick(*_USED)})
            else:
                names = ("requests", "reused", "prompt_tokens", "completion_tokens", "cost_usd")
                print_table(usage_table(["judge"], [([plan.settings.judge], usage)], names))
                print_line()
                print_line(
                    f"{write_count(plan.pairs.n, 'pair')} of answers, each asked about in both orders by rubric "
                    f"{plan.rubric}. Nothing was asked."
                )
            return 0
        return _carry_out(plan, top=top, as_json=as_json)


def resume_preferences(run: "RunRow", *, warehouse_url: str, changes: Mapping[str, Any], as_json: bool) -> int:
    """Resume a run of kind prefer, and return the exit status."""
    from evalhouse.flows.prefer import plan_again  # noqa: PLC0415  # all that asks
    from evalhouse.flows.preparing.request import check_resumable  # noqa: PLC0415  # imports the settings of a run

    check_resumable(run, changes, {parameter.name for parameter in prefer.params})
    with ExitStack() as held:
        return _carry_out(plan_again(held, run, changes, warehouse_url), top=_TOP, as_json=as_json)


def _carry_out(plan: "PreferPlan", *, top: int, as_json: bool) -> int:
    from evalhouse.flows.prefer import prefer as ask  # noqa: PLC0415
    from evalhouse.flows.results.comparison import describe_preferences, print_preferences  # noqa: PLC0415
    from evalhouse.warehouse.store import Warehouse  # noqa: PLC0415

    with show_run() as watch:
        outcome = ask(plan, watch)
    document = describe_preferences(Warehouse(plan.settings.warehouse), outcome.run)
    assert document is not None
    if as_json:
        print_json(
            {
                "run_id": outcome.run.run_id,
                "n_samples": plan.pairs.n,
                "calls": outcome.usage.pick(*_USED),
                "problem": outcome.problem,
                "warehouse": plan.settings.warehouse,
            }
            | document
        )
    else:
        print_preferences(document, top=top)
        usage, run_id = outcome.usage, outcome.run.run_id
        print_line()
        print_line(
            f"{usage.requests:,} requests to the judge, {usage.reused:,} reused, cost "
            f"{write_dollars(usage.cost_usd)}; run {run_id}"
        )
        if outcome.has_failures:
            print_line(f"next: evalhouse resume {run_id}   (asks again for the verdicts that did not come)")
        print_line(f"""next: evalhouse query "from sample_preferences where run_id = '{run_id}'\"""")
    if outcome.problem is not None:
        print_notice(f"{outcome.problem}; `evalhouse resume {outcome.run.run_id}` resumes from here")
        return INTERRUPTED
    if outcome.gate_failed:
        return GATE_FAILED
    return INCOMPLETE if outcome.has_failures else 0
