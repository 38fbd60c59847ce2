"""`evalhouse replay`: whether retrieval or generation moved the scores between two runs, by asking the bot again."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION, count_option
from evalhouse.flows.errors import INCOMPLETE, INTERRUPTED, SettingsError
from evalhouse.flows.preparing.suites import load_suite
from evalhouse.flows.results.output import (
    print_json,
    print_line,
    print_notice,
    print_section,
    write_count,
    write_dollars,
    write_interval,
)
from evalhouse.flows.results.progress import show_run
from evalhouse.flows.results.run_origin import find_other_run
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.tasks.comparing.replay import count_verdicts
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.flows.replay import Replay

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
@count_option("--limit", default=50, least=1, text="Samples to look into at most, those that moved most.")
@click.option("--least", type=click.FloatRange(0, min_open=True), metavar="D", help="Smallest difference of a score to "
    "look into. Default: what the judge's noise was measured to reach, at least 0.1.")  # fmt: skip
@count_option("--times", default=3, least=1, text="Times each question is asked with the same contexts.")
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
    **numbers: Any,  # noqa: ANN401  # those of ReplayOptions
) -> int:
    """Say whether retrieval or generation moved the scores from the run BASE to the run CANDIDATE, by asking again.

    Samples that moved are asked again with the contexts of BASE and with those of CANDIDATE, and the answers judged as
    CANDIDATE's were. Where the old contexts bring the old score back, retrieval did it: then the contexts that differ
    are undone one at a time, which names the document. Where they do not, generation did it. A bot that answers
    differently each time is named as that.

    The bot has to take contexts from its caller: `{{contexts}}` in the body of its [target], or an argument `contexts`.
    What was answered is on record and is not asked again, also after an interruption.
    """
    from evalhouse.flows.replay import ReplayOptions, make_replay  # noqa: PLC0415  # imports what runs

    base_run = find_run(warehouse, base)
    pair = RunPair(warehouse, base_run, find_other_run(warehouse, base_run, candidate, sides="BASE and CANDIDATE"))
    for run in (pair.base, pair.candidate):
        if run.kind != "evaluation":
            raise SettingsError(f"run {run.run_id} is of kind {run.kind} and has no scores of its own to explain")
    options = ReplayOptions(metrics=metrics, sample_ids=samples, **numbers)
    target = None
    if suite is not None:
        from evalhouse.flows.serving.suite_runs import resolve_suite  # noqa: PLC0415  # imports what runs

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
                f"old contexts and the new ones ({plan.n_on_record:,} answers are on record), then at most "
                f"{plan.n_documents:,} times with one document undone, where retrieval did it."
            )
            print_line(
                f"Judging that takes at most about {plan.requests:,} requests, cost {write_dollars(plan.cost_usd)}, "
                "and none for an answer that is on record. Nothing was asked."
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
        "verdicts": [asdict(share) for share in count_verdicts(findings)],
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
    if as_json:
        print_json(document)
    else:
        _print(begun, document)
    return _find_status(begun)


def _find_status(begun: "Replay") -> int:
    if any(outcome.status == "cancelled" for outcome in begun.outcomes):
        return INTERRUPTED
    is_open = any(finding.verdict == "unknown" for finding in begun.list_findings())
    return INCOMPLETE if is_open or begun.problem is not None else 0


def _print(begun: "Replay", document: dict[str, Any]) -> None:
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
            [share.metric, share.verdict, share.n, share.share, write_interval(share.ci_low, share.ci_high),
             _MEANINGS[share.verdict]]
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
    if _find_status(begun):
        print_line(f"next: evalhouse replay {base} {candidate}   (goes on with what is missing)")
    else:
        print_line(f"next: evalhouse compare {base} {candidate} --sample {findings[0].move.sample_id}")
