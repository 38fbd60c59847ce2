"""The live run: the tools and the progress of one run, and what its tasks do with them; they find it by the run's id.

A run is judged in shards: some tens or hundreds of samples that one set of task runs works on. The steps of a shard run
side by side and hand over sample by sample: a step that needs a sample's statements awaits them here, so that no sample
waits for the slowest of its neighbours. Rows are gathered per sample and written as one batch when all steps are done.
"""

import asyncio
import gc
import os
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run
from prefect.settings import get_current_settings
from prefect.tasks import Task

from evalhouse.prompts import CONVERSATION, TURN_PREFIX, BlockValue, Grade, Item, Prompt
from evalhouse.tasks.asking.splitting import leave_room
from evalhouse.tasks.asking.usage import Usage, estimate_items
from evalhouse.tasks.asking.verdicts import JudgedItem, gather_all, write_verdict
from evalhouse.tasks.datasets.values import CALL_COLUMNS
from evalhouse.tasks.judge.protocol import LEXICAL, EndpointDown, FatalJudgeError, RunCancelled
from evalhouse.tasks.lexical.split import find_other_language, is_traditional
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.metric_files import MetricFile
from evalhouse.warehouse.rows.runs import RunKind
from evalhouse.warehouse.rows.samples import StoredSample, fetch_samples_between
from evalhouse.warehouse.steps import arrange_steps, find_extract_prompt, list_tasks
from evalhouse.warehouse.store import VERDICT_TABLES, Batch, Warehouse, build_verdict_frames

if TYPE_CHECKING:
    from evalhouse.tasks.asking.asker import Asker
    from evalhouse.tasks.asking.batches import BatchQueue
    from evalhouse.tasks.asking.embeddings import Embedder
    from evalhouse.tasks.asking.shared_limits import SharedLimits
    from evalhouse.tasks.datasets.read import StagedDataset
    from evalhouse.tasks.targets.collection import Collection

Source = Literal["answer", "ground_truth"]
OTHER_LANGUAGE: Final = "language_not_supported"
"""The reason why the lexical judge gives no verdicts on a sample."""
"""The columns of a dataset with the tool calls that the bot made: ours, and deepeval's."""
_LONGEST_DRAIN_S: Final = 20.0  # services are often given thirty seconds to stop
ID_PREFIXES: dict[Source, str] = {"answer": "A", "ground_truth": "G"}


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The statements of one text, or the reason for having none.

    `call_id` is the call that split it, the first one where it was split in parts; each statement's call is in its row.
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
        """Add a row to the shard's batch; the sample's id is filled in."""
        self.rows[table].append({"sample_id": self.sample.sample_id, **columns})

    def add_grade(self, rubric: str, grade: Grade, call_id: str | None = None) -> None:
        """Add a grade; `rubric` is the rubric's name, or that of the step that measured without one."""
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
        decisive: Sequence[JudgedItem],
        **columns: object,
    ) -> None:
        """Add the verdict on one item, with the reasons and the call of the `decisive` parts, and all votes."""
        reason = " ".join(dict.fromkeys(part.verdict.reason for part in decisive))
        self.add_row(table, **columns, reason=reason, call_id=decisive[0].call_id)
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
        """Note how a step ended for this sample: `reason` is None when it has verdicts."""
        if reason in ("no_answer", "no_contexts") and self.sample.target_error is not None:
            reason, detail = "target_failed", self.sample.target_error
        self.add_row("outcomes", step=step, reason=reason, detail=detail)

    def has_outcome(self, step: str) -> bool:
        """Return True if the end of a step is noted."""
        return any(row["step"] == step for row in self.rows["outcomes"])

    async def wait_for_statements(self, source: Source) -> Extraction:
        """Return the statements of one of the texts once they are ready; raises the error that prevented them."""
        # Shielded, because a cancelled step must not take the statements from the others.
        return await asyncio.shield(self.extractions[source])

    def hand_over(self, source: Source, extraction: Extraction) -> None:
        """Give the statements of one of the texts to the steps that wait for them."""
        self.extractions[source].set_result(extraction)

    def release_waiting(self, error: BaseException) -> None:
        """End the steps that wait for statements with this error: no more will come."""
        for future in self.extractions.values():
            if not future.done():
                future.set_exception(error if isinstance(error, Exception) else RunCancelled("splitting was cancelled"))
                future.exception()  # read, so that asyncio does not report it when no step waits

    @cached_property
    def context_items(self) -> tuple[Item, ...]:
        """The contexts under their ids, in rank order."""
        contexts = self.sample.contexts or []
        return tuple(Item(id=f"C{rank}", text=text) for rank, text in enumerate(contexts, start=1))


