"""The collection of a run: how it gets a response to every sample, before anything is judged.

A response is on disk as soon as it came, so that no question is asked twice, however a run ends: a resumed run asks
only the questions that have no response, and after these the failed ones. The loaded samples then hold the responses in
place of the dataset's.

Recorded responses of a named run, or of a suite's last run that asked, are taken in place of asking. After an announced
change of documents a response stays valid as long as it cited none of them. That is a guess from the contexts of the
last time, with one known gap: a document that was never cited may now be the better source. Runs without changed ids
ask everything, and close the gap. Of an application that remembers conversations itself, whole ones are taken or asked.

With `history = "dataset"` a sample's earlier turns come from the dataset, and every question is asked by itself.
With "own" the application's answers replace the dataset's: turn 3 is asked after what it really answered in turns 1 and
2, so the turns of a conversation are asked one after the other and conversations side by side. The messages before the
first turn, and a person's between two questions, stay as the dataset has them.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Protocol

import orjson

from evalhouse.tasks.asking.limits import StopSign
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.datasets.rows import hash_inputs
from evalhouse.tasks.datasets.thoughts import Spoken, join_thoughts, split_thoughts
from evalhouse.tasks.datasets.values import list_source_names
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.protocol import FirstQuestions, Response, Target, TargetError, TargetQuestion
from evalhouse.warehouse.messages import name_setting, shorten
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.rows.calls import StoredResponse, fetch_last_asked, fetch_responses
from evalhouse.warehouse.rows.runs import RunRow, list_runs, parse_mark
from evalhouse.warehouse.rows.samples import (
    CONVERSATION_NAMES,
    Staging,
    StoredSample,
    Turn,
    dump_turns,
    find_owners,
    find_turn,
    load_turns,
)
from evalhouse.warehouse.store import Warehouse

ReadSamples = Callable[[int, int], list[StoredSample]]
Pose = Callable[[StoredSample], TargetQuestion]
Messages = tuple[dict[str, str], ...]
_ONLY_THOUGHTS = (
    "the answer is nothing but the bot's thoughts, as where it is cut off; give it more tokens, or judge its thoughts "
    "(judge_thoughts)"
)
_FORGOTTEN = "its answer was forgotten (`evalhouse warehouse forget`)"
_TEXTS = ("sample_id", "answer", "thoughts", "contexts", "context_ids", "context_sources")  # columns of a response
# Settings that do not change the application or the question.
_MANNERS = {"timeout_s", "attempts", "concurrency", "rpm", "stop_early", "repeats", "repeat_share"}


def make_target(settings: TargetSettings) -> Target:
    """Return the target of the settings; raises TargetError for what would make every question fail."""
    # Each target imports only what it needs.
    if settings.url is not None:
        from evalhouse.tasks.targets.over_http import HttpTarget  # noqa: PLC0415

        return HttpTarget(settings)
    from evalhouse.tasks.targets.callables import CallableTarget, RunnableTarget  # noqa: PLC0415

    return CallableTarget(settings) if settings.runnable is None else RunnableTarget(settings)


def describe_application(target: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """Return the settings of a target that name the application, and what it is asked for; None without one."""
    if target is None:
        return None
    return {name: value for name, value in target.items() if name not in _MANNERS}


# --- conversations


def make_messages(turns: Sequence[Turn]) -> Messages:
    """Return turns as OpenAI's chat API has messages, the form in which an application gets them."""
    return tuple({"role": turn.role, "content": turn.text} for turn in turns)


def pose_question(sample: StoredSample) -> TargetQuestion:
    """Return the question of a sample as any run asks it: the contexts of an answer are the application's to find."""
    return TargetQuestion(
        sample_id=sample.sample_id,
        question=sample.question,
        metadata=sample.metadata,
        conversation=make_messages(sample.conversation),
    )


