"""`evalhouse prefer`: which of two answers is better, over two runs or two columns of a dataset."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import click

from evalhouse.flows.commands.options import (
    DRY_RUN_OPTION,
    FRESH_OPTION,
    JSON_OPTION,
    REASONING_OPTION,
    UNDECIDED_OPTION,
    WAREHOUSE_URL_OPTION,
    count_option,
    find_warehouse,
    limit_options,
    temperature_option,
)
from evalhouse.flows.errors import GATE_FAILED, INCOMPLETE, INTERRUPTED, SettingsError
from evalhouse.flows.results.output import (
    print_json,
    print_line,
    print_notice,
    print_table,
    write_count,
    write_dollars,
)
from evalhouse.warehouse.rows.samples import CLUSTER_COLUMNS, NO_CLUSTER

if TYPE_CHECKING:
    from evalhouse.flows.prefer import PreferPlan
    from evalhouse.warehouse.rows.runs import RunRow

_KEPT_BACK = ("ground_truth", "contexts")
_TOP = 5
_USED = ("requests", "reused", "failed", "prompt_tokens", "completion_tokens", "cost_usd")


@click.command()
@click.argument("base", metavar="[BASE]", required=False)
@click.argument("candidate", metavar="[CANDIDATE]", required=False)
@click.option(
    "--columns", metavar="A,B", help="BASE is a dataset, as `run` takes it: hold the answers in its columns A and B "
    "against each other.",
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
    f"first of {', '.join(CLUSTER_COLUMNS)} that all samples have.",
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
    **flags: Any,  # noqa: ANN401  # those of settings
) -> int:
    """Ask a judge which of two answers is better: those of the runs BASE and CANDIDATE to the samples both have, or
    with --columns those in two columns of a dataset.

    Runs are named as for `compare`; without them `previous` is held against `latest`. The judge is shown the question,
    the ground truth and the contexts of both sides where they are there, and both answers, twice, with either in
    front. Where both orders name the same answer it wins, where one says tie that is half a win, and where they
    contradict each other it is a tie. What the place does is measured and shown beside it.

    A pair is asked about once: `evalhouse resume` goes on where it was stopped, and pays for nothing twice. Exit
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
    """Go on with a run of kind prefer where it was stopped, and return the exit status."""
    from evalhouse.flows.prefer import plan_again  # noqa: PLC0415  # all that asks
    from evalhouse.flows.preparing.settings import check_resumable  # noqa: PLC0415  # imports those of a run

    check_resumable(run, changes, {parameter.name for parameter in prefer.params})
    with ExitStack() as held:
        return _carry_out(plan_again(held, run, changes, warehouse_url), top=_TOP, as_json=as_json)


def _carry_out(plan: "PreferPlan", *, top: int, as_json: bool) -> int:
    from evalhouse.flows.prefer import prefer as ask  # noqa: PLC0415
    from evalhouse.flows.results.preferences import describe_preferences, print_preferences  # noqa: PLC0415
    from evalhouse.flows.results.progress import show_run  # noqa: PLC0415  # all that asks, as above
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