@dataclass(frozen=True, kw_only=True)
class PriorTurns:
    """The turns before a question that are part of its requests as T1, T2, …

    At most half of a request is for turns, the latest ones; `note` states for the detail of the sample's extraction how
    many older ones are left out. `block` is the turns' block, empty without turns; `room` is the part of a request that
    turns and question leave, in tokens.
    """

    turns: tuple[Item, ...]
    note: str | None
    block: Mapping[str, BlockValue]
    room: int


def collect_turns(sample: StoredSample, max_tokens: int) -> PriorTurns:
    """Return the turns before a sample's question that fit into half of `max_tokens`, the last one at any length."""
    turns: tuple[Item, ...] = ()
    n = 0
    if sample.conversation_json is not None:
        items = [
            Item(id=f"{TURN_PREFIX}{place}", text=turn.line) for place, turn in enumerate(sample.conversation, start=1)
        ]
        n = max(len(items) - 1, 0)
        while n > 0 and estimate_items(items[n - 1 :]) <= max_tokens // 2:
            n -= 1
        turns = tuple(items[n:])
    return PriorTurns(
        turns=turns,
        note=f"the oldest {n:,} of {n + len(turns):,} earlier turns do not fit into a request" if n else None,
        block={CONVERSATION: turns} if turns else {},
        room=leave_room(max_tokens, sample.question, *(turn.text for turn in turns)),
    )


def note_other_language(live_run: "LiveRun", work: SampleWork, step: str) -> bool:
    """Note that the lexical judge does not know the sample's language; return whether it is asked for a step and so."""
    if live_run.asker.find(step).judge.name != LEXICAL:
        return False
    sample = work.sample
    texts = [sample.question, sample.answer or "", *sample.accepted_answers]
    language = find_other_language("\n".join(texts))
    if language is None and any(map(is_traditional, texts)):
        # The judge's words of refusal are simplified, and no word of the one script is found in the other.
        language = "traditional Chinese"
    if language is not None:
        work.note_outcome(step, OTHER_LANGUAGE, language)
    return language is not None


@dataclass(kw_only=True)
class Shard:
    """Samples `first` to `last` of a run, by ordinal. `tries` counts by step how often it was started."""

    number: int
    first: int
    last: int
    works: Sequence[SampleWork]

    tries: Counter[str] = field(default_factory=Counter)

    def to_batch(self, run_id: str, *, key: str, replaces: bool) -> Batch:
        """Return all rows of the shard as one batch; `replaces` deletes the rows that an earlier attempt wrote."""
        tables = build_verdict_frames(run_id, [work.rows for work in self.works])
        ids = tuple(work.sample.sample_id for work in self.works)
        return Batch(key=key, run_id=run_id, tables=tables, replaces=ids if replaces else ())


def make_work(sample: StoredSample) -> SampleWork:
    """Return a sample at its start; needs a running event loop."""
    loop = asyncio.get_running_loop()
    return SampleWork(sample=sample, extractions={"answer": loop.create_future(), "ground_truth": loop.create_future()})


class Stored:
    """The result of a task whose rows are in the warehouse.

    A task that reads these rows gets it by `wait_for`, from which Prefect draws an edge of the flow run's graph.
    """