def continue_conversation(
    earlier: Sequence[Turn], sample: StoredSample, response: StoredResponse, following: StoredSample
) -> list[Turn]:
    """Return the turns before the `following` one, after `sample` was asked after `earlier` turns and was answered."""
    answer = split_thoughts(response.answer or "").text
    continued = [*earlier, Turn(role="user", text=sample.question)]
    if answer.strip():
        turn = Turn(role="assistant", text=answer, contexts=response.contexts, context_ids=response.context_ids)
        continued.append(turn)
    # The dataset's turns after the question and the answer of this sample.
    turns = following.conversation
    n_before = sum(earlier.role == "user" for earlier in sample.conversation)
    places = [place for place, turn in enumerate(turns) if turn.role == "user"]
    if len(places) > n_before and turns[places[n_before]].text == sample.question:
        begin = places[n_before] + 1
        while begin < len(turns) and turns[begin].role == "assistant":
            begin += 1
        continued += turns[begin:]
    return continued


def came_after(turns: Sequence[Turn], response: StoredResponse) -> bool:
    """Return True if a recorded response was given after these turns; one without a recorded question counts."""
    if response.question is None:
        return True
    return make_messages(load_turns(response.conversation_json)) == make_messages(turns)


def asks_the_same(sample: StoredSample, response: StoredResponse, *, own: bool) -> bool:
    """Return True if a recorded response belongs to a sample's question.

    With the application's `own` answers in the history only the question itself must be the same. The turns before may
    be other samples: they are compared along the conversation.
    """
    if response.question is None:
        return True
    return response.question == sample.question and (own or came_after(sample.conversation, response))


def find_first_open(conversation: Sequence[StoredSample], responses: Mapping[str, StoredResponse]) -> int:
    """Return the place of the first turn without a response that was given after the turns before it.

    It is the number of turns where each has one, up to one that failed.
    """
    earlier = conversation[0].conversation
    for place, sample in enumerate(conversation):
        response = responses.get(sample.sample_id)
        if response is None or not came_after(earlier, response):
            return place
        if response.status == "failed":
            break
        if place + 1 < len(conversation):
            earlier = continue_conversation(earlier, sample, response, conversation[place + 1])
    return len(conversation)


def group_turns(
    read_samples: Callable[[int, int], list[StoredSample]], n_samples: int, size: int
) -> tuple[list[list[int]], set[str]]:
    """Return the ordinals of each conversation's samples, in the order in which they are asked, and the columns of
    CONVERSATION_NAMES that have ids of conversations: not one whose values are shared, as the id of an assistant.

    Samples belong together that have one `conversation_id` (`thread_id`, `session_id`) in their metadata, in the order
    of `turn`; a turn that comes twice begins another conversation of that id. A sample without an id is a separate
    conversation. One without a turn comes after the turns that it has before it, else after the ones of its
    conversation that the dataset has before.
    """
    groups: dict[tuple[str | None, int], list[tuple[int, int]]] = {}
    times: Counter[tuple[str, int]] = Counter()
    n_turns: Counter[str] = Counter()
    values: dict[str, set[str]] = {}
    conversations: dict[str, set[str]] = {}
    for first in range(1, n_samples + 1, size):
        for sample in read_samples(first, first + size - 1):
            name, given = find_turn(sample.metadata)
            for column in sample.metadata.keys() & CONVERSATION_NAMES:
                if name is not None and (value := sample.metadata[column]) not in (None, ""):
                    values.setdefault(column, set()).add(str(value))
                    conversations.setdefault(column, set()).add(name)
            key, turn = (name, sample.ordinal), 1
            if name is not None:
                n_before = sum(earlier.role == "user" for earlier in sample.conversation) or n_turns[name]
                turn = 1 + n_before if given is None else given
                n_turns[name] += 1
                times[name, turn] += 1
                key = (name, times[name, turn])
            groups.setdefault(key, []).append((turn, sample.ordinal))
    columns = {column for column, found in values.items() if 2 * len(found) > len(conversations[column])}
    return [[ordinal for _, ordinal in sorted(group)] for group in groups.values()], columns


def read_conversations(
    read_samples: ReadSamples, conversations: Sequence[Sequence[int]] | None, number: int, size: int
) -> Iterator[list[StoredSample]]:
    """Yield the conversations that begin in a shard, each with all of its turns; every sample by itself where no
    answer is the history of another turn."""
    first, last = number * size + 1, (number + 1) * size
    samples = read_samples(first, last)
    if conversations is None:
        yield from ([sample] for sample in samples)
        return
    near = {sample.ordinal: sample for sample in samples}
    for ordinals in conversations:
        if first <= ordinals[0] <= last:
            yield [near.get(ordinal) or read_samples(ordinal, ordinal)[0] for ordinal in ordinals]


