"""Replay: ask the bot of a run again about samples that moved, with the contexts of an earlier run and with its own.

The old bot usually no longer exists, and its answers are stored, so three of the four combinations of bot and contexts
are compared: the old bot with the old contexts (stored), the new bot with the new ones (stored, and asked again to see
if it answers the same each time), and the new bot with the old ones (asked). `tasks/comparing/replay.py` decides.

Answers are runs of kind `replay`, children of the second run, with their own responses, calls, verdicts and scores:
first one run for the two sets of contexts, then one with one document undone at a time, for the samples in which
retrieval moved the score. They are judged by the settings of the second run, and stored replies are reused. Answers and
scores of earlier replays of the same two runs are reused too, so the same command resumes a stopped replay.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import RunRequest, begin_run
from evalhouse.flows.run.open_run import open_run
from evalhouse.flows.run.outcome import RunOutcome, Watch
from evalhouse.flows.server.local import hold_server
from evalhouse.flows.start import load_flow
from evalhouse.tasks.comparing.replay import (
    MARK,
    NEW,
    OLD,
    Contexts,
    DocumentChange,
    Finding,
    Move,
    judge_move,
    list_document_changes,
    name_documents,
)
from evalhouse.tasks.settings.run import RunSettings, leave_out, read_settings
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import describe_application, make_messages, make_target
from evalhouse.tasks.targets.protocol import TargetQuestion
from evalhouse.warehouse.messages import list_names, suggest
from evalhouse.warehouse.rows.calls import StoredResponse, fetch_responses, sum_cost
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import REPLAY_TAG, YARDSTICKS, RunRow, insert_run, list_runs, update_run
from evalhouse.warehouse.rows.samples import FAILURE_REASONS, Staging, StoredSample
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class ReplaySample:
    """A sample of both runs. `changes` are the documents that differ; `same_answer` is True for equal answers."""

    sample: StoredSample
    old: Contexts
    new: Contexts
    same_answer: bool

    @property
    def same_contexts(self) -> bool:
        """Return whether the bot was given the same texts in the same order."""
        return self.old.texts == self.new.texts

    @cached_property
    def changes(self) -> list[DocumentChange]:
        """The documents that differ."""
        return list_document_changes(self.old, self.new)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question with contexts to answer from."""

    ask_id: str
    of: ReplaySample
    contexts: Contexts


@dataclass(frozen=True, kw_only=True)
class ReplayRun:
    """Questions asked in one run, a child of the second of the pair; `earlier` are the replays of the same two runs."""

    pair: RunPair
    settings: RunSettings
    asks: Sequence[Ask]
    what: str
    earlier: Sequence[RunRow]

    def carry_out(self, watch: Watch | None) -> RunOutcome:
        """Ask, and judge what was answered."""
        from evalhouse.flows.preparing.live_run import make_collection, make_tools  # noqa: PLC0415  # import what judges
        from evalhouse.tasks.datasets.read import StagedDataset  # noqa: PLC0415  # reads every kind of file
        from evalhouse.tasks.datasets.rows import ColumnUse  # noqa: PLC0415

        assert self.settings.target is not None
        parent = self.pair.candidate.run_id
        request = RunRequest(settings=self.settings, kind="replay", holds=parent)
        with open_run(request, load_flow, watch=watch) as opened:
            for run in self.earlier:
                if run.status == "running":  # which cannot be true while this process holds their parent
                    problem = "its process ended early; the same command reused its answers"
                    update_run(self.pair.warehouse, run.run_id, status="failed", problem=problem)
            row = begin_run(
                "replay", self.settings, parent=parent, tags=(f"{REPLAY_TAG}{self.pair.base.run_id}", self.what),
                n_samples=len(self.asks), repeats=self.pair.candidate,
            )  # fmt: skip
            run = replace(row, trigger="manual")
            target = make_target(self.settings.target)
            live_run = make_tools(self.settings, "replay").make_live_run(run.run_id, opened.warehouse)
            known = EarlierAnswers(warehouse=self.pair.warehouse, run_ids=tuple(run.run_id for run in self.earlier))
            try:
                # The questions as a dataset, each under the id of its ask.
                rows: list[dict[str, object]] = [
                    {
                        "ordinal": place,
                        "given_id": ask.ask_id,
                        "sample_id": ask.ask_id,
                        "input_hash": ask.of.sample.input_hash,
                        "question": ask.of.sample.question,
                        "answer": None,
                        "ground_truth": ask.of.sample.ground_truth,
                        "contexts": list(ask.contexts.texts),
                        "context_ids": list(ask.contexts.ids) if any(ask.contexts.ids) else None,
                        "reference_context_ids": ask.of.sample.reference_context_ids,
                        "metadata": ask.of.sample.metadata_json,
                        "conversation": ask.of.sample.conversation_json,
                    }
                    for place, ask in enumerate(self.asks, start=1)
                ]
                staging = Staging()
                try:
                    staging.add(rows)
                except BaseException:  # after any error, and Ctrl-C, the staged file is removed
                    staging.discard()
                    raise
                live_run.staged = StagedDataset(staging=staging, n_samples=len(rows), content_hash="", use=ColumnUse())
                live_run.progress.n_samples = len(self.asks)
                live_run.progress.what = "answers to given contexts"
                live_run.collection = make_collection(live_run, run, target, None, known=known, pose=pose_given)
                insert_run(opened.warehouse, run)
            except BaseException:  # after any error, and Ctrl-C, the record is closed
                live_run.asker.record.close()
                raise
            return asyncio.run(opened.carry_out(live_run, run))


