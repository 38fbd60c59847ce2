"""`run --dry-run`: the requests and the cost of a run, less stored replies; nothing is asked and nothing written.

The real steps go over the real samples with the real requests, so that stored replies are found as in the run itself. A
request that would have to be sent is counted instead and gets a placeholder reply (`stand_ins`). Whether a provider's
cache has the beginnings that requests share is known only afterwards (OpenAI keeps none under 1,024 tokens), so there
are two sums: without such a cache, and with one that has them all.

The answers of an application under test are not known before. The answers of the suite's last run are used instead:
what was judged then and has not changed is stored and costs nothing. Without any, the cost of judging is unknown.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from evalhouse.flows.preparing.live_run import (
    check_history,
    describe_columns,
    find_parent_responses,
    make_live_run,
    make_plan,
    refuse_budget_of_answers,
)
from evalhouse.flows.preparing.request import count_judged, show_target
from evalhouse.flows.results.output import (
    Table,
    make_table,
    print_json,
    print_line,
    print_new_notices,
    print_notice,
    print_table,
    write_count,
    write_dollars,
)
from evalhouse.flows.results.run_facts import explain_surface
from evalhouse.tasks.asking.embeddings import AskedEmbedder
from evalhouse.tasks.asking.record import ReplyFinder
from evalhouse.tasks.asking.usage import Usage, load_batch_rates
from evalhouse.tasks.datasets.read import describe_language, settle_language, stage_of
from evalhouse.tasks.judge.protocol import find_judge, list_judges
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.models.stand_ins import DryRecord, StandInJudge
from evalhouse.tasks.settings.environment import nothing_looked_up
from evalhouse.tasks.settings.run import RunSettings, list_night
from evalhouse.tasks.targets.collection import KnownResponses
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.calls import StoredReply
from evalhouse.warehouse.rows.runs import find_run, list_runs
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.steps import list_calls
from evalhouse.warehouse.store import Warehouse

_SAMPLES_AT_ONCE = 200

# The fields of a usage that are shown, in this order.
_SHOWN = (
    "requests", "reused", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd", "cached_usd",
)  # fmt: skip
_USAGE_COLUMNS = {
    "requests": "#requests", "reused": "#on record", "failed": "#failed", "unreadable": "#unreadable",
    "prompt_tokens": "#tokens in", "cached_tokens": "#of them shared", "completion_tokens": "#tokens out",
    "cost_usd": "#cost", "cached_usd": "#with cache",
}  # fmt: skip

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

T = TypeVar("T")
FillIn = Callable[[Sequence[StoredSample]], list[StoredSample]]


@dataclass(frozen=True, kw_only=True)
class NoiseEstimate:
    """The requests of measuring the judge's noise after the run, on top of it: `n_samples` judged once more.

    `cost_usd` is None as well when the run itself has nothing to send that would show what a request costs.
    """

    n_samples: int
    requests: int
    cost_usd: float | None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The requests of a run, by step, by judge and in all.

    In `steps` `cached_tokens` counts the prompt tokens that equal the beginning of an earlier request. `stand_in` is a
    note if no embedding model compares meaning.
    """

    n_samples: int
    judge: str
    steps: Mapping[str, Usage]
    by_judge: Mapping[str, Usage]
    embeddings: str | None = None
    stand_in: str | None = None
    budget_usd: float | None = None
    noise: NoiseEstimate | None = None

    @property
    def usage(self) -> Usage:
        """The sum over all steps."""
        return sum(self.steps.values(), start=Usage())

    def find_judge(self, step: str) -> str:
        """Return the model that is asked in a step: its judge, or the embeddings."""
        return self.embeddings or "" if step == "similarity" else find_judge(self.judge, step)

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON: `cost_usd` is the sum without a provider's cache, `cached_usd` with one."""
        return {
            "n_samples": self.n_samples,
            "judge": self.judge,
            "embeddings": self.embeddings,
            **self.usage.pick(*_SHOWN),
            "steps": [
                {"step": step, "judge": self.find_judge(step), **usage.pick(*_SHOWN)}
                for step, usage in self.steps.items()
            ],
            "judges": {name: usage.pick(*_SHOWN) for name, usage in self.by_judge.items()},
            "budget_usd": self.budget_usd,
            "noise": asdict(self.noise) if self.noise else None,
        }