def check_takes_conversation(
    target: Target,
    settings: TargetSettings,
    n_continued: int,
    n_alone: int,
    *,
    n_unheard: int = 0,
    n_nameless: int = 0,
) -> None:
    """Refuse to ask questions of conversations without the turns before them; raises TargetError.

    `n_continued` is how many samples have earlier turns, and `n_alone` how many are later turns without these, by their
    number or by the id of a row before: an application that has conversations can answer them only after the turns.
    `n_unheard` is how many come after a question of no row, which one that remembers what it is asked does not hear.
    `n_nameless` is how many are later turns without an id of their conversation.
    """
    ids = " or ".join(f"`{name}`" for name in CONVERSATION_NAMES[:3])
    is_history_set = "history" in settings.model_fields_set  # also to "dataset": each row is asked for itself
    has_conversations = target.names_conversation or target.takes_conversation
    if n_nameless and (settings.history == "own" or (has_conversations and not is_history_set)):
        raise TargetError(
            f"{n_nameless:,} rows have a `turn` above 1 and no id of their conversation; name the column with the id "
            f"{ids}, or give the column `turn` another name if it does not count turns"
        )
    if n_alone and not is_history_set and has_conversations:
        raise TargetError(
            f"{n_alone:,} rows are later turns of conversations, by their `turn` or as rows with the same {ids} as one "
            'before, and do not hold the turns before; history = "own" in [target] asks the turns in order, each after '
            'the answers before it, history = "dataset" asks each row for itself'
        )
    n_turns = n_continued + (n_alone if settings.history == "own" else 0)
    if not n_turns or target.takes_conversation:
        return
    where = {
        "url": 'put "{{conversation}}" into [target] body, where a request takes the messages before the question',
        "callable": "let the function take an argument `conversation`, the list of messages before the question",
        "runnable": "let the Runnable's input have `messages`, or a member `conversation`, `chat_history` or `history`",
    }
    kind = next(name for name in where if getattr(settings, name) is not None)
    marks = {
        "url": "{{conversation_id}}",
        "callable": "an argument `metadata`",
        "runnable": f"a required member {ids} of its input",
    }
    if settings.history == "own" and target.names_conversation:
        if n_unheard:
            raise TargetError(
                f"{n_unheard:,} questions come after others that are not asked, because these are earlier turns of a "
                f"row, and {target.name} remembers only what it is asked. Make a row of each question "
                f'(turns = "all" for messages), or {where[kind]}'
            )
        return
    raise TargetError(
        f"{n_turns:,} questions are asked in the middle of a conversation, and {target.name} does not receive the "
        "messages before. If it has no conversations, leave these rows out (`testset make` writes some only where "
        f'--kinds names conversational). Else {where[kind]}; if it remembers them itself, set history = "own" and give '
        f"it the conversation's id, by {marks[kind]}"
    )


# --- recorded responses


class KnownResponses(Protocol):
    """A source of responses that need not be asked for; a replay has one too."""

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """Return responses for some of these samples, by sample id; the others are asked for."""


