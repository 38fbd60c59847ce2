"""The collection of a run: how it comes by a response to every sample, before anything is judged.

A response is on disk as soon as it came, so whatever ends a run, nothing that came back is asked for again: a resumed
run asks only for what it has no response to, and after that for what failed. The loaded samples then hold the responses
in the place of what the dataset brought.

What need not be asked at all are responses on record already, of a named run or of the last asking of a suite. After an
announced change of documents a response stays what it was as long as it cited none of them. That is a guess from the
contexts of the last time, with one known gap: a document that was never cited may now be the better source. Runs
without changed ids ask everything, and close it.

Where the application's own answers are the history of a conversation, its turns are asked one after the other and
conversations side by side (`conversations`). Nothing on record says what comes before a turn but the answers of the
turns before it, so that a run that goes on finds the same history again.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from evalhouse.tasks.asking.asker import StopSign
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.datasets.rows import hash_inputs
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.conversations import asks_the_same, continue_conversation, make_messages, stands_after
from evalhouse.tasks.targets.protocol import FirstQuestions, Response, Target, TargetError, TargetQuestion
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.rows.calls import StoredResponse, read_brought_responses, read_last_asked, read_responses
from evalhouse.warehouse.rows.runs import RunRow, list_runs
from evalhouse.warehouse.rows.samples import Staging, StoredSample, Turn, dump_turns, read_samples_between
from evalhouse.warehouse.store import Warehouse

ReadSamples = Callable[[int, int], list[StoredSample]]
Pose = Callable[[StoredSample], TargetQuestion]
SEPARATORS = "#:/|@"
# They say how the application is asked, not what or whom.
_MANNERS = {"timeout_s", "attempts", "concurrency", "rpm", "stop_early", "repeats", "repeat_share"}


def pose_question(sample: StoredSample) -> TargetQuestion:
    """The question of a sample as any run asks it: what an answer rests on is the application's to find."""
    return TargetQuestion(
        sample_id=sample.sample_id,
        question=sample.question,
        metadata=sample.metadata,
        conversation=make_messages(sample.conversation),
    )


def make_target(settings: TargetSettings) -> Target:
    """The target of the settings; raises TargetError for what would make every question fail."""
    if settings.url is not None:
        from evalhouse.tasks.targets.over_http import HttpTarget  # noqa: PLC0415  # each target imports only what it needs

        return HttpTarget(settings)
    if settings.runnable is not None:
        from evalhouse.tasks.targets.callables import RunnableTarget  # noqa: PLC0415

        return RunnableTarget(settings)
    from evalhouse.tasks.targets.callables import CallableTarget  # noqa: PLC0415

    return CallableTarget(settings)


class KnownResponses(Protocol):
    """Where responses are taken from instead of being asked for."""

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """The responses that stand for some of these samples, by sample id; the others are asked for."""


@dataclass(frozen=True, kw_only=True)
class ParentResponses:
    """All responses of one run, for judging them again."""

    warehouse: Warehouse
    parent: RunRow
    own: bool = False

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """The parent's responses to the same questions, failed ones included."""
        asked = self.parent.config.get("target") or self.parent.config.get("responses")
        read = read_responses if asked else read_brought_responses
        responses = read(self.warehouse, self.parent.run_id, [sample.sample_id for sample in samples])
        by_id = {sample.sample_id: sample for sample in samples}
        # A response of a run that died before it was loaded has no question on record.
        return {
            name: response for name, response in responses.items() if asks_the_same(by_id[name], response, own=self.own)
        }


@dataclass(frozen=True, kw_only=True)
class UnaffectedResponses:
    """The last responses of a suite that cite no document that was announced as changed since they were asked for.

    `asking_runs` are the runs whose responses count, with their starts; `announced` says of each changed document when
    a run last began that heard of it, and `unknown_until` when the last one began that heard of a change, not of which.
    """

    warehouse: Warehouse
    asking_runs: Mapping[str, datetime]
    announced: Mapping[str, datetime]
    unknown_until: datetime | None = None
    own: bool = False

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """The responses that still hold, of samples whose question and metadata are what they were."""
        last = read_last_asked(self.warehouse, self.asking_runs, [sample.sample_id for sample in samples])
        return {
            sample.sample_id: last[sample.sample_id]
            for sample in samples
            if sample.sample_id in last and self._still_holds(sample, last[sample.sample_id])
        }

    def _still_holds(self, sample: StoredSample, last: StoredResponse) -> bool:
        # "{}" says "none this time" where a run before had some.
        same_metadata = (sample.metadata_json or "{}") == (last.metadata_json or "{}")
        if last.status != "ok" or not same_metadata or not asks_the_same(sample, last, own=self.own):
            return False
        asked_at = self.asking_runs[last.asked_run_id]
        if self.unknown_until is not None and self.unknown_until > asked_at:
            return False
        documents = list_cited_documents(last)
        return documents is not None and not any(
            document in self.announced and self.announced[document] > asked_at for document in documents
        )


