"""Prompts tried outside a run: the requests of a prompt for one sample, and two sets of prompts on reviewed verdicts.

`prompts compare` asks the judge again about verdicts that people have reviewed, by old and new prompts. The requests
are sent like the requests of a run, over the samples and statements of the reviewed runs and by the plan of each, so
stored replies are reused. The calls belong to a separate run of kind `prompts`, whose parent is the reviewed run; it
has no scores, and `latest`, `previous` and labels never select it.

`prompts show --sample` sends and writes nothing: the real steps run over the sample, and their questions are collected
in place of replies. Statements are from the built-in lexical judge (`tasks/models/stand_ins.py`).
"""

import asyncio
import tempfile
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_live_run, make_plan
from evalhouse.flows.preparing.request import Resolved, begin_run, resolve_settings
from evalhouse.flows.results.output import make_table, print_line, print_table, write_interval
from evalhouse.flows.run.estimate import usage_table
from evalhouse.flows.shards import load_step, take_asking_steps
from evalhouse.flows.trials.session import Session, open_session, rehearse
from evalhouse.prompts import Item, Message, Prompt, load_prompts
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.comparing.agreement import VERDICT, Change, compare_changes, list_moves
from evalhouse.tasks.comparing.intervals import Measure
from evalhouse.tasks.datasets.read import stage_of
from evalhouse.tasks.judge.protocol import Question, RunCancelled, find_judge, is_fixed
from evalhouse.tasks.models.make import Judges
from evalhouse.tasks.models.stand_ins import NoRecord, StandInJudge
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun, SampleWork, make_work
from evalhouse.tasks.settings.run import RunSettings, list_settings, read_settings
from evalhouse.warehouse.messages import shorten, suggest
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.reviews import JudgedTexts, fetch_judged_texts, fetch_reviewed
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.steps import (
    APART_PROMPTS,
    PLANS,
    REVIEWED_PROMPTS,
    SEPARATE,
    add_earlier,
    arrange_steps,
    find_asking_steps,
    find_step,
)
from evalhouse.warehouse.store import Warehouse

BUILT_IN = "built-in"
_COMPARED = (*REVIEWED_PROMPTS, *(str(plan.prompt) for plan in PLANS.values()))
_ITEM = ("run_id", "sample_id", "step", "item_id")
ALL = "all"
_MAX_MOVES = 20
_SIDES = ("old", "new")
_USED = ("requests", "reused", "failed", "prompt_tokens", "completion_tokens", "cost_usd")


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The prompts of one side: their source, and by name the prompts that ask for reviewed verdicts."""

    source: str
    prompts: Mapping[str, Prompt]


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """The plan of a comparison: the prompts, the steps whose reviewed verdicts are asked for, and the samples' texts.

    `asked` are the prompts by reviewed run: a run by a plan was asked with that of the plan.
    """

    settings: RunSettings
    old: PromptSet
    new: PromptSet
    prompts: tuple[str, ...]
    steps: tuple[str, ...]
    asked: Mapping[str, tuple[str, ...]]
    reviewed: pl.DataFrame
    texts: Mapping[str, Sequence[JudgedTexts]]
    configs: Mapping[str, RunSettings]

    @property
    def n_verdicts(self) -> int:
        """Reviewed verdicts that are asked about."""
        return self.reviewed.n_unique(VERDICT)


@dataclass(frozen=True, kw_only=True)
class ItemVerdict:
    """The judge's verdict on one item: a statement's id, or a context's as C1, C2, …"""

    sample_id: str
    step: str
    item_id: str
    label: str


@dataclass(frozen=True, kw_only=True)
class PromptComparison:
    """The result of a comparison. `n_unjudged` reviewed verdicts have no verdict on one side: the judge failed."""

    run_id: str
    changes: Sequence[Change]
    moves: pl.DataFrame
    n_unjudged: int
    usages: Sequence[Usage]