@dataclass(frozen=True, kw_only=True)
class ParentResponses:
    """All responses of one run, for judging them again."""

    warehouse: Warehouse
    parent: RunRow
    own: bool = False

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """Return the parent's responses to the same questions, failed ones included."""
        asked = self.parent.config.get("target") or self.parent.config.get("responses")
        sample_ids = [sample.sample_id for sample in samples]
        source: Literal["own", "brought"] = "own" if asked else "brought"
        responses = fetch_responses(self.warehouse, self.parent.run_id, sample_ids, source=source)
        by_id = {sample.sample_id: sample for sample in samples}
        # A response of a run that died before it was loaded has no recorded question.
        found: dict[str, StoredResponse] = {}
        for name, response in responses.items():
            if parse_mark(response.answer):
                lost: dict[str, Any] = dict.fromkeys((*_TEXTS[1:], "question"))
                found[name] = replace(response, status="failed", error=_FORGOTTEN, **lost)
            elif asks_the_same(by_id[name], response, own=self.own):
                found[name] = response
                if source == "brought":
                    metadata = orjson.loads(response.metadata_json or "{}")
                    sources = _dump_sources(list_source_names(metadata.get("contexts")))
                    found[name] = replace(response, context_sources=sources)
        return found

    def check_complete(
        self, read_samples: ReadSamples, conversations: Sequence[Sequence[int]] | None, n_samples: int, size: int
    ) -> None:
        """Raise FatalJudgeError for questions that have no response, read `size` samples at a time."""
        missing: list[str] = []
        for number in range(-(-n_samples // size)):
            held = list(read_conversations(read_samples, conversations, number, size))
            responses = self.find([sample for conversation in held for sample in conversation])
            for conversation in held:
                missing += [sample.sample_id for sample in conversation[find_first_open(conversation, responses) :]]
        if missing:
            run_id, n, have = self.parent.run_id, len(missing), "has" if len(missing) == 1 else "have"
            raise FatalJudgeError(
                f"{n} of {n_samples} questions {have} no response in run {run_id} (the first: {missing[0]}); "
                f"resume it with `evalhouse resume {run_id}` if it did not finish, or run without "
                f"{name_setting('responses')} to ask them"
            )


@dataclass(frozen=True, kw_only=True)
class UnaffectedResponses:
    """The last responses of a suite that cite no document that was announced as changed since they were asked for.

    `asking_runs` are the runs whose responses count, with their starts; `announced` has for each changed document, by
    its id as `find_owners` compares it, the start of the last run that received it, `announced_within` the same for
    documents of which a passage was announced: for a bot that cites whole documents. `unknown_until` is the start of
    the last run that received a change without its documents.
    """

    warehouse: Warehouse
    asking_runs: Mapping[str, datetime]
    announced: Mapping[str, datetime]
    announced_within: Mapping[str, datetime] = field(default_factory=dict)
    unknown_until: datetime | None = None
    own: bool = False

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """Return the responses that are still valid, of samples whose question and metadata are what they were."""
        last = fetch_last_asked(self.warehouse, self.asking_runs, [sample.sample_id for sample in samples])
        owners = find_owners(name for response in last.values() for name in response.context_ids or () if name)
        valid: dict[str, StoredResponse] = {}
        for sample in samples:
            response = last.get(sample.sample_id)
            if response is None or response.status != "ok" or not asks_the_same(sample, response, own=self.own):
                continue
            if parse_mark(response.answer):
                continue
            # "{}" means "none this time" if an earlier run had some.
            if (sample.metadata_json or "{}") != (response.metadata_json or "{}"):
                continue
            asked_at = self.asking_runs[response.asked_run_id]
            if self.unknown_until is not None and self.unknown_until > asked_at:
                continue
            documents = list_cited_documents(response, owners)
            if documents is None:
                continue
            cited = [owners[name][-1] for name in response.context_ids or () if documents]
            changed_at = [self.announced.get(name, asked_at) for name in documents]
            if all(
                at <= asked_at for at in (*changed_at, *(self.announced_within.get(name, asked_at) for name in cited))
            ):
                valid[sample.sample_id] = response
        return valid


def find_unaffected(warehouse: Warehouse, run: RunRow, target: TargetSettings) -> UnaffectedResponses | None:
    """Return what a run of a suite need not ask again; None when it does not know which documents changed.

    Only responses of the same application count: an address or a template that changed makes it another one.
    """
    if run.suite is None or not run.kb_changed:
        return None
    earlier = [
        other
        for other in list_runs(warehouse)
        if other.suite_name == run.suite_name and not other.is_part_of_run and other.started_at < run.started_at
    ]
    announced: dict[str, datetime] = {}
    announced_within: dict[str, datetime] = {}
    unnamed_changes = []
    for other in sorted((*earlier, run), key=lambda other: other.started_at):
        for owners in find_owners(other.kb_changed or ()).values():
            announced[owners[-1]] = other.started_at
            announced_within |= dict.fromkeys(owners[:-1], other.started_at)
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
        announced_within=announced_within,
        unknown_until=max(unnamed_changes, default=None),
        own=target.history == "own",
    )


def list_cited_documents(response: StoredResponse, owners: Mapping[str, Sequence[str]]) -> set[str] | None:
    """Return every document that a response's context ids may belong to; None when that is not known.

    `owners` are the documents by id, as `find_owners` returns them.
    """
    if response.contexts is not None and not response.contexts:
        return set()
    ids = response.context_ids
    if not ids or not all(ids) or (response.contexts is not None and len(ids) < len(response.contexts)):
        return None
    return {owner for name in ids for owner in owners[name]}


# --- the asking


@dataclass(kw_only=True)
class Collection:
    """The asking of one run, and its progress.

    Without a `target` every response is taken from `known`. `read_samples` returns the samples between two ordinals,
    and `numbers` are the shards that may have something to ask; `n_samples` is how many samples these hold. `first`
    ends the asking when the first questions all fail. A question that failed before counts for that only while the run
    has no answer at all (`has_answers`): if it fails again after others were answered, the question may be at fault.
    `pose` makes the question of a sample, which may bring the contexts to answer from. `conversations` are the ordinals
    of the samples of each, if the answers are the history of the turns after them, and `id_columns` have their ids;
    `numbers` are then the shards in which conversations begin. Unless it is to `judge_thoughts`, those are taken out of
    answers and kept beside them.
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
    id_columns: AbstractSet[str] = frozenset()
    first: FirstQuestions | None = None
    judge_thoughts: bool = False
    is_resumed: bool = False
    has_answers: bool = False
    is_over: bool = False
    n_asked: int = 0
    n_failed: int = 0
    n_taken: int = 0
    _failed_before: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)
        target = self.target
        self._remembers = target is not None and target.names_conversation and not target.takes_conversation

    @property
    def n_to_ask(self) -> int:
        """The number of samples to ask about, as far as is known: those taken from the record are not."""
        return self.n_samples - self.n_taken

    async def collect(self, stop_sign: StopSign, number: int, *, size: int) -> None:
        """Get a response to every sample of a shard of `size` samples; raises what stops the run."""
        held = await asyncio.to_thread(
            lambda: list(read_conversations(self.read_samples, self.conversations, number, size))
        )
        samples = [sample for conversation in held for sample in conversation]
        settled: dict[str, StoredResponse] = {}
        if self.is_resumed:
            ids = [sample.sample_id for sample in samples]
            responses = await asyncio.to_thread(fetch_responses, self.warehouse, self.run_id, ids)
            settled = {name: response for name, response in responses.items() if response.status != "failed"}
            self._failed_before |= responses.keys() - settled.keys()
            # Otherwise the same first failures would end the asking again, and the others would never have their turn.
            held.sort(key=lambda conversation: conversation[0].sample_id in self._failed_before)
        known: Mapping[str, StoredResponse] = {}
        unsettled = [sample for sample in samples if sample.sample_id not in settled]
        if self.known is not None and unsettled:
            known = await asyncio.to_thread(self.known.find, unsettled)
        await gather_all([self._ask_turns(stop_sign, conversation, settled, known) for conversation in held])

    async def _ask_turns(
        self,
        stop_sign: StopSign,
        conversation: Sequence[StoredSample],
        settled: Mapping[str, StoredResponse],
        known: Mapping[str, StoredResponse],
    ) -> None:
        """Get the responses to the turns of a conversation in order, each after the real turns before it.

        A turn is settled if this run has its response, or known from the record; after a failed turn the others are not
        asked, and after a new answer no recorded response is valid. An application that remembers its conversations
        itself is asked a whole one under a new id: it may have forgotten the first turns, or a turn that failed. Its
        answers of before stay until the first turn without an answer has one.
        """
        earlier = None if self.conversations is None else conversation[0].conversation
        held: list[dict[str, object]] | None = None
        answered: Mapping[str, StoredResponse] = {}
        first_open = 0
        if earlier is not None and self._remembers:
            first_open = find_first_open(conversation, {**known, **settled})
            if first_open < len(conversation):
                held, answered = [] if settled else None, settled
                known = settled = {}
        failure, is_new, made = "", False, uuid.uuid4()

        def keep(**row: object) -> None:
            if held is None:
                self._keep(stop_sign, **row)
            else:
                held.append(row)

        for place, sample in enumerate(conversation):
            on_record = known.get(sample.sample_id)
            if on_record is not None and earlier is not None:
                on_record = on_record if came_after(earlier, on_record) else None
            if sample.sample_id in settled and not is_new:
                self.n_taken += 1
                response = settled[sample.sample_id]
            elif failure:
                if sample.sample_id not in answered or held is None:
                    self._keep(stop_sign, sample_id=sample.sample_id, status="failed", error=failure, attempts=0)
                    self.n_failed += 1
                continue
            elif on_record is not None:
                self.n_taken += 1
                spoken = self._settle_thoughts(on_record.answer, on_record.thoughts)
                response = replace(
                    on_record, answer=spoken.text if spoken else None, thoughts=spoken.thoughts if spoken else None
                )
                keep(
                    **{name: getattr(response, name) for name in (*_TEXTS, "error")},
                    status="failed" if response.status == "failed" else "reused",
                    reused_run_id=response.asked_run_id,
                )
            else:
                is_new = True
                response = await self._ask(stop_sign, sample, earlier, made, keep)
            if response.status == "failed":
                failure = f"turn {place + 1} of its conversation failed, so that it was not asked: {response.error}"
                if held is not None and sample.sample_id not in answered:
                    self._keep(stop_sign, **held[-1])
                continue
            if held is not None and place >= first_open:
                for row in held:
                    self._keep(stop_sign, **row)
                held = None
            if earlier is not None and place + 1 < len(conversation):
                earlier = continue_conversation(earlier, sample, response, conversation[place + 1])

    async def _ask(
        self,
        stop_sign: StopSign,
        sample: StoredSample,
        earlier: Sequence[Turn] | None,
        made: uuid.UUID,
        keep: Callable[..., None],
    ) -> StoredResponse:
        """Ask about a sample, after the `earlier` turns or the dataset's conversation, and `keep` the response.

        `made` is an id for the conversation. An application may remember what other runs asked under the dataset's ids,
        so that it replaces these where the application remembers the turns itself.
        """
        async with self._slots:
            stop_sign.raise_if_given()
            asked_at = time.time()
            question = replace(self.pose(sample), conversation_id=str(made))
            if earlier is not None:
                question = replace(question, conversation=make_messages(earlier))
                if self._remembers:
                    # A number stays one, of 31 bits.
                    of_run = {
                        column: made.int >> 97 if isinstance(value, int) else str(made)
                        for column, value in sample.metadata.items()
                        if column in self.id_columns and value is not None
                    }
                    question = replace(question, metadata={**question.metadata, **of_run})
            if self.target is None:
                raise FatalJudgeError(
                    f"sample {question.sample_id} has no recorded response, and no target was given to ask"
                )
            try:
                async with stop_sign.in_flight():
                    response = check_contexts(question, await self.target.ask(question))
            except TimeoutError:
                stop_sign.raise_if_given()
                raise
            except TargetError as error:
                raise _stop(stop_sign, str(error)) from None
            spoken = self._settle_thoughts(response.answer)
            if spoken is not None and spoken.is_only_thoughts:
                response = replace(response, error=_ONLY_THOUGHTS)
            failed = response.error is not None
            ids = response.context_ids if response.context_ids and any(response.context_ids) else None
            stored = StoredResponse(
                sample_id=sample.sample_id,
                # White space is the empty answer, a refusal.
                answer=None if failed or spoken is None else spoken.text if spoken.text.strip() else "",
                thoughts=spoken.thoughts if spoken else None,
                contexts=None if failed or response.contexts is None else list(response.contexts),
                context_ids=None if failed or ids is None else list(ids),
                context_sources=None if failed else _dump_sources(response.context_sources),
                status="failed" if failed else "ok",
                error=response.error,
                latency_ms=response.latency_ms,
                asked_run_id=self.run_id,
                question=None,
                metadata_json=None,
            )
            row = {name: getattr(stored, name) for name in (*_TEXTS, "status", "error", "latency_ms")}
            keep(**row, attempts=response.attempts, asked_at=int(asked_at * 1e6))
            if self.first is not None and not (self.has_answers and sample.sample_id in self._failed_before):
                try:
                    self.first.note(response)
                except TargetError as error:
                    raise _stop(stop_sign, str(error)) from None
        self.n_asked += 1
        self.n_failed += failed
        return stored

    def _settle_thoughts(self, answer: str | None, thoughts: str | None = None) -> Spoken | None:
        """Return an answer with its thoughts apart, or as one text to be judged; None without an answer."""
        if answer is None:
            return None
        whole = join_thoughts(thoughts, answer)
        return Spoken(text=whole) if self.judge_thoughts else split_thoughts(whole)

    def _keep(self, stop_sign: StopSign, **row: object) -> None:
        """Store a row of `responses` on disk."""
        try:
            self.record.keep({"run_id": self.run_id, **row})
        except OSError as error:
            raise _stop(
                stop_sign,
                f"cannot keep a response on disk beside the warehouse ({error.strerror or error}); "
                "make room, then run `evalhouse resume`",
            ) from None
        if self.record.failure is not None:
            raise _stop(stop_sign, f"responses cannot be taken into the warehouse: {self.record.failure}")

    async def finish(self) -> None:
        """Bring all responses into the warehouse, now that nothing more is asked."""
        await asyncio.to_thread(self.record.flush)
        self.is_over = True

    async def close(self) -> None:
        """Close the target's client."""
        if self.target is not None:
            await self.target.close()


def _dump_sources(sources: Sequence[Sequence[str]] | None) -> str | None:
    """Return the addresses and sources of contexts as JSON; None where no context has any."""
    return orjson.dumps(sources).decode() if sources and any(sources) else None


def _stop(stop_sign: StopSign, problem: str) -> FatalJudgeError:
    """Stop the run: nothing gets past the problem, so the other questions need not try."""
    error = FatalJudgeError(problem)
    stop_sign.give(error)
    return error


def check_contexts(question: TargetQuestion, response: Response) -> Response:
    """Return a response to a question that brought its contexts, which are then the contexts of the answer.

    A response with others has failed: it is not an answer from these.
    """
    if question.contexts is None or response.error is not None:
        return response
    given = {" ".join(text.split()) for text in question.contexts} | set(question.context_ids or ())
    returned = response.contexts or ()
    ids = response.context_ids or ("",) * len(returned)
    others = [
        text for text, name in zip(returned, ids, strict=False) if not given & {" ".join(text.split()), name or None}
    ]
    if not others:
        return replace(response, contexts=question.contexts, context_ids=question.context_ids, context_sources=None)
    error = (
        f"it was given {len(question.contexts)} contexts and answers from others, such as {shorten(others[0], 60)!r}; "
        "let it take the contexts of the request, where [target] puts them"
    )
    return replace(response, answer=None, contexts=None, context_ids=None, error=error, lasts=True)


# --- loading


def stage_responses(collection: Collection, shard_size: int) -> Staging:
    """Return the samples of the collection's shards with the recorded responses in place of the dataset's.

    They are read shard by shard, so that the number of samples does not matter.
    """
    staging = Staging()
    try:
        for number in collection.numbers:
            held = list(read_conversations(collection.read_samples, collection.conversations, number, shard_size))
            ids = [sample.sample_id for conversation in held for sample in conversation]
            responses = fetch_responses(collection.warehouse, collection.run_id, ids)
            rows: list[Mapping[str, object]] = []
            for conversation in held:
                earlier: Sequence[Turn] | None = conversation[0].conversation
                for place, sample in enumerate(conversation):
                    response = responses[sample.sample_id]
                    asked = sample
                    if place and earlier is not None:
                        before, its = conversation[place - 1], responses[conversation[place - 1].sample_id]
                        earlier = (
                            None if its.status == "failed" else continue_conversation(earlier, before, its, sample)
                        )
                        asked = sample if earlier is None else replace(sample, conversation_json=dump_turns(earlier))
                    answered: dict[str, Any] = {
                        "question": asked.question,
                        "answer": response.answer,
                        "ground_truth": asked.ground_truth,
                        "contexts": response.contexts,
                        "context_ids": response.context_ids,
                        "reference_context_ids": asked.reference_context_ids,
                    }
                    rows.append(
                        {
                            "ordinal": asked.ordinal,
                            "given_id": asked.sample_id,
                            "sample_id": asked.sample_id,
                            "input_hash": hash_inputs(
                                **answered, ground_truths=asked.accepted_answers, conversation=asked.conversation
                            ),
                            "metadata": asked.metadata_json,
                            "conversation": asked.conversation_json,
                            **answered,
                        }
                    )
            staging.add(rows)
    except BaseException:  # also on Ctrl-C the staged file goes
        staging.discard()
        raise
    return staging
