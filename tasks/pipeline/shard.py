"""A shard: some tens or hundreds of samples that one set of task runs works on.

The steps of a shard run side by side and hand over sample by sample: whoever needs a sample's statements awaits
them here, so that no sample waits for the slowest of its neighbours. Rows are gathered per sample and written as
one batch when all steps are done.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from evalhouse.prompts import Grade, Item
from evalhouse.tasks.asking.verdicts import JudgedItem, write_verdict
from evalhouse.tasks.judge.errors import RunCancelled
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.tables import VERDICT_TABLES, Batch, build_verdict_frames

Source = Literal["answer", "ground_truth"]
ID_PREFIXES: dict[Source, str] = {"answer": "A", "ground_truth": "G"}


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The statements of one text, or why there are none to work on.

    `call_id` is the call that split it, the first one where it was split in parts; each statement's own is in its row.
    """

    items: tuple[Item, ...] = ()
    call_id: str | None = None
    reason: str | None = None


@dataclass(kw_only=True)
class SampleWork:
    """One sample on its way through the steps."""

    sample: StoredSample
    extractions: Mapping[Source, "asyncio.Future[Extraction]"]
    rows: dict[str, list[dict[str, object]]] = field(default_factory=lambda: {table: [] for table in VERDICT_TABLES})
    done: set[str] = field(default_factory=set)

    def add_row(self, table: str, **columns: object) -> None:
        """Put a row aside for the shard's batch; the sample's id is filled in."""
        self.rows[table].append({"sample_id": self.sample.sample_id, **columns})

    def add_grade(self, rubric: str, grade: Grade, call_id: str | None = None) -> None:
        """Put a grade aside; `rubric` is the rubric's name, or that of the step that measured without one."""
        self.add_row(
            "grades",
            rubric=rubric,
            criterion=grade.criterion,
            rating=grade.rating,
            scale_min=grade.scale_min,
            scale_max=grade.scale_max,
            said=grade.said,
            rule=grade.rule,
            reason=grade.reason,
            call_id=call_id,
        )

    def add_verdict(
        self,
        table: str,
        step: str,
        item_id: str,
        parts: Iterable[JudgedItem],
        telling: Sequence[JudgedItem],
        **columns: object,
    ) -> None:
        """Put the verdict on one item aside, with reason and call of those parts that are `telling`, and all votes."""
        reason = " ".join(dict.fromkeys(part.verdict.reason for part in telling))
        self.add_row(table, **columns, reason=reason, call_id=telling[0].call_id)
        for vote in (vote for part in parts for vote in part.votes):
            self.add_row(
                "votes",
                step=step,
                item_id=item_id,
                vote=vote.number,
                verdict=write_verdict(vote.verdict),
                agrees=vote.agrees,
                reason=vote.verdict.reason,
                call_id=vote.call_id,
            )

    def note_outcome(self, step: str, reason: str | None = None, detail: str | None = None) -> None:
        """Say how a step ended for this sample: `reason` is None when its verdicts are there."""
        if reason in ("no_answer", "no_contexts") and self.sample.target_error is not None:
            reason, detail = "target_failed", self.sample.target_error
        self.add_row("outcomes", step=step, reason=reason, detail=detail)

    def has_outcome(self, step: str) -> bool:
        """Whether it is noted how a step ended."""
        return any(row["step"] == step for row in self.rows["outcomes"])

    async def wait_for_statements(self, source: Source) -> Extraction:
        """The statements of one of the texts, as soon as they are there; raises what kept them from coming."""
        # Shielded, because a cancelled step must not take the statements from the others.
        return await asyncio.shield(self.extractions[source])

    def hand_over(self, source: Source, extraction: Extraction) -> None:
        """Give the statements of one of the texts to whoever waits for them."""
        self.extractions[source].set_result(extraction)

    def release_waiting(self, error: BaseException) -> None:
        """No more statements will come: whoever waits for some ends with this error."""
        for future in self.extractions.values():
            if not future.done():
                future.set_exception(error if isinstance(error, Exception) else RunCancelled("splitting was cancelled"))
                future.exception()  # looked at, so that asyncio does not report it when nobody waits

    @property
    def context_items(self) -> tuple[Item, ...]:
        """The contexts under their ids, in rank order."""
        contexts = self.sample.contexts or []
        return tuple(Item(id=f"C{rank}", text=text) for rank, text in enumerate(contexts, start=1))


@dataclass(kw_only=True)
class Shard:
    """Samples `first` to `last` of a run, by ordinal. `tries` counts by step how often it was begun."""

    number: int
    first: int
    last: int
    works: Sequence[SampleWork]

    tries: Counter[str] = field(default_factory=Counter)

    def release_waiting(self, error: BaseException) -> None:
        """No more statements will come for any sample: whoever waits for some ends with this error."""
        for work in self.works:
            work.release_waiting(error)

    def to_batch(self, run_id: str, *, key: str, replaces: bool) -> Batch:
        """All rows of the shard as one batch; `replaces` deletes what an earlier attempt wrote for its samples."""
        tables = build_verdict_frames(run_id, [work.rows for work in self.works])
        ids = tuple(work.sample.sample_id for work in self.works)
        return Batch(key=key, run_id=run_id, tables=tables, replaces=ids if replaces else ())


def make_work(sample: StoredSample) -> SampleWork:
    """A sample at its start; needs a running event loop."""
    loop = asyncio.get_running_loop()
    return SampleWork(sample=sample, extractions={"answer": loop.create_future(), "ground_truth": loop.create_future()})