def find_prompt_set(warehouse: Warehouse, source: str, language: str) -> PromptSet:
    """Find the prompts that OLD or NEW means: `built-in`, a folder as for `--prompts`, or a stored hash or version.

    Raises SettingsError for any other source, and PromptError for a folder that would be refused.
    """
    if source == BUILT_IN or Path(source).is_dir():
        prompts = load_prompts(language, None if source == BUILT_IN else Path(source))
        return PromptSet(source=source, prompts={name: prompts[name] for name in _COMPARED})
    # Prompts that the hash or version does not name are the built-in ones.
    rows = [
        row
        for row in warehouse.fetch_rows("corrected_means/prompts", version=source, language=language)
        if row["prompt"] in _COMPARED
    ]
    names = [row["prompt"] for row in rows]
    if not rows:
        raise SettingsError(
            f"{source!r} is not a folder, and no prompt of {', '.join(_COMPARED)} in language {language} is "
            f"stored with such a hash or version; give {BUILT_IN}, a folder, or the start of a hash "
            "(`evalhouse query 'select prompt, version, prompt_hash from prompts'`)"
        )
    if len(set(names)) < len(names):
        hashes = ", ".join(f"{row['prompt']} {row['prompt_hash'][:12]}" for row in rows)
        raise SettingsError(f"{source!r} fits several prompts of one name: {hashes}; give the start of a hash")
    with tempfile.TemporaryDirectory(prefix="evalhouse-prompts-") as folder:
        for row in rows:
            (Path(folder) / f"{row['prompt']}.yaml").write_text(row["template"], encoding="utf-8")
        prompts = load_prompts(language, Path(folder))
    return PromptSet(source=source, prompts={name: prompts[name] for name in _COMPARED})


def plan_comparison(
    warehouse: Warehouse,
    runs: Sequence[RunRow],
    settings: RunSettings,
    old: PromptSet,
    new: PromptSet,
    *,
    only: str | None = None,
) -> ComparisonPlan:
    """Plan the comparison; raises SettingsError if there is nothing to ask.

    A content that several runs have verdicts on is asked about in the newest of them. `only` is the prompt that will
    differ, where that of `new` is not made yet.
    """
    differing = [name for name in _COMPARED if old.prompts[name].prompt_hash != new.prompts[name].prompt_hash]
    differing = [only] if only else differing
    if not differing:
        raise SettingsError(
            f"{old.source} and {new.source} ask in the same words for {', '.join(_COMPARED)}, which are what "
            "people review; there is nothing to compare"
        )
    judges = {name: find_judge(settings.judge, name) for name in differing}
    prompts = tuple(name for name, judge in judges.items() if not is_fixed(judge))
    if not prompts:
        raise SettingsError(
            f"the {' and the '.join(dict.fromkeys(judges.values()))} judge reads no prompt, so that other words change "
            f"none of its verdicts ({', '.join(differing)}); name a model with --judge"
        )
    newest = sorted(runs, key=lambda run: run.started_at, reverse=True)
    configs: dict[str, RunSettings] = {}
    asked: dict[str, dict[str, str]] = {}  # by run and reviewed step the prompt that asks for its verdicts
    for run in newest:
        # The content of requests follows the run's settings, and the way of asking this comparison's.
        own = read_settings(run.config)
        names = ("metrics", "metric_files", "votes", "contexts_alone", "request_tokens", "plan")
        changes = {name: getattr(own, name) for name in names}
        config = settings.model_copy(update={**changes, "embeddings": "hashing", "prompts": None})
        configs[run.run_id] = config
        asked[run.run_id] = {name: name for name in REVIEWED_PROMPTS}
        for name in arrange_steps(make_plan(config).steps, config.plan) & PLANS.keys():
            joins = {find_step(joined).task: str(PLANS[name].prompt) for joined in PLANS[name].joins}
            asked[run.run_id] |= joins
    reviewed = fetch_reviewed(warehouse, list(configs)).filter(
        pl.struct("run_id", "step").is_in(
            [
                {"run_id": run_id, "step": step}
                for run_id, by_step in asked.items()
                for step, prompt in by_step.items()
                if prompt in prompts
            ]
        ),
        pl.col("run_id") == pl.col("run_id").first().over("item_hash"),
    )
    if reviewed.is_empty():
        raise SettingsError(
            f"no verdict that was asked for with {', '.join(prompts)} has been reviewed in {', '.join(configs)}; "
            "`evalhouse review export` picks some for a person to label"
        )
    by_run = {str(run_id): part for (run_id,), part in reviewed.group_by(["run_id"], maintain_order=True)}
    texts = {
        run_id: fetch_judged_texts(warehouse, run_id, part["sample_id"].unique(maintain_order=True).to_list())
        for run_id, part in by_run.items()
    }
    used = {run_id: _pick(prompts, {asked[run_id][step] for step in part["step"]}) for run_id, part in by_run.items()}
    by_plan = next((configs[run_id].plan for run_id, names in used.items() if set(names) & PLANS.keys()), settings.plan)
    return ComparisonPlan(
        settings=settings.model_copy(update={"plan": by_plan}),
        old=old,
        new=new,
        prompts=_pick(prompts, {name for names in used.values() for name in names}),
        steps=_pick(REVIEWED_PROMPTS, set(reviewed["step"])),
        asked=used,
        reviewed=reviewed,
        texts=texts,
        configs={run_id: configs[run_id] for run_id in by_run},
    )