def ask_dry(
    settings: RunSettings,
    plan: Plan,
    ask: Callable[["LiveRun", DryRecord], Coroutine[Any, Any, T]],
    *,
    counted: dict[str, StoredReply] | None = None,
) -> T:
    """Call `ask` with a live run that sends and writes nothing, and with the record that counts instead.

    `counted` are the replies of runs that were estimated before; the replies of this one are added.
    Raises the errors of a real run; limits of rates and the budget do not apply.
    """
    # Nothing is sent, so an estimate needs no key.
    os.environ.setdefault("OPENAI_API_KEY", "none-needed-for-a-dry-run")
    warehouse = Warehouse(settings.warehouse)
    is_known = warehouse.exists() and not settings.fresh
    record = DryRecord(finder=ReplyFinder(warehouse) if is_known else None, counted={} if counted is None else counted)
    unlimited = settings.model_copy(update={"rpm": None, "tpm": None})
    with nothing_looked_up():
        judges = make_judges(settings, plan).change(StandInJudge)
        live_run = make_live_run("dry-run", unlimited, plan, judges, warehouse, record=record)
    if isinstance(live_run.embedder, AskedEmbedder):
        live_run.embedder.asker.judge = StandInJudge(live_run.embedder.asker.judge)
    for asker in live_run.askers:
        asker.budget_usd = None
    if settings.batch:
        rates = load_batch_rates(settings.prices)
        for asker in live_run.asker.all:
            rate = rates.get(asker.judge.name.partition(":")[0])
            asker.price = asker.price.at_rate(rate) if asker.price and rate else asker.price
    record.prices = {asker.judge.name: asker.price for asker in live_run.asker.all}

    async def go_through() -> T:
        try:
            return await ask(live_run, record)
        finally:
            await live_run.close()

    return asyncio.run(go_through())


def estimate_run(
    settings: RunSettings,
    *,
    fill_in: FillIn = list,
    counted: dict[str, StoredReply] | None = None,
    printed: set[str] | None = None,
) -> Estimate:
    """Go through a run without asking anything; raises the errors of the run's preparation.

    `fill_in` gives samples answers from elsewhere and leaves out samples without one; `counted` as in `ask_dry`;
    `printed` are notices that were printed already.
    """

    async def take_steps(live_run: "LiveRun", record: DryRecord) -> DryRecord:
        columns = describe_columns(staged, settings, live_run.metrics, live_run.rubrics)
        language = describe_language(staged.read_first(), settings.judge)
        print_new_notices((*columns, *language), set() if printed is None else printed)
        picked = None
        if settings.sample_budget is not None and settings.sample_budget < staged.staging.n_rows:
            from evalhouse.tasks.pipeline.sampling import pick_staged  # noqa: PLC0415  # few runs have a budget

            picks = pick_staged(live_run.warehouse, live_run.run_id, settings, live_run.metrics, staged.staging)
            picked = {pick.ordinal for pick in picks if pick.picked}
        # Imports Prefect, whose settings are not known yet when a command imports this module.
        from evalhouse.flows.shards import take_asking_steps  # noqa: PLC0415
        from evalhouse.tasks.pipeline.live_run import make_work  # noqa: PLC0415

        for first in range(1, staged.staging.n_rows + 1, _SAMPLES_AT_ONCE):
            found = staged.staging.read_between(first, first + _SAMPLES_AT_ONCE - 1)
            samples = fill_in([sample for sample in found if picked is None or sample.ordinal in picked])
            await asyncio.gather(*(take_asking_steps(live_run, make_work(sample)) for sample in samples))
        return record

    refuse_budget_of_answers(settings)
    settings, notes = settle_language(settings)
    for note in notes:
        print_notice(note)
    plan = make_plan(settings)
    staged = stage_of(settings)
    for note in check_history(settings, staged):
        print_notice(note)
    try:
        record = ask_dry(settings, plan, take_steps, counted=counted)
    finally:
        staged.staging.discard()
    estimate = Estimate(
        n_samples=count_judged(settings, staged),
        judge=settings.judge,
        steps=dict(sorted(record.by_step.items())),
        by_judge=record.by_judge,
        embeddings=settings.embeddings if "similarity" in list_calls(plan.steps) else None,
        stand_in=explain_surface(
            settings.embeddings, [metric.name for metric in plan.metrics], settings.metric_settings
        ),
        budget_usd=settings.budget_usd,
    )
    usage = estimate.usage
    asks = usage.requests + usage.reused
    if not settings.noise_share or not asks:
        return estimate
    from evalhouse.tasks.comparing.noise import count_picked, has_noise  # noqa: PLC0415  # imports the statistics

    if not has_noise(settings.judge, settings.embeddings):
        return estimate
    # Samples are assumed to need as many requests as they do on average.
    n_samples = count_picked(estimate.n_samples, settings.noise_share)
    requests = round(asks * n_samples / estimate.n_samples)
    cost_usd = None if usage.cost_usd is None or not usage.requests else usage.cost_usd / usage.requests * requests
    return replace(estimate, noise=NoiseEstimate(n_samples=n_samples, requests=requests, cost_usd=cost_usd))


