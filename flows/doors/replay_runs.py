"""The run that a replay asks in: its samples are questions with the contexts to answer them from, its target the bot.

What is asked stands in `replay.py`, which reads what came of it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from evalhouse.flows.doors.start_to_end import find_flow
from evalhouse.flows.preparing.request import begin_run
from evalhouse.flows.run.outcome import RunOutcome, Watch
from evalhouse.flows.run.process import RunProcess, open_process
from evalhouse.tasks.comparing.replay import MARK, Contexts, DocumentChange, list_document_changes
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.targets.conversations import make_messages
from evalhouse.tasks.targets.protocol import TargetQuestion
from evalhouse.warehouse.rows.again import tag_replay
from evalhouse.warehouse.rows.calls import StoredResponse, read_responses
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, insert_run, update_run
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.datasets.read import StagedDataset
    from evalhouse.tasks.pipeline.live_run import LiveRun


@dataclass(frozen=True, kw_only=True)
class ReplaySample:
    """A sample of both runs. `changes` are the documents that differ; `same_answer` says whether the answers do not."""

    sample: StoredSample
    old: Contexts
    new: Contexts
    same_answer: bool

    @property
    def same_contexts(self) -> bool:
        """Whether the bot was given the same texts in the same order."""
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
        parent = self.pair.candidate.run_id
        with open_process(self.settings, watch, 0.0, run_id=parent, find_flow=find_flow) as process:
            self._end_killed()
            live_run, run = self._prepare(process)
            outcome = asyncio.run(process.carry_out(live_run, run))
        return outcome

    def _end_killed(self) -> None:
        """Replays that say they are running, which no process does any more while this one holds their parent."""
        for run in self.earlier:
            if run.status == "running":
                problem = "its process ended before its end; the same command took up what was answered"
                update_run(self.pair.warehouse, run.run_id, status="failed", problem=problem)

    def _prepare(self, process: RunProcess) -> "tuple[LiveRun, RunRow]":
        from evalhouse.flows.preparing.collection import make_collection  # noqa: PLC0415  # all import what judges
        from evalhouse.flows.preparing.live_run import make_tools  # noqa: PLC0415

        row = begin_run(
            "replay", self.settings, parent=self.pair.candidate.run_id,
            tags=(tag_replay(self.pair.base.run_id), self.what), n_samples=len(self.asks), repeats=self.pair.candidate,
        )  # fmt: skip
        run = replace(row, trigger="manual")
        assert self.settings.target is not None
        target = make_target(self.settings.target)
        live_run = make_tools(self.settings, "replay").make_live_run(run.run_id, process.warehouse)
        known = EarlierAnswers(warehouse=self.pair.warehouse, run_ids=tuple(run.run_id for run in self.earlier))
        try:
            live_run.staged = _stage(self.asks)
            live_run.progress.n_samples = len(self.asks)
            live_run.progress.what = "answers to given contexts"
            live_run.collection = make_collection(live_run, run, target, None, known=known, pose=pose_given)
            insert_run(process.warehouse, run)
        except BaseException:  # whatever stops it, Ctrl-C too: the record is closed
            live_run.asker.record.close()
            raise
        return live_run, run


@dataclass(frozen=True, kw_only=True)
class EarlierAnswers:
    """What earlier replays of the same runs were answered, the newest first."""

    warehouse: Warehouse
    run_ids: tuple[str, ...]

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """The responses that stand for some of these samples; the others are asked for."""
        wanted = [sample.sample_id for sample in samples]
        answered: dict[str, StoredResponse] = {}
        for run_id in reversed(self.run_ids):
            responses = read_responses(self.warehouse, run_id, wanted)
            answered |= {name: response for name, response in responses.items() if response.status != "failed"}
        return answered


def pose_given(sample: StoredSample) -> TargetQuestion:
    """The question of a staged sample, with the contexts to answer it from, under the id that its sample has."""
    ids = sample.context_ids
    return TargetQuestion(
        sample_id=sample.sample_id.rsplit(MARK, 2)[0],
        question=sample.question,
        metadata=sample.metadata,
        conversation=make_messages(sample.conversation),
        contexts=tuple(sample.contexts or ()),
        context_ids=tuple(ids) if ids and any(ids) else None,
    )


def _stage(asks: Sequence[Ask]) -> "StagedDataset":
    from evalhouse.tasks.datasets.read import StagedDataset  # noqa: PLC0415  # reads every kind of file
    from evalhouse.tasks.datasets.rows import ColumnUse  # noqa: PLC0415
    from evalhouse.warehouse.rows.samples import Staging  # noqa: PLC0415

    staging = Staging()
    try:
        staging.add([_to_staged(place, ask) for place, ask in enumerate(asks, start=1)])
    except BaseException:  # whatever stops it, Ctrl-C too: the file of what was staged goes
        staging.discard()
        raise
    return StagedDataset(staging=staging, n_samples=len(asks), content_hash="", use=ColumnUse())


def _to_staged(place: int, ask: Ask) -> dict[str, object]:
    sample, contexts = ask.of.sample, ask.contexts
    return {
        "ordinal": place,
        "given_id": ask.ask_id,
        "sample_id": ask.ask_id,
        "input_hash": sample.input_hash,
        "question": sample.question,
        "answer": None,
        "ground_truth": sample.ground_truth,
        "contexts": list(contexts.texts),
        "context_ids": list(contexts.ids) if any(contexts.ids) else None,
        "reference_context_ids": sample.reference_context_ids,
        "metadata": sample.metadata_json,
        "conversation": sample.conversation_json,
    }