def _pick(names: Sequence[str], wanted: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in wanted)


Side = tuple[Mapping[str, Sequence[ItemVerdict]], Usage]
"""The verdicts of one side by reviewed run, and its usage."""


def compare_prompts(
    plan: ComparisonPlan, ask: Callable[[Session], Coroutine[Any, Any, Sequence[Side]]], *, seed: int
) -> PromptComparison:
    """Ask with both and compare; raises FatalJudgeError when nothing works, RunCancelled when it was stopped."""
    run = begin_run(
        "prompts",
        plan.settings,
        parent=next(iter(plan.texts)),
        tags=(f"old {plan.old.source}", f"new {plan.new.source}"),
        n_samples=sum(len(texts) for texts in plan.texts.values()),
    )
    try:
        with open_session(plan.settings, make_plan(next(iter(plan.configs.values()))), run=run) as session:
            sides = session.carry_out(ask)
    except RunCancelled as error:
        raise RunCancelled(f"{error}; the replies so far are stored") from None
    # The reviewed verdicts with the labels of both sides; NULL where the judge failed.
    frame = plan.reviewed.with_columns(item_id=pl.coalesce("statement_id", pl.format("C{}", "context_rank")))
    for name, (by_run, _) in zip(("old_label", "new_label"), sides, strict=True):
        rows = [
            {"run_id": run_id, "sample_id": verdict.sample_id, "step": verdict.step, "item_id": verdict.item_id,
             name: verdict.label}
            for run_id, verdicts in by_run.items()
            for verdict in verdicts
        ]  # fmt: skip
        labels = pl.DataFrame(rows, schema=dict.fromkeys((*_ITEM, name), pl.String))
        frame = frame.join(labels, on=list(_ITEM), how="left", maintain_order="left")
    judged = frame.drop_nulls(["old_label", "new_label"])
    return PromptComparison(
        run_id=run.run_id,
        changes=compare_changes(judged, seed=seed),
        moves=list_moves(judged),
        n_unjudged=plan.n_verdicts - judged.n_unique(VERDICT),
        usages=[usage for _, usage in sides],
    )


async def _ask_both(session: Session, plan: ComparisonPlan) -> list[Side]:
    """Ask with the old prompts, then the new ones."""
    sides: list[Side] = []
    for words in (plan.old, plan.new):
        before = session.usage
        verdicts = {}
        for reviewed_run, texts in plan.texts.items():
            works = await ask_with(session, plan, reviewed_run, words.prompts, texts)
            verdicts[reviewed_run] = list_verdicts(works)
        sides.append((verdicts, session.usage - before))
    return sides


async def ask_with(
    session: Session, plan: ComparisonPlan, run_id: str, prompts: Mapping[str, Prompt], texts: Sequence[JudgedTexts]
) -> list[SampleWork]:
    """Ask about samples of a reviewed run with other prompts."""
    steps = make_plan(plan.configs[run_id])
    live_run = await session.fit(
        replace(
            session.live_run,
            settings=plan.configs[run_id],
            prompts={**session.live_run.prompts, **prompts},
            metrics=steps.metrics,
            steps=steps.steps,
        )
    )
    return await judge_again(live_run, texts, plan.asked[run_id])