def print_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print an estimate as a table for people or as JSON."""
    if as_json:
        print_json(estimate.to_plain())
        return
    usage = estimate.usage
    rows = [([name], of_step) for name, of_step in (*estimate.steps.items(), ("total", usage))]
    print_table(usage_table(["step"], rows, _SHOWN))
    if len(list_judges(estimate.judge)) > 1:
        print_line()
        print_table(
            usage_table(["judge"], [([name], of_judge) for name, of_judge in estimate.by_judge.items()], _SHOWN)
        )
    print_line()
    cost = write_dollars(usage.cost_usd)
    if usage.cached_usd != usage.cost_usd:  # its price shows that the provider has a cache
        cost += f", or {write_dollars(usage.cached_usd)} if the provider caches what requests have in common"
    tools = f"judged by {estimate.judge}" + (f", embeddings {estimate.embeddings}" if estimate.embeddings else "")
    print_line(
        f"{write_count(estimate.n_samples, 'sample')}, {tools}: {write_count(usage.requests, 'request')} to send and "
        f"{usage.reused:,} replies on record; about {usage.prompt_tokens:,} + {usage.completion_tokens:,} "
        f"tokens, cost {cost}. Nothing was asked."
    )
    if estimate.stand_in is not None:
        print_line(estimate.stand_in)
    if noise := estimate.noise:
        cost = f", cost {write_dollars(noise.cost_usd)}" if noise.cost_usd is not None else ""
        print_line(
            f"On top comes what measures the judge's noise: {noise.n_samples} samples judged again, about "
            f"{noise.requests:,} requests{cost}."
        )
    if estimate.budget_usd is not None and (usage.cost_usd or 0.0) > estimate.budget_usd:
        print_line(f"That is more than the budget of ${estimate.budget_usd:g}: the run would stop with samples left.")


def usage_table(
    columns: Sequence[str],
    rows: Sequence[tuple[Sequence[object], Usage]],
    names: Sequence[str],
    *,
    title: str | None = None,
) -> Table:
    """Return a table of rows of cells, each with its usage: a column for each of these fields."""

    def write(usage: Usage, name: str) -> str:
        value = getattr(usage, name)
        return write_dollars(value) if name.endswith("_usd") else f"{value:,}"

    cells = [[*row, *(write(usage, name) for name in names)] for row, usage in rows]
    return make_table([*columns, *(_USAGE_COLUMNS[name] for name in names)], cells, title=title)


@dataclass(kw_only=True)
class _Answers:
    """Fills known responses into samples, and counts them."""

    known: KnownResponses
    n_samples: int = 0
    n_known: int = 0

    def fill_in(self, samples: Sequence[StoredSample]) -> list[StoredSample]:
        """Return the samples whose response is known and did not fail, with it."""
        responses = self.known.find(samples)
        self.n_samples += len(samples)
        answered = [
            replace(
                sample,
                answer=response.answer,
                contexts=response.contexts,
                context_ids=response.context_ids,
                conversation_json=response.conversation_json,
            )
            for sample in samples
            if (response := responses.get(sample.sample_id)) is not None and response.status != "failed"
        ]
        self.n_known += len(answered)
        return answered


def print_estimates(settings: RunSettings, *, as_json: bool) -> None:
    """Print the estimate of a run and, for a suite, of its variants; one budget is for all of them."""
    night = [settings, *list_night(settings)]
    counted: dict[str, StoredReply] = {}
    printed: set[str] = set()
    documents = []
    for of_variant in night:
        alone = of_variant.model_copy(update={"budget_usd": None}) if len(night) > 1 else of_variant
        if len(night) > 1 and not as_json:
            print_line(f"{of_variant.suite_name}:", bold=True)
        if alone.target is None and alone.responses is None:
            estimate = estimate_run(alone, counted=counted, printed=printed)
            if not as_json:
                print_estimate(estimate, as_json=False)
            documents.append(estimate.to_plain())
        else:
            documents.append(_print_target_estimate(alone, as_json=as_json, counted=counted, printed=printed))
        if len(night) > 1 and not as_json:
            print_line()
    first, *others = documents
    if as_json:
        variants = {str(item.variant): document for item, document in zip(night[1:], others, strict=True)}
        of_night = {"budget_usd": settings.budget_usd, "variants": variants} if variants else {}
        print_json({**first, **of_night})
    elif others:
        if any(document["requests"] is None for document in documents):
            print_line(f"The whole night has {len(night)} runs; what judging them costs is not known yet.")
            return
        n_requests = sum(int(document["requests"]) for document in documents)
        is_priced = all(document["cost_usd"] is not None for document in documents)
        cost_usd = sum(float(document["cost_usd"]) for document in documents) if is_priced else None
        print_line(
            f"The whole night has {len(night)} runs: {write_count(n_requests, 'request')} to send, cost "
            f"{write_dollars(cost_usd)}. What all answers have in common is asked once."
        )
        if settings.budget_usd is not None and (cost_usd or 0.0) > settings.budget_usd:
            print_line(
                f"That is more than the budget of ${settings.budget_usd:g}, which is for all of them: the night would "
                "stop with samples left."
            )


def _print_target_estimate(
    settings: RunSettings, *, as_json: bool, counted: dict[str, StoredReply], printed: set[str]
) -> dict[str, Any]:
    """Print the estimate of a run with a target, or with the responses of an earlier run; return it as JSON."""

    async def ask_nothing(_run: "LiveRun", _record: DryRecord) -> None:
        return

    if settings.target is not None:
        from evalhouse.tasks.targets.collection import make_target  # noqa: PLC0415  # few runs have one

        make_target(settings.target)
    warehouse = Warehouse(settings.warehouse)
    # The run whose responses are assumed: the one that is named, else the suite's last that has any.
    parent = None
    if settings.responses is not None:
        parent = find_run(warehouse, settings.responses)
    elif warehouse.location.path.exists():
        asked = (
            run for run in list_runs(warehouse) if run.suite_name == settings.suite_name and run.config.get("target")
        )
        ended = (run for run in asked if not run.is_part_of_run and run.status in ("completed", "incomplete"))
        parent = next(ended, None)
    estimate, answers = None, None
    if parent is not None:
        answers = _Answers(known=find_parent_responses(warehouse, parent))
        estimate = estimate_run(settings, fill_in=answers.fill_in, counted=counted, printed=printed)
        estimate, n_samples = replace(estimate, n_samples=answers.n_known), answers.n_samples
    else:
        plan = make_plan(settings)
        ask_dry(settings, plan, ask_nothing)  # a judge that the run would refuse
        staged = stage_of(settings)
        alone = check_history(settings, staged)
        columns = describe_columns(staged, settings, plan.metrics)
        print_new_notices((*alone, *columns, *describe_language(staged.read_first(), settings.judge)), printed)
        staged.staging.discard()
        n_samples = staged.n_samples
    # The questions that are asked again. Requests to the judge and their cost are for the case that no answer is the
    # same, None if unknown.
    repeats: dict[str, Any] | None = None
    n_repeated = 0
    if settings.target is not None and not settings.responses and settings.target.repeats:
        from evalhouse.tasks.comparing.noise import count_picked  # noqa: PLC0415  # imports the statistics

        n_again, n_rounds = count_picked(n_samples, settings.target.repeat_share), settings.target.repeats
        repeats = {"n_questions": n_again, "n_rounds": n_rounds, "requests": None, "cost_usd": None}
        n_repeated = n_again * n_rounds
        if estimate is not None and estimate.n_samples:
            # Answers are assumed to need as many requests as they do on average.
            usage = estimate.usage
            requests = round((usage.requests + usage.reused) * n_repeated / estimate.n_samples)
            repeats["requests"] = requests
            if usage.cost_usd is not None and usage.requests:
                repeats["cost_usd"] = usage.cost_usd / usage.requests * requests
    # Nothing is asked where the responses of a run are judged. The rest of the estimate rests on the known answers.
    asked_of = show_target(settings.target) if settings.target and not settings.responses else None
    n_asked = 0 if settings.responses else n_samples
    n_known, answers_of = answers.n_known if answers else 0, parent.run_id if parent else None
    judging = estimate.to_plain() if estimate else {"n_samples": n_samples, "judge": settings.judge, "requests": None}
    target = {
        "asked": asked_of, "n_questions": n_asked, "n_answers_known": n_known, "answers_of": answers_of,
        "repeats": repeats,
    }  # fmt: skip
    document = {**judging, "target": target}
    if as_json:
        return document
    more = ""
    if asked_of is not None:
        if repeats is not None:
            times = write_count(repeats["n_rounds"], "more time")
            more = f", and {repeats['n_questions']:,} of them {times}: {n_asked + n_repeated:,} requests"
        print_line(f"{asked_of} will be asked {n_asked:,} questions{more}.")
    if answers_of is None:
        print_line(
            "Its answers are not known yet, so the cost of judging them is unknown. `evalhouse collect` asks without "
            "judging; afterwards this estimate has answers to use. Nothing was asked."
        )
    else:
        share = f"{n_known:,} answers of run {answers_of} to these {n_samples:,} questions"
        print_line(f"Judging is estimated from the {share}; what the application answers differently is asked in full.")
    if estimate is not None:
        print_line()
        print_estimate(estimate, as_json=False)
    if repeats is not None and repeats["requests"] is not None:
        cost = f", cost {write_dollars(repeats['cost_usd'])}" if repeats["cost_usd"] is not None else ""
        print_line(
            f"On top comes the judging of the {n_repeated:,} repeated answers: at most about "
            f"{repeats['requests']:,} requests{cost}, and none for an answer that is what it was."
        )
    return document