@dataclass(kw_only=True)
class Progress:
    """The progress of a run, which a display reads now and then. `what` is its word for the samples."""

    n_samples: int = 0
    n_done: int = 0
    n_failed: int = 0
    what: str = "samples"


@dataclass(frozen=True, kw_only=True)
class Clients:
    """The clients of a run: the judge's asker, and embeddings where a metric compares meaning."""

    asker: "Asker"
    embedder: "Embedder | None"


@dataclass(kw_only=True)
class LiveRun:
    """The tools of a run, made once, and its progress.

    `steps` are needed by the metrics, `rubrics` are prompts that grade. `open_clients` opens the call record and the
    clients, when something is first asked. `staged` is the dataset until it is loaded, `collection` asks the
    application under test. `notices` are for the person who watches, by means of `watch`. `judge_elsewhere` has shards
    judged by other machines, by their numbers; None where this process judges. `across_machines` means that other
    machines use the Prefect server too; `shared_limits` are then the run's part of the limits there. `session`
    distinguishes the batches of a resumed run; `retrying` are the task runs in Prefect's wait before a retry. `kind` is
    that of the run's row, set when its flow begins.
    """

    run_id: str
    settings: RunSettings
    warehouse: Warehouse
    prompts: Mapping[str, Prompt]
    metrics: tuple[MetricFile, ...]
    steps: frozenset[str]
    open_clients: Callable[[], Clients]
    kind: RunKind = "evaluation"
    rubrics: tuple[Prompt, ...] = ()
    staged: "StagedDataset | None" = None
    collection: "Collection | None" = None
    judge_elsewhere: Callable[[Sequence[int], "Stored"], Awaitable[Sequence[State]]] | None = None
    watch: Callable[["LiveRun"], AbstractContextManager[None]] = field(default=lambda _: nullcontext())
    across_machines: bool = False
    shared_limits: "SharedLimits | None" = None
    notices: list[str] = field(default_factory=list)
    resumed: bool = False
    flow_run_id: str | None = None
    session: str = field(default_factory=partial(secrets.token_hex, 4))
    progress: Progress = field(default_factory=Progress)
    shards: dict[int, Shard] = field(default_factory=dict)
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)
    retrying: set["asyncio.Task[Any] | None"] = field(default_factory=set)

    @cached_property
    def records_tool_calls(self) -> bool:
        """True if the dataset has a column of the calls that the bot made, in any row."""
        of_run = {"run_id": self.run_id}
        return any(self.warehouse.fetch_rows("samples/has_column", **of_run, column=name) for name in CALL_COLUMNS)

    @cached_property
    def _clients(self) -> Clients:
        def end_waits(*_: object) -> None:
            for waiting in self.retrying:
                if waiting is not None:
                    waiting.cancel()

        clients = self.open_clients()
        clients.asker.stop_sign.listen(end_waits)
        return clients

    @property
    def is_open(self) -> bool:
        """True if anything can have been asked."""
        return "_clients" in self.__dict__

    @cached_property
    def asker(self) -> "Asker":
        """The asker of the default judge, which holds the askers of steps with another judge."""
        return self._clients.asker

    @cached_property
    def embedder(self) -> "Embedder | None":
        """The embeddings that compare meaning; None where no metric rests on that."""
        return self._clients.embedder

    @property
    def askers(self) -> "tuple[Asker, ...]":
        """All askers that send requests in this run."""
        of_embeddings = None if self.embedder is None else self.embedder.asker
        return (*self.asker.all, *([] if of_embeddings is None else [of_embeddings]))

    @property
    def batch_queues(self) -> "tuple[BatchQueue, ...]":
        """The queues of requests that go by batch."""
        return tuple(asker.batch_queue for asker in self.asker.all if asker.batch_queue is not None)

    @property
    def usage(self) -> Usage:
        """The requests so far, with their tokens and dollars."""
        return self.asker.counts if self.is_open else Usage()

    @cached_property
    def asking(self) -> frozenset[str]:
        """The steps that samples take: the metrics' steps, or their replacements in the run's plan."""
        return arrange_steps(self.steps, self.settings.plan)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of these steps, in order."""
        return list_tasks(self.asking)

    @cached_property
    def extract_prompt(self) -> Prompt | None:
        """The prompt that splits both texts of a sample at once, if the run's plan has one."""
        name = find_extract_prompt(self.steps, self.settings.plan)
        return None if name is None else self.prompts[name]

    @property
    def asks_target(self) -> bool:
        """True while the application under test is being asked, which comes before all judging."""
        return self.collection is not None and not self.collection.is_over

    def share_limits(self, shards_at_once: int) -> None:
        """Share the limits with all runs that use the same Prefect server; each shard then waits for its slots."""
        from evalhouse.tasks.asking.shared_limits import SharedLimits  # noqa: PLC0415  # few runs share a Prefect server

        judged = ((asker.judge, asker.limit) for asker in self.askers)
        limits = {f"{judge.endpoint} {judge.model}": limit for judge, limit in judged if judge.endpoint is not None}
        concurrency = self.settings.concurrency
        slots = max(1, concurrency // max(1, shards_at_once))
        self.shared_limits = SharedLimits(limits, concurrency=concurrency, slots=slots)

    async def open_shard(self, number: int, first: int, last: int) -> Shard:
        """Load a shard's samples and keep it under its number until it is written."""
        samples = await asyncio.to_thread(fetch_samples_between, self.warehouse, self.run_id, first, last)
        shard = Shard(number=number, first=first, last=last, works=[make_work(sample) for sample in samples])
        self.shards[number] = shard
        return shard

    def stop(self, error: FatalJudgeError, *, drain_s: float) -> None:
        """Ask nothing more; requests in flight may still finish within `drain_s` seconds.

        Where a person or a service stops the run, replies that have taken longer so far have as long: each is paid.
        """
        if isinstance(error, RunCancelled):
            slowest_s = max((asker.limit.slowest_s for asker in self.askers), default=0.0)
            drain_s = max(drain_s, min(_LONGEST_DRAIN_S, 2 * slowest_s)) if drain_s else drain_s
        for asker in self.askers:
            asker.stop(error, drain_s=drain_s)

    async def close(self) -> None:
        """Close the clients of judge, embeddings and target."""
        if self.collection is not None:
            await self.collection.close()
        if self.is_open:
            for asker in self.asker.all:
                await asker.judge.close()
                if asker.batch_queue is not None:
                    await asker.batch_queue.close()
            if self.embedder is not None:
                await self.embedder.close()


T = TypeVar("T")
SampleStep = Callable[[LiveRun, SampleWork], Awaitable[None]]

_live_runs: dict[str, LiveRun] = {}


@contextmanager
def registered(live_run: LiveRun) -> Iterator[None]:
    """Let a live run be found by its run's id, in this process and for this block."""
    _live_runs[live_run.run_id] = live_run
    # A full garbage collection visits all that was imported: 0.2 s without a reply read or a request sent, every few
    # hundred requests. What the run itself allocates is still collected.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        del _live_runs[live_run.run_id]


def find_live_run(run_id: str) -> LiveRun:
    """Return the live run of a run; raises LookupError when the run is not open in this process."""
    try:
        return _live_runs[run_id]
    except KeyError:
        raise LookupError(f"run {run_id} is not running in this process") from None


def is_open(run_id: str | None) -> bool:
    """Return True if a run has its live run in this process."""
    return run_id in _live_runs


async def _is_endpoint_down(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    # Prefect silently never retries when this is a plain function on an async task.
    return isinstance(await state.aresult(raise_on_failure=False), EndpointDown)


# Prefect stores no results: the rows of a task are in the warehouse, its replies in the record of calls.
UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
STEP_OPTIONS: dict[str, Any] = {**UNCACHED, "retry_condition_fn": _is_endpoint_down}
RETRIES = 2
"""The number of times that Prefect repeats a step whose endpoint is down, as in the decorators in `tasks/`."""


def limit_time(timed: Task[[str, int], T], live_run: LiveRun) -> Task[[str, int], T]:
    """Return the task with the time limit that the run's settings name, which Prefect enforces."""
    limit_s = live_run.settings.task_timeout_s
    return timed if limit_s is None else timed.with_options(timeout_seconds=limit_s)


async def take_shard(run_id: str, number: int, take: SampleStep, *, gives_statements: bool = False) -> None:
    """Take a step for all samples of a shard at once, as the body of the step's task; raises the first error when all
    have ended.

    EndpointDown is raised only where it is the only kind of error and another try is left. Other steps wait for the
    statements of a step that `gives_statements`.
    """
    # Loaded when the first step begins, by which time Prefect's server is up.
    from evalhouse.tasks.asking.asker import LAST_CHANCE  # noqa: PLC0415
    from evalhouse.tasks.asking.record import ORIGIN, Origin  # noqa: PLC0415

    live_run = find_live_run(run_id)
    shard, name = live_run.shards[number], take.__name__
    live_run.retrying.discard(asyncio.current_task())
    shard.tries[name] += 1
    # Outside of a flow run, as in a rehearsal, Prefect has no ids.
    ids = [None if runtime_id is None else str(runtime_id) for runtime_id in (flow_run.id, task_run.id)]
    ORIGIN.set(Origin(flow_run_id=ids[0], task_run_id=ids[1]))
    LAST_CHANCE.set(shard.tries[name] > RETRIES)
    began_at = time.monotonic()

    async def take_sample(work: SampleWork) -> None:
        await take(live_run, work)
        work.done.add(name)
        if len(work.done) == len(live_run.tasks):
            live_run.progress.n_done += 1

    try:
        try:
            await gather_all([take_sample(work) for work in shard.works if name not in work.done])
        finally:
            if live_run.across_machines:  # a server that ends with the run is not looked at
                n_done, usage = sum(name in work.done for work in shard.works), live_run.usage
                again = f", try {shard.tries[name]}" if shard.tries[name] > 1 else ""
                get_run_logger().info(
                    f"{task_run.name}{again}: {n_done} of {len(shard.works)} samples in "
                    f"{time.monotonic() - began_at:.1f} s; the run so far: {usage.requests:,} requests, "
                    f"{usage.reused:,} reused, {usage.failed:,} failed"
                )
            live_run.asker.raise_if_stopped()
    except EndpointDown:  # Prefect waits and tries again, and other steps keep waiting
        live_run.retrying.add(asyncio.current_task())
        raise
    except BaseException as error:  # also a cancellation: a step that waits for statements would wait for ever
        if gives_statements:
            for work in shard.works:
                work.release_waiting(error)
        raise


@task(name="write", task_run_name="write shard {shard}", **UNCACHED)
async def write(run_id: str, shard: int) -> Stored:
    """Write the verdicts of a shard's finished samples into the warehouse."""
    live_run = find_live_run(run_id)
    works = [work for work in live_run.shards[shard].works if len(work.done) == len(live_run.tasks)]
    key = f"{run_id}/shard-{shard:06d}/{live_run.session}"
    batch = replace(live_run.shards[shard], works=works).to_batch(run_id, key=key, replaces=live_run.resumed)
    await asyncio.to_thread(live_run.warehouse.append, batch)
    live_run.shards.pop(shard, None)
    return Stored()


FLOW_OPTIONS: Final[dict[str, Any]] = {"persist_result": False}
# Prefect still writes the exception that ends a flow: into the team's own storage, where Prefect knows one. Without any
# it asks the server, which costs a run of a command 0.4 s; a flow run that Prefect has started can wait for that.
_results = get_current_settings().results
if _results.default_storage_block is None and "PREFECT__FLOW_RUN_ID" not in os.environ:
    FLOW_OPTIONS["result_storage"] = _results.local_storage_path