def find_unaffected(warehouse: Warehouse, run: RunRow, target: TargetSettings) -> UnaffectedResponses | None:
    """What a run of a suite need not ask again; None when it does not know which documents changed.

    Only responses of the same application count: an address or a template that changed makes it another one.
    """
    if run.suite is None or not run.kb_changed:
        return None
    earlier = [
        other
        for other in list_runs(warehouse)
        if other.suite == run.suite and not other.is_part_of_run and other.started_at < run.started_at
    ]
    announced: dict[str, datetime] = {}
    unnamed_changes = []
    for other in sorted((*earlier, run), key=lambda other: other.started_at):
        announced |= dict.fromkeys(other.kb_changed or (), other.started_at)
        if other.trigger == "event" and not other.kb_changed:
            unnamed_changes.append(other.started_at)
    application = describe_application(target.model_dump(mode="json"))
    return UnaffectedResponses(
        warehouse=warehouse,
        asking_runs={
            other.run_id: other.started_at
            for other in earlier
            if describe_application(other.config.get("target")) == application
        },
        announced=announced,
        unknown_until=max(unnamed_changes, default=None),
        own=target.history == "own",
    )


def list_cited_documents(response: StoredResponse) -> set[str] | None:
    """Every document that a response's context ids may belong to; None when that is not known.

    The id of a context is the document's own, or begins with it and goes on with one of `SEPARATORS`: `doc#3`, `doc:3`
    and `doc/3` belong to `doc`, and `doc3` does not.
    """
    if response.contexts is not None and not response.contexts:
        return set()
    ids = response.context_ids
    if not ids or not all(ids) or (response.contexts is not None and len(ids) < len(response.contexts)):
        return None
    beginnings = {name[:place] for name in ids for place, letter in enumerate(name) if letter in SEPARATORS}
    return beginnings | set(ids)


def list_missing(parent: ParentResponses, samples: Sequence[StoredSample]) -> list[str]:
    """The ids of samples to whose questions the parent has no response."""
    responses = parent.find(samples)
    return [sample.sample_id for sample in samples if sample.sample_id not in responses]


def refuse_missing(parent: RunRow, n_missing: int, first: str, n_samples: int) -> FatalJudgeError:
    """The error for questions that a run to be judged again has no response to."""
    have = "has" if n_missing == 1 else "have"
    return FatalJudgeError(
        f"{n_missing} of {n_samples} questions {have} no response in run {parent.run_id} (the first: {first}); go on "
        f"with `evalhouse resume {parent.run_id}` where it did not finish, or run without --responses to ask them"
    )