@dataclass(frozen=True, kw_only=True)
class EarlierAnswers:
    """The answers that earlier replays of the same runs got, the newest first."""

    warehouse: Warehouse
    run_ids: tuple[str, ...]

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """Find the responses to these samples in earlier replays; the other samples are asked."""
        wanted = [sample.sample_id for sample in samples]
        answered: dict[str, StoredResponse] = {}
        for run_id in reversed(self.run_ids):
            responses = fetch_responses(self.warehouse, run_id, wanted)
            answered |= {name: response for name, response in responses.items() if response.status != "failed"}
        return answered


def pose_given(sample: StoredSample) -> TargetQuestion:
    """Return the question of a staged sample with the contexts to answer from, under the id of its sample."""
    ids = sample.context_ids
    return TargetQuestion(
        sample_id=sample.sample_id.rsplit(MARK, 2)[0],
        question=sample.question,
        metadata=sample.metadata,
        conversation=make_messages(sample.conversation),
        contexts=tuple(sample.contexts or ()),
        context_ids=tuple(ids) if ids and any(ids) else None,
    )


USUAL_METRICS: Final = ("factual_f1", "answer_correctness", "accuracy", "relevance_final", "exact_match", "token_f1")
"""The default is the first of these metrics that both runs have."""
LEAST: Final = 0.1
"""Smaller differences of a score are ignored, even if the judge's noise is smaller or unknown."""


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The samples to look into, and the effort. With `least` None the judge's noise sets the smallest difference;
    `documents` is the largest number that are undone one at a time in a sample."""

    metrics: tuple[str, ...] = ()
    sample_ids: tuple[str, ...] = ()
    limit: int = 50
    least: float | None = None
    times: int = 3
    documents: int = 8
    budget_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """The estimate: questions to ask first, then at most so many with one document undone, and the judging of all."""

    n_moves: int
    n_samples: int
    n_asks: int
    n_documents: int
    n_on_record: int
    requests: int
    cost_usd: float


@dataclass(kw_only=True)
class Replay:
    """The replay of two runs; raises SettingsError for two that cannot be replayed."""

    pair: RunPair
    options: ReplayOptions
    target: TargetSettings
    settings: RunSettings
    outcomes: list[RunOutcome] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.warehouse: Warehouse = self.pair.warehouse
        self.ids = {"base": self.pair.base.run_id, "candidate": self.pair.candidate.run_id}
        for name in YARDSTICKS:  # a different measurement alone may have moved a score
            was, now = getattr(self.pair.base, name), getattr(self.pair.candidate, name)
            if was != now:
                raise SettingsError(
                    f"the runs were measured with different {name}s ({was} and {now}), which may have moved the "
                    "scores; judge the answers of the first again as the second was, with `evalhouse run … --responses "
                    f"{self.pair.base.run_id}`, and replay against that run"
                )
        self.moves = self._choose_moves()
        # The chosen samples that have the same question and ground truth in both runs, and stored contexts.
        wanted = list(dict.fromkeys(move.sample_id for move in self.moves))
        sides: dict[str, dict[bool, dict[str, Any]]] = {name: {} for name in wanted}
        for row in self.warehouse.fetch_rows("replay/samples", {"sample_id": wanted}, **self.ids):
            sides[row["sample_id"]][row["of_candidate"]] = row
        columns = ("sample_id", "input_hash", "question", "answer", "ground_truth", "contexts", "context_ids",
                   "reference_context_ids", "metadata_json", "conversation_json")  # fmt: skip
        self.samples: dict[str, ReplaySample] = {}
        for sample_id in wanted:
            old, new = sides[sample_id][False], sides[sample_id][True]
            if any(old[name] != new[name] for name in ("question", "ground_truth")):
                why = "asked or judged by other texts now"
            elif old["conversation_json"] != new["conversation_json"]:
                why = "asked after other turns now"
            elif old["contexts"] is None or new["contexts"] is None:
                why = "without stored contexts"
            else:
                contexts = []
                for row in (old, new):
                    texts, ids = tuple(row["contexts"]), tuple(name or "" for name in row["context_ids"] or ())
                    contexts.append(Contexts(texts=texts, ids=(ids + ("",) * len(texts))[: len(texts)]))
                self.samples[sample_id] = ReplaySample(
                    sample=StoredSample(ordinal=0, **{name: new[name] for name in columns}),
                    old=contexts[0],
                    new=contexts[1],
                    same_answer=old["answer"] == new["answer"],
                )
                continue
            self.left_out[why] = self.left_out.get(why, 0) + 1
        self.moves = [move for move in self.moves if move.sample_id in self.samples]
        self.values: dict[tuple[str, str], float | None] = {}
        self.settled: set[str] = set()
        self.read_scores()

    def estimate(self) -> ReplayPlan:
        """Return the questions that would be asked, and the most that would be paid."""
        asks = list(self.list_asks())
        missing = [ask for ask in asks if ask.ask_id not in self.settled]
        n_documents = sum(min(len(one.changes), self.options.documents) for one in self.samples.values())
        usage = self.warehouse.fetch_row("replay/usage", run_id=self.pair.candidate.run_id)
        n_most = len(missing) + n_documents
        return ReplayPlan(
            n_moves=len(self.moves), n_samples=len(self.samples), n_asks=len(missing), n_documents=n_documents,
            n_on_record=len(asks) - len(missing), requests=round(usage["requests"] * n_most),
            cost_usd=usage["cost_usd"] * n_most,
        )  # fmt: skip

    def carry_out(self, watch: Watch | None) -> None:
        """Ask and judge the missing answers, within the budget."""
        phases = ((self.list_asks, "contexts exchanged"), (self.list_document_asks, "one document undone"))
        with ExitStack() as held:
            for list_asks, what in phases:
                missing = [ask for ask in list_asks() if ask.ask_id not in self.settled]
                if not missing or self.problem is not None:
                    continue
                if not self.outcomes:
                    # One server for both: Prefect reads once a process where it is.
                    held.enter_context(hold_server())
                settings = self.settings.model_copy(update={"budget_usd": self._find_budget()})
                asked = ReplayRun(pair=self.pair, settings=settings, asks=missing, what=what, earlier=self.replays)
                self.outcomes.append(asked.carry_out(watch))
                self.read_scores()

    @property
    def problem(self) -> str | None:
        """The reason why asking stopped early; None otherwise."""
        left = self._find_budget()
        if left is not None and left <= 0:
            return "the budget is spent; give a higher one with --budget"
        return next((one.problem or one.status for one in self.outcomes if one.status in ("failed", "cancelled")), None)

    def list_asks(self) -> Iterator[Ask]:
        """Yield the questions with the old contexts and the new ones, several times each."""
        for sample_id, one in self.samples.items():
            if one.same_contexts and one.same_answer:
                continue
            for arm, contexts in ((OLD, one.old), (NEW, one.new)):
                if arm == NEW or not one.same_contexts:
                    for time in self._list_times(one):
                        yield Ask(ask_id=_name_ask(sample_id, arm, time), of=one, contexts=contexts)

    def list_document_asks(self) -> Iterator[Ask]:
        """Yield the questions with one document undone, for samples whose move was caused by retrieval."""
        decided = {finding.move.sample_id for finding in self.list_findings() if finding.verdict == "retrieval"}
        for sample_id, one in self.samples.items():
            for change in one.changes[: self.options.documents] if sample_id in decided else ():
                yield Ask(ask_id=_name_ask(sample_id, change.arm, 1), of=one, contexts=change.contexts)

    def list_findings(self) -> list[Finding]:
        """Return the cause of each move, by the stored answers and scores."""
        findings = []
        for move in self.moves:
            sample = self.samples[move.sample_id]
            old, new = (
                [
                    self.values.get((_name_ask(move.sample_id, arm, time), move.metric))
                    for time in self._list_times(sample)
                ]
                for arm in (OLD, NEW)
            )
            finding = judge_move(
                move, old=None if sample.same_contexts else old, new=new, same_answer=sample.same_answer
            )
            if finding.verdict == "retrieval":
                values = {
                    change.arm: self.values.get((_name_ask(move.sample_id, change.arm, 1), move.metric))
                    for change in sample.changes
                }
                documents, note = name_documents(move, sample.changes, values, max_tried=self.options.documents)
                finding = replace(finding, documents=documents, note=note)
            findings.append(finding)
        return findings

    def _list_times(self, one: ReplaySample) -> range:
        """Number the repetitions with the same contexts: twice as many if both runs had the same ones, so that a bot
        which varies is found as reliably."""
        return range(1, self.options.times * (2 if one.same_contexts else 1) + 1)

    def read_scores(self) -> None:
        """Read the scores of earlier replays of the same application."""
        application = describe_application(self.target.model_dump(mode="json"))
        self.replays = [
            run
            for run in list_runs(self.warehouse, kinds=("replay",))
            if {"base": run.replayed_base, "candidate": run.parent_run_id} == self.ids
            and describe_application(run.config.get("target")) == application
        ]
        rows = (
            self.warehouse.fetch_rows("replay/scores", {"run_id": [run.run_id for run in self.replays]})
            if self.replays
            else []
        )
        failed = {row["ask_id"] for row in rows if row["unscored_reason"] in FAILURE_REASONS}
        self.values = {(row["ask_id"], row["metric"]): row["value"] for row in rows}
        self.settled = {row["ask_id"] for row in rows} - failed

    def _choose_moves(self) -> list[Move]:
        """Choose the moves to look into, the largest first, up to the limit of samples."""
        scores = self.pair.fetch("scores").drop_nulls(["base", "candidate"])
        known = sorted(set(scores["metric"]))
        usual = [name for name in (*USUAL_METRICS, *self.pair.candidate.metrics) if name in known][:1]
        metrics = self.options.metrics or tuple(usual)
        if not metrics:
            raise SettingsError("the runs have no score in common, so nothing can have moved")
        for name in metrics:
            if name not in known:
                raise SettingsError(f"--metric: the runs have no scores of {name!r} in common; {suggest(name, known)}")
        # The smallest difference to look into: the judge's noise stays below it in 95 of 100 samples.
        least = dict.fromkeys(metrics, LEAST if self.options.least is None else self.options.least)
        noise_runs = list(self.warehouse.fetch("noise/noise_runs", run_id=self.pair.candidate.run_id)["noise_run_id"])
        if self.options.least is None and noise_runs:
            rows = self.warehouse.fetch("noise/differences", {"run_id": noise_runs}).to_dicts()
            for name in metrics:
                differences = [abs(row["difference"]) for row in rows if row["metric"] == name]
                if differences:
                    least[name] = max(LEAST, float(np.quantile(differences, 0.95)) + 1e-9)
        moves = [
            Move(sample_id=row["sample_id"], metric=row["metric"], before=row["base"], after=row["candidate"])
            for row in scores.to_dicts()
            if row["metric"] in metrics and row["base_version"] == row["candidate_version"]
        ]
        wanted = self.options.sample_ids
        for sample_id in wanted:
            of_sample = [move for move in moves if move.sample_id == sample_id]
            if not of_sample:
                names = sorted({move.sample_id for move in moves})
                raise SettingsError(f"--sample: {sample_id!r} has no score in both runs; {suggest(sample_id, names)}")
            if all(abs(move.after - move.before) <= 1e-9 for move in of_sample):
                names = sorted({move.metric for move in of_sample})
                raise SettingsError(
                    f"--sample: {sample_id!r} scores the same in both runs, in {list_names(names, 4)}, so there is "
                    "nothing to explain; name another --metric or sample"
                )
        moves = [
            move for move in moves
            if (move.sample_id in wanted and abs(move.after - move.before) > 1e-9)
            or (not wanted and abs(move.after - move.before) >= least[move.metric])
        ]  # fmt: skip
        moves.sort(key=lambda move: (-abs(move.after - move.before), move.sample_id, metrics.index(move.metric)))
        chosen = list(dict.fromkeys(move.sample_id for move in moves))
        if len(chosen) > self.options.limit:
            self.left_out["beyond the limit"] = len(chosen) - self.options.limit
        kept = set(chosen[: self.options.limit])
        return [move for move in moves if move.sample_id in kept]

    def _find_budget(self) -> float | None:
        """Return what may still be spent of the budget; None without one."""
        if self.options.budget_usd is None:
            return None
        return self.options.budget_usd - sum(sum_cost(self.warehouse, outcome.run.run_id) for outcome in self.outcomes)


def make_replay(pair: RunPair, options: ReplayOptions, target: TargetSettings | None) -> Replay:
    """Prepare the replay of two runs; `target` is asked in place of the second run's target.

    Raises SettingsError without a target, or if it does not accept contexts or remembers its conversations itself, and
    TargetError if it cannot be asked.
    """
    candidate = pair.candidate
    settings = read_settings({**candidate.config, "warehouse": pair.warehouse.location.url})
    target = target or settings.target
    if target is None:
        raise SettingsError(
            f"run {candidate.run_id} asked no bot: its answers came with its dataset; name a suite whose [target] is "
            "to be asked, with --suite SUITE.toml"
        )
    asked = make_target(target)
    if not asked.takes_contexts:
        where = {
            "url": 'put "{{contexts}}" into [target] body where a request takes them',
            "callable": "let the function take an argument `contexts`",
            "runnable": "let the Runnable's input have a member `contexts`",
        }
        how = next(words for name, words in where.items() if getattr(target, name) is not None)
        raise SettingsError(
            f"the target does not accept contexts, so retrieval and generation cannot be separated: {how}, or name a "
            "suite whose [target] does so with --suite SUITE.toml"
        )
    if target.history == "own" and not asked.takes_conversation:
        raise SettingsError(
            "the target remembers its conversations itself, and one of their turns cannot be asked alone: let it take "
            "the messages before the question, or name a suite whose [target] does so with --suite SUITE.toml"
        )
    target = target.model_copy(update={"repeats": 0, "history": "dataset"})
    budget_usd = options.budget_usd if options.budget_usd is not None else settings.budget_usd
    changes = {"target": target, "fresh": False, "budget_usd": budget_usd, "tags": ()}
    settings = leave_out(settings, lambda where: where.belongs_to_run).model_copy(update=changes)
    return Replay(pair=pair, options=replace(options, budget_usd=budget_usd), target=target, settings=settings)


def _name_ask(sample_id: str, arm: str, time: int) -> str:
    return f"{sample_id}{MARK}{arm}{MARK}{time}"