async def judge_again(live_run: LiveRun, texts: Sequence[JudgedTexts], steps: Sequence[str]) -> list[SampleWork]:
    """Return these samples with all verdicts by the live run's judge and prompts; a step that failed has none.

    `steps` are files in `tasks/`, which are named like what they ask with.
    """
    works: list[SampleWork] = []
    for of_sample in texts:
        # A sample with the statements of its run.
        work = make_work(of_sample.sample)
        for source in work.extractions:
            rows = [row for row in of_sample.splits if row["source"] == source]
            reason = next((str(row["reason"]) for row in rows if row["reason"] is not None), None)
            items = tuple(Item(id=str(row["statement_id"]), text=str(row["text"])) for row in rows)
            work.hand_over(source, Extraction(items=items) if reason is None else Extraction(reason=reason))
        works.append(work)
    await asyncio.gather(*(load_step(step).take(live_run, work) for work in works for step in steps))
    return works


def walk_verdicts(work: SampleWork) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield the verdicts in a judged sample that people review: step, item, label, and the row."""
    for row in work.rows["classifications"]:
        yield "classify", str(row["statement_id"]), str(row["label"]), row
    for row in work.rows["attributions"]:
        item_id = str(row["statement_id"])
        # Of the ground truth's statements contexts alone count, as in review_items.
        counts = item_id.startswith("A") or row["context_ranks"] or not row.get("turn_ranks")
        yield "attribute", item_id, "supported" if row["supported"] and counts else "unsupported", row
    for row in work.rows["context_verdicts"]:
        yield "rank", f"C{row['context_rank']}", "useful" if row["useful"] else "not_useful", row


def list_verdicts(works: Sequence[SampleWork]) -> list[ItemVerdict]:
    """List the verdicts in samples that were judged."""
    return [
        ItemVerdict(sample_id=work.sample.sample_id, step=step, item_id=item_id, label=label)
        for work in works
        for step, item_id, label, _ in walk_verdicts(work)
    ]


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """A comparison, or what one would take, ready to be shown."""

    plan: ComparisonPlan
    costs: Sequence[Usage]
    comparison: PromptComparison | None

    def to_plain(self) -> dict[str, Any]:
        """Return the report as in JSON."""
        sides = {}
        for side, words in zip(_SIDES, (self.plan.old, self.plan.new), strict=True):
            hashes = {}
            for name in self.plan.prompts:
                prompt = words.prompts[name]
                hashes[name] = {"version": prompt.version, "prompt_hash": prompt.prompt_hash}
            sides[side] = {"source": words.source, "prompts": hashes}
        plain: dict[str, Any] = {
            **sides,
            "judge": self.plan.settings.judge,
            "language": self.plan.settings.language,
            "steps": list(self.plan.steps),
            "reviewed_runs": list(self.plan.texts),
            "n_verdicts": self.plan.n_verdicts,
            "costs": {side: usage.pick(*_USED) for side, usage in zip(_SIDES, self.costs, strict=True)},
        }
        if self.comparison is None:
            return plain
        return plain | {
            "run_id": self.comparison.run_id,
            "n_unjudged": self.comparison.n_unjudged,
            "changes": [asdict(change) for change in self.comparison.changes],
            "moves": self.comparison.moves.to_dicts(),
        }

    def print(self) -> None:
        """Print the report for a person."""
        plan = self.plan
        n_samples = sum(len(texts) for texts in plan.texts.values())
        print_line(
            f"{plan.n_verdicts} reviewed verdicts in {n_samples} samples, judged by {plan.settings.judge}; prompts "
            f"that differ: {', '.join(plan.prompts)}"
        )
        print_line()
        if self.comparison is not None:
            columns = [
                "step", "#verdicts", "#old", "#new", "difference", "κ old", "κ new", "difference of κ", "#changed",
                "#better", "#worse", "verdict", "mind",
            ]  # fmt: skip
            rows = [
                [
                    change.step,
                    change.n_verdicts,
                    change.accuracy_old.value,
                    change.accuracy_new.value,
                    _write_change(change.accuracy_difference),
                    change.kappa_old.value if change.kappa_old else None,
                    change.kappa_new.value if change.kappa_new else None,
                    _write_change(change.kappa_difference),
                    change.n_changed,
                    change.n_better,
                    change.n_worse,
                    change.verdict,
                    "; ".join(change.notes) or None,
                ]
                for change in self.comparison.changes
            ]
            print_table(make_table(columns, rows, title="Agreement with people"))
            print_line()
            if self.comparison.moves.is_empty():
                print_line("No verdict changed.")
            else:
                moves = self.comparison.moves.sort("moved", maintain_order=True).to_dicts()
                shown = [
                    [
                        move["step"], shorten(move["sample_id"], 40),
                        move["statement_id"] or f"C{move['context_rank']}", move["old_label"], move["new_label"],
                        ", ".join(move["people"]),
                        "better" if move["moved"] > 0 else "worse" if move["moved"] < 0 else "no nearer",
                    ]
                    for move in moves[:_MAX_MOVES]
                ]  # fmt: skip
                more = f", {_MAX_MOVES} of {len(moves)} (--json has all)" if len(moves) > _MAX_MOVES else ""
                columns = ["step", "sample", "item", "old", "new", "people", "which is"]
                print_table(make_table(columns, shown, title=f"Verdicts that changed, worst first{more}"))
                print_line()
        costs = [([side], usage) for side, usage in zip(_SIDES, self.costs, strict=True)]
        print_table(usage_table(["words"], costs, _USED, title="Costs"))
        if self.comparison is None:
            print_line("Nothing was asked.")
            return
        if self.comparison.n_unjudged:
            print_line(f"{self.comparison.n_unjudged} verdicts are left out: the judge failed on one side or both.")
        print_line(f"The calls are stored under run {self.comparison.run_id}.")


def compare_prompt_sets(
    *, old: str, new: str, reviewed: str, url: str, flags: Mapping[str, Any], seed: int, dry_run: bool
) -> ComparisonReport:
    """Compare two sets of prompts, or estimate what that takes; raises SettingsError for what cannot be compared."""
    warehouse = Warehouse(url)
    runs, settings = find_reviewed_runs(warehouse, reviewed, flags)
    words = [find_prompt_set(warehouse, source, settings.language) for source in (old, new)]
    plan = plan_comparison(warehouse, runs, settings, *words)
    return report_comparison(plan, partial(_ask_both, plan=plan), seed=seed, dry_run=dry_run)


def find_reviewed_runs(
    warehouse: Warehouse, reviewed: str, flags: Mapping[str, Any]
) -> tuple[list[RunRow], RunSettings]:
    """Find one reviewed run, or all; return them with the settings to ask again. Raises SettingsError without any."""
    names = list(warehouse.fetch("reviews/runs")["run_id"]) if reviewed == ALL else [reviewed]
    if not names:
        raise SettingsError(
            "no verdict has been reviewed yet; `evalhouse review export latest` picks some for a person to label"
        )
    runs = [find_run(warehouse, name) for name in names]
    newest = max(runs, key=lambda run: run.started_at)
    return runs, derive_settings(resolve_settings(flags), newest, warehouse.location.url)


def report_comparison(
    plan: ComparisonPlan, ask: Callable[[Session], Coroutine[Any, Any, Sequence[Side]]], *, seed: int, dry_run: bool
) -> ComparisonReport:
    """Carry a comparison out, or estimate what that takes."""
    if dry_run:
        sides = rehearse(plan.settings, make_plan(next(iter(plan.configs.values()))), ask)
        return ComparisonReport(plan=plan, costs=[usage for _, usage in sides], comparison=None)
    comparison = compare_prompts(plan, ask, seed=seed)
    return ComparisonReport(plan=plan, costs=comparison.usages, comparison=comparison)


def derive_settings(resolved: Resolved, run: RunRow, url: str) -> RunSettings:
    """Return a run's settings with the given changes for asking again."""
    settable = list_settings(lambda where: where.compares == "given")
    chosen = {name for name in settable if not resolved.origins[name].startswith("default")}
    always = list_settings(lambda where: where.compares == "always")
    own = read_settings(run.config)
    changes = {name: getattr(resolved.settings, name) for name in (*chosen, *always)}
    return own.model_copy(update={**changes, "warehouse": url, "prompts": None, "embeddings": "hashing"})