def describe_application(target: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """The settings of a target that say which application is asked, and for what; None without one."""
    if target is None:
        return None
    # The dataset's own turns are what every question was asked after before there was a choice.
    usual = {"history"} if target.get("history") == "dataset" else set()
    return {name: value for name, value in target.items() if name not in _MANNERS | usual}


@dataclass(kw_only=True)
class Collection:
    """The asking of one run, and how far it is.

    Without a `target` every response is taken from `known`. `read_samples` gives the samples between two ordinals, and
    `numbers` are the shards that may have something to ask; `n_samples` is how many samples these hold. `first` ends
    the asking when the first questions all fail. A question that failed before counts for that only while the run has
    no answer at all (`has_answers`): what fails again after others were answered may be at fault itself. `pose` makes
    the question of a sample, which may bring the contexts that are to be answered from. `conversations` are the
    ordinals of the samples of each, where the answers that come are the history of the turns after them; `numbers` are
    then the shards in which conversations begin.
    """

    run_id: str
    warehouse: Warehouse
    target: Target | None
    known: KnownResponses | None
    record: Mover
    read_samples: ReadSamples
    numbers: Sequence[int]
    n_samples: int
    concurrency: int
    pose: Pose = pose_question
    conversations: Sequence[Sequence[int]] | None = None
    first: FirstQuestions | None = None
    is_resumed: bool = False
    has_answers: bool = False
    is_over: bool = False
    n_asked: int = 0
    n_failed: int = 0
    n_taken: int = 0
    _sending: set[asyncio.Timeout] = field(default_factory=set)
    _failed_before: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)

    @property
    def n_to_ask(self) -> int:
        """How many samples are to be asked about, as far as is known: those taken from the record are not."""
        return self.n_samples - self.n_taken

    def listen(self, stop_sign: StopSign) -> None:
        """End with the run: nothing more is asked when it is stopped."""
        stop_sign.listen(self._wind_down)

    async def collect(self, stop_sign: StopSign, number: int, *, size: int) -> None:
        """Settle every sample of a shard of `size` samples; raises what stops the run."""
        if self.conversations is not None:
            await self._collect_conversations(stop_sign, number, size)
            return
        samples = await asyncio.to_thread(self.read_samples, number * size + 1, (number + 1) * size)
        unsettled = await asyncio.to_thread(self._leave_out_settled, samples)
        taken = await self._find_known(unsettled)
        self.n_taken += len(samples) - len(unsettled) + len(taken)
        for sample in unsettled:
            if sample.sample_id in taken:
                self._keep(stop_sign, _describe_taken(sample, taken[sample.sample_id]))
        await gather_all([self._ask(stop_sign, sample) for sample in unsettled if sample.sample_id not in taken])

    async def _find_known(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        if self.known is None or not samples:
            return {}
        return await asyncio.to_thread(self.known.find, samples)

    async def _collect_conversations(self, stop_sign: StopSign, number: int, size: int) -> None:
        """Settle the conversations that begin in a shard, side by side."""
        held = await asyncio.to_thread(lambda: list(self.read_conversations(number, size)))
        samples = [sample for conversation in held for sample in conversation]
        settled = await asyncio.to_thread(self._find_settled, samples)
        taken = await self._find_known([sample for sample in samples if sample.sample_id not in settled])
        await gather_all([self._hold(stop_sign, conversation, settled, taken) for conversation in held])

    def read_conversations(self, number: int, size: int) -> Iterator[list[StoredSample]]:
        """The conversations that begin in a shard, each with all of its turns."""
        first, last = number * size + 1, (number + 1) * size
        near = {sample.ordinal: sample for sample in self.read_samples(first, last)}
        for ordinals in self.conversations or ():
            if first <= ordinals[0] <= last:
                yield [near.get(ordinal) or self.read_samples(ordinal, ordinal)[0] for ordinal in ordinals]

    async def _hold(
        self,
        stop_sign: StopSign,
        conversation: Sequence[StoredSample],
        settled: Mapping[str, StoredResponse],
        taken: Mapping[str, StoredResponse],
    ) -> None:
        """Ask the turns of a conversation in order, each after what really was said before it."""
        said, failure, is_new = conversation[0].conversation, "", False
        for place, sample in enumerate(conversation):
            response = None if is_new else settled.get(sample.sample_id)
            on_record = taken.get(sample.sample_id)
            if response is not None:
                self.n_taken += 1
            elif failure:
                self._keep(stop_sign, _describe_unasked(sample, failure))
                self.n_failed += 1
                continue
            elif on_record is not None and stands_after(said, on_record):
                self.n_taken += 1
                response = on_record
                self._keep(stop_sign, _describe_taken(sample, on_record))
            else:
                is_new = True
                response = await self._ask(stop_sign, sample, said)
            if response.status == "failed":
                failure = f"turn {place + 1} of its conversation failed, so that it was not asked: {response.error}"
            elif place + 1 < len(conversation):
                said = continue_conversation(said, sample, response, conversation[place + 1])

    async def finish(self) -> None:
        """Bring all responses into the warehouse, now that nothing more is asked."""
        await asyncio.to_thread(self.record.flush)
        self.is_over = True

    async def close(self) -> None:
        """Close the target's client."""
        if self.target is not None:
            await self.target.close()

    def _leave_out_settled(self, samples: Sequence[StoredSample]) -> list[StoredSample]:
        if not self.is_resumed:
            return list(samples)
        settled = self._find_settled(samples)
        unsettled = [sample for sample in samples if sample.sample_id not in settled]
        # Otherwise the same first failures would end the asking again, and the others would never have their turn.
        return sorted(unsettled, key=lambda sample: sample.sample_id in self._failed_before)

    def _find_settled(self, samples: Sequence[StoredSample]) -> dict[str, StoredResponse]:
        """The responses of this run, where it goes on, that need not be asked for again."""
        if not self.is_resumed:
            return {}
        responses = read_responses(self.warehouse, self.run_id, [sample.sample_id for sample in samples])
        settled = {name: response for name, response in responses.items() if response.status != "failed"}
        self._failed_before |= responses.keys() - settled.keys()
        return settled

    async def _ask(
        self, stop_sign: StopSign, sample: StoredSample, said: Sequence[Turn] | None = None
    ) -> StoredResponse:
        """The response to a sample, after what was `said`, or after its own conversation."""
        async with self._slots:
            stop_sign.raise_if_given()
            asked_at = time.time()
            question = self.pose(sample)
            if said is not None:
                question = replace(question, conversation=make_messages(said))
            response = _hold_to_given(question, await self._send(stop_sign, question))
            row = _describe_response(sample, response, asked_at)
            self._keep(stop_sign, row)
            self._stop_if_all_fail(stop_sign, sample, response)
        self.n_asked += 1
        self.n_failed += response.error is not None
        return _store(row, self.run_id)

    async def _send(self, stop_sign: StopSign, question: TargetQuestion) -> Response:
        if self.target is None:
            raise FatalJudgeError(
                f"sample {question.sample_id} has no response on record, and there is no target to ask"
            )
        try:
            async with asyncio.timeout(None) as drain:
                self._sending.add(drain)
                try:
                    return await self.target.ask(question)
                finally:
                    self._sending.discard(drain)
        except TimeoutError:
            stop_sign.raise_if_given()
            raise
        except TargetError as error:
            raise _stop(stop_sign, str(error)) from None

    def _stop_if_all_fail(self, stop_sign: StopSign, sample: StoredSample, response: Response) -> None:
        if self.first is None or (self.has_answers and sample.sample_id in self._failed_before):
            return
        try:
            self.first.note(response)
        except TargetError as error:
            raise _stop(stop_sign, str(error)) from None

    def _keep(self, stop_sign: StopSign, row: Mapping[str, object]) -> None:
        try:
            self.record.keep({"run_id": self.run_id, **row})
        except OSError as error:
            raise FatalJudgeError(
                f"cannot keep a response on disk beside the warehouse ({error.strerror or error}); "
                "make room and go on with `evalhouse resume`"
            ) from None
        if self.record.failure is not None:
            raise _stop(stop_sign, f"responses cannot be taken into the warehouse: {self.record.failure}")

    def _wind_down(self, _: FatalJudgeError, drain_s: float) -> None:
        until = asyncio.get_running_loop().time() + drain_s
        for timeout in self._sending:
            timeout.reschedule(until)


def _stop(stop_sign: StopSign, problem: str) -> FatalJudgeError:
    """Stop the run: nothing gets past the problem, so the others need not try."""
    error = FatalJudgeError(problem)
    stop_sign.give(error)
    return error


def stage_responses(collection: Collection, shard_size: int) -> Staging:
    """The samples of the collection's shards with the responses on record in the place of what they brought.

    They are read shard by shard, so that the number of samples does not matter.
    """
    staging = Staging()
    try:
        for number in collection.numbers:
            if collection.conversations is None:
                samples = collection.read_samples(number * shard_size + 1, (number + 1) * shard_size)
                held = [[sample] for sample in samples]
            else:
                held = list(collection.read_conversations(number, shard_size))
            ids = [sample.sample_id for conversation in held for sample in conversation]
            responses = read_responses(collection.warehouse, collection.run_id, ids)
            staging.add([row for conversation in held for row in _answer_conversation(conversation, responses)])
    except BaseException:  # whatever stops it, Ctrl-C too: the file of what was staged goes
        staging.discard()
        raise
    return staging


def _answer_conversation(
    conversation: Sequence[StoredSample], responses: Mapping[str, StoredResponse]
) -> Iterator[Mapping[str, object]]:
    """Staged rows of turns that were asked one after the other; those after a failed one keep the dataset's history."""
    said: Sequence[Turn] | None = conversation[0].conversation
    for place, sample in enumerate(conversation):
        response = responses[sample.sample_id]
        if place and said is not None:
            before, its = conversation[place - 1], responses[conversation[place - 1].sample_id]
            said = None if its.status == "failed" else continue_conversation(said, before, its, sample)
        as_it_went = sample if said is None or not place else replace(sample, conversation_json=dump_turns(said))
        yield _answer_sample(as_it_went, response)


def read_own_samples(warehouse: Warehouse, run_id: str) -> ReadSamples:
    """The samples of a run that was loaded before; they stand in for the dataset."""
    return lambda first, last: read_samples_between(warehouse, run_id, first, last)


def _answer_sample(sample: StoredSample, response: StoredResponse) -> Mapping[str, object]:
    """A staged row. A response that failed leaves the sample without answer and contexts."""
    answered = {
        "question": sample.question,
        "answer": response.answer,
        "ground_truth": sample.ground_truth,
        "contexts": response.contexts,
        "context_ids": response.context_ids,
        "reference_context_ids": sample.reference_context_ids,
    }
    return {
        "ordinal": sample.ordinal,
        "given_id": sample.sample_id,
        "sample_id": sample.sample_id,
        "input_hash": _hash(sample, answered),
        "metadata": sample.metadata_json,
        "conversation": sample.conversation_json,
        **answered,
    }


def _hash(sample: StoredSample, answered: Mapping[str, Any]) -> str:
    return hash_inputs(**answered, ground_truths=sample.accepted_answers, conversation=sample.conversation)


def _hold_to_given(question: TargetQuestion, response: Response) -> Response:
    """A response to a question that brought its contexts, which are then what the answer rests on.

    One that tells of others has failed: whatever it says, it is no answer from these.
    """
    if question.contexts is None or response.error is not None:
        return response
    given = {" ".join(text.split()) for text in question.contexts} | set(question.context_ids or ())
    told = response.contexts or ()
    ids = response.context_ids or ("",) * len(told)
    others = [text for text, name in zip(told, ids, strict=False) if not given & {" ".join(text.split()), name or None}]
    if not others:
        return replace(response, contexts=question.contexts, context_ids=question.context_ids)
    error = (
        f"it was given {len(question.contexts)} contexts and answers from others, such as {shorten(others[0], 60)!r}; "
        "let it take those of the request, where [target] puts them"
    )
    return replace(response, answer=None, contexts=None, context_ids=None, error=error, lasts=True)


def _describe_response(sample: StoredSample, response: Response, asked_at: float) -> Mapping[str, object]:
    """A row of `responses`. White space is the empty answer, a refusal; ids are none when all lack."""
    failed = response.error is not None
    answer = response.answer if response.answer and not response.answer.isspace() else ""
    ids = response.context_ids if response.context_ids and any(response.context_ids) else None
    return {
        "sample_id": sample.sample_id,
        "answer": None if failed else answer,
        "contexts": None if failed or response.contexts is None else list(response.contexts),
        "context_ids": None if failed or ids is None else list(ids),
        "latency_ms": response.latency_ms,
        "status": "failed" if failed else "ok",
        "error": response.error,
        "attempts": response.attempts,
        "asked_at": int(asked_at * 1e6),
    }


def _describe_unasked(sample: StoredSample, error: str) -> Mapping[str, object]:
    """A row of `responses` for a turn whose conversation ended before it."""
    return {"sample_id": sample.sample_id, "status": "failed", "error": error, "attempts": 0}


def _store(row: Mapping[str, Any], run_id: str) -> StoredResponse:
    """A row of `responses` as it is read again."""
    names = ("sample_id", "answer", "contexts", "context_ids", "status", "error", "latency_ms")
    return StoredResponse(**{name: row[name] for name in names}, asked_run_id=run_id, question=None, metadata_json=None)


def _describe_taken(sample: StoredSample, response: StoredResponse) -> Mapping[str, object]:
    """A row of `responses` for one that was asked for by another run."""
    return {
        "sample_id": sample.sample_id,
        "answer": response.answer,
        "contexts": response.contexts,
        "context_ids": response.context_ids,
        "status": "failed" if response.status == "failed" else "reused",
        "error": response.error,
        "reused_run_id": response.asked_run_id,
    }