def _write_change(measure: Measure | None) -> str | None:
    if measure is None or measure.value is None:
        return None
    if measure.ci_low is None:
        return f"{measure.value:+.3f}"
    return f"{measure.value:+.3f} ({write_interval(measure.ci_low, measure.ci_high)})"


@dataclass(frozen=True, kw_only=True)
class PreviewedRequest:
    """The messages of one request, as they would be sent for the step."""

    step: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """All requests of a prompt for one sample; `why_none` explains an empty list."""

    sample_id: str
    requests: tuple[PreviewedRequest, ...]
    has_stand_ins: bool
    why_none: str | None


def preview_prompt(prompt: Prompt, settings: RunSettings, sample_id: str | None) -> Preview:
    """Collect the requests of `prompt` for a sample of the settings' dataset, by default its first one.

    Raises SettingsError for a prompt of test sets and for an id the dataset does not have, and DatasetError for a
    dataset that would be refused.
    """
    if prompt.name in APART_PROMPTS:
        raise SettingsError(
            f"{prompt.name} is asked where test sets are made and refreshed, and about no sample of a dataset; leave "
            "out --sample and --dataset to see its words"
        )
    if prompt.rubric is not None and prompt.rubric.is_of_pairs:
        raise SettingsError(
            f"{prompt.name} is asked of two answers, by `evalhouse prefer`, and about no single sample; leave out "
            "--sample and --dataset to see its words"
        )
    staged = stage_of(settings.model_copy(update={"limit": None}))
    try:
        ids: list[str] = []
        for sample in chain.from_iterable(staged.staging.read_parts()):
            if sample_id in (None, sample.sample_id):
                break
            ids.append(sample.sample_id)
        else:
            advice = suggest(sample_id or "", ids, otherwise="it has")
            raise SettingsError(f"dataset {settings.dataset} has no sample {sample_id!r}; {advice}")
    finally:
        staged.staging.discard()
    questions: dict[str, Question] = {}
    plans = (name for name, plan in PLANS.items() if prompt.name in (plan.prompt, plan.extract_prompt))
    way = next(plans, SEPARATE)  # of a step that asks by itself
    # Limits and votes change no message.
    quiet = settings.model_copy(
        update={"rpm": None, "tpm": None, "budget_usd": None, "votes": 1, "embeddings": "hashing", "plan": way}
    )
    asking = find_asking_steps(prompt.name) if way == SEPARATE else PLANS[way].joins
    plan = Plan(metrics=(), steps=add_earlier(asking))
    # The judge sends nothing: its questions are put into `questions`.
    judges = Judges(default=StandInJudge(None, heard=questions))
    live_run = make_live_run("preview", quiet, plan, judges, Warehouse(settings.warehouse), record=NoRecord())

    async def take_steps() -> SampleWork:
        work = make_work(sample)
        await take_asking_steps(live_run, work)
        return work

    work = asyncio.run(take_steps())
    requests = tuple(
        PreviewedRequest(step=question.step, messages=question.prompt.render(question.data, note=question.instruction))
        for question in questions.values()
        if question.prompt is not None and question.prompt.name == prompt.name
    )
    why_none = None
    if not requests:
        # The outcomes of steps without a question, or rows that needed no judge.
        outcomes = [row for row in work.rows["outcomes"] if row["reason"]]
        ended = [f"{row['step']}: {row['reason']} {row['detail'] or ''}".strip() for row in outcomes]
        settled = [str(row["reason"]).strip() for table in ("grades", "classifications") for row in work.rows[table]]
        why_none = "; ".join(dict.fromkeys(ended or settled)) or "there is nothing to judge"
    return Preview(
        sample_id=sample.sample_id,
        requests=requests,
        has_stand_ins=bool(requests) and any(name.endswith("_statements") for name in prompt.variables),
        why_none=why_none,
    )
