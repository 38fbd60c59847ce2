"""Ids in, ids out: ask about a set of items until each has exactly one usable verdict.

What a reply leaves out, doubles or labels wrongly is asked for again, alone. Nothing is padded or guessed: when
the attempts are used up the question has failed, with the ids that are missing. With votes all of this is done that
many times side by side, and the majority decides on each item; the steps keep each vote beside their verdict.

Below it is the reading of replies. Endpoints without structured output put JSON in a fence or after prose; that much is
accepted. What is in it is checked strictly: each id that was sent must come back exactly once with an allowed label. A
verdict that breaks this is as good as missing.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import orjson

from evalhouse.prompts import TURN_PREFIX, VERDICTS, BlockValue, Prompt, list_ids, name_support, unfold_row
from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.pairs import JOIN, Form, Pair, Rules, Scored, begin_judging, find_form, locate
from evalhouse.tasks.judge.errors import BudgetExhausted, CutReply, EndpointDown, JudgeFailed, TooLong, UnusableReply
from evalhouse.tasks.judge.names import is_fixed
from evalhouse.tasks.judge.protocol import Question, plain_data

T = TypeVar("T")
_NO_CONTEXT = "none"
_SUPPORTED, _TOGETHER = "supported", "+"  # marks of votes
_NEAREST = "the nearest vote:"
_MOST_FALSE_STARTS = 100
_YES_FROM = 0.5  # of what is 1 for yes and 0 for no
# What one reply may hold. A text of one request has at most some thousand sentences and a hundred thousand letters.
_MOST_STATEMENTS = 2_000
_MOST_LETTERS = 100_000
_MOST_DEPTH = 32
_MOST_PROBLEMS = 20
# One list of all verdicts, or one for each side.
_VERDICT_LISTS = (VERDICTS, "answer_statements", "ground_truth_statements")
_VERDICTS_BEGIN = re.compile(rf'\{{\s*"(?:{"|".join(_VERDICT_LISTS)})"\s*:\s*\[')
_JUDGED_BY = {"A": "G", "G": "A", "C": "G"}
_ROW_BEGINS = re.compile(r"[\s,]*\[")
COPIED = "the words of the prompt's own example"
# Not strict: models write line breaks into texts as they are.
_DECODER = json.JSONDecoder(strict=False)
_THINK, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One verdict as the judge gave it: a label, or the ids of supporting contexts and earlier turns.

    `contexts` support alone, each of them; where none does, `together` are two or more that do so together.
    """

    reason: str
    label: str | None = None
    contexts: tuple[str, ...] = ()
    together: tuple[str, ...] = ()

    @property
    def is_supported(self) -> bool:
        """Whether any context supports it, alone or with others."""
        return bool(self.contexts or self.together)


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """The usable verdicts of one reply by id, and what was wrong with the rest; `missing` ids have none."""

    by_id: Mapping[str, Verdict]
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def shortfall(self) -> str | None:
        """What stands on record beside a reply that is not complete."""
        return f"incomplete: {'; '.join(self.problems)}" if self.missing else None


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What to ask about a sample, and how many votes to take on it.

    `build_data` gives the data of a request about some of the ids, with all that they are judged against; `read`
    reads its reply for exactly those. `is_part` says that its prompt asks for more than all ids of the inquiry, so that
    the first request names them too.
    """

    step: str
    sample_id: str
    prompt: Prompt
    build_data: Callable[[Collection[str]], Mapping[str, BlockValue]]
    read: Callable[[str, Collection[str]], Verdicts]
    votes: int = 1
    is_part: bool = False


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One vote on one item, the call it came from, and whether the majority said just the same.

    `number` is that of the question it answers: from 1, or 0 where nothing was put to the vote.
    """

    number: int
    verdict: Verdict
    call_id: str
    agrees: bool = True


@dataclass(frozen=True, kw_only=True)
class JudgedItem:
    """A verdict and the call it came from; `votes` are all that were taken on it, none where it was asked for once."""

    verdict: Verdict
    call_id: str
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Poll:
    """What came of an inquiry, or of one vote on it, by id, and what ended it when some are missing."""

    judged: dict[str, JudgedItem]
    failure: JudgeFailed | None = None


async def ask_verdicts(asker: Asker, inquiry: Inquiry, ids: Sequence[str]) -> dict[str, JudgedItem]:
    """A verdict for every id; raises JudgeFailed when some are still missing after the last attempt.

    Of several votes some may fail, as long as those that came are a majority of all for every id. A judge that says the
    same each time has one, and so has one that is asked in a form of its own, pair by pair.
    """
    poll = await poll_verdicts(asker, inquiry, ids)
    if poll.failure is not None:
        raise poll.failure
    return poll.judged


async def poll_verdicts(asker: Asker, inquiry: Inquiry, ids: Sequence[str], *, vote: int | None = None) -> Poll:
    """Return the verdicts that came, with the failure that left the others missing; `vote` is the number of one vote.

    The first request asks for all ids, later ones name those that are missing, half as many once a reply was cut off.
    The run's attempts are shared among them, so a judge that never gives one verdict is not asked more often than one
    that gives none; what a reply said before it was cut off is worth an attempt.
    """
    judge = asker.find(inquiry.step).judge.name
    if vote is None and JOIN in judge and (form := find_form(judge)) is not None:
        return await _ask_by_pairs(asker, inquiry, ids, form)
    if vote is None and inquiry.votes > 1 and not is_fixed(judge):
        return await _ask_by_vote(asker, inquiry, ids)
    judged: dict[str, JudgedItem] = {}
    missing: Sequence[str] = ids
    most, number, used, problem = len(ids), 0, 0, ""
    while missing and used < asker.attempts:
        asked, number = missing[:most], number + 1
        question = Question(
            step=inquiry.step,
            sample_id=inquiry.sample_id,
            prompt=inquiry.prompt,
            data=inquiry.build_data(asked),
            vote=vote or 0,
            number=number,
            only=tuple(asked) if number > 1 or inquiry.is_part else (),
            n_unusable=used,
        )
        read, read_cut = _read_for(inquiry, asked, question)
        try:
            answer = await asker.ask(
                question, read, attempts=asker.attempts - used, read_cut=read_cut if len(asked) > 1 else None
            )
        except CutReply as error:
            most, used, problem = -(-len(asked) // 2), used + 1, str(error)
            continue
        except JudgeFailed as error:
            return Poll(judged=judged, failure=error)
        for item_id, verdict in answer.value.by_id.items():
            judged[item_id] = JudgedItem(verdict=verdict, call_id=answer.call_id)
        if answer.is_cut:
            most = -(-len(asked) // 2)
        elif answer.value.missing:
            used, problem = used + 1, "; ".join(answer.value.problems)
        missing = [item for item in ids if item not in judged]
    failure = JudgeFailed(f"still incomplete after asking {number} times: {problem}") if missing else None
    return Poll(judged=judged, failure=failure)


async def _ask_by_pairs(asker: Asker, inquiry: Inquiry, ids: Sequence[str], form: Form) -> Poll:
    """The verdicts that follow from a yes or no on each pair; the call of each is that of the pair which decided it."""
    joint = "together" in str(inquiry.prompt.reply_schema)
    rules = Rules(threshold=_YES_FROM, joint=joint, fits=lambda _: True)  # requests are split by tokens before
    judging = begin_judging(inquiry.prompt.name, plain_data(inquiry.build_data(ids)), rules)
    try:
        batch = next(judging)
        while True:
            batch = judging.send(await gather_all([_ask_pair(asker, inquiry, form, pair) for pair in batch.pairs]))
    except JudgeFailed as error:
        return Poll(judged={}, failure=error)
    except StopIteration as ended:
        given = ended.value
    verdicts = inquiry.read(orjson.dumps({VERDICTS: given}).decode(), ids)
    calls = {verdict["id"]: verdict["call_id"] for verdict in given}
    judged = {key: JudgedItem(verdict=verdict, call_id=calls[key]) for key, verdict in verdicts.by_id.items()}
    return Poll(judged=judged, failure=None)


async def _ask_pair(asker: Asker, inquiry: Inquiry, form: Form, pair: Pair) -> Scored:
    data = {"document": pair.document, "claim": pair.claim}
    question = Question(step=inquiry.step, sample_id=inquiry.sample_id, prompt=inquiry.prompt, data=data)
    answer = await asker.ask(question, form.read)
    place = locate(pair.document, 0, len(pair.document))
    said = "supported" if answer.value else "not supported"
    return Scored(score=float(answer.value), text=pair.document, said=said, call_id=answer.call_id, **place)


async def _ask_by_vote(asker: Asker, inquiry: Inquiry, ids: Sequence[str]) -> Poll:
    numbers = range(1, inquiry.votes + 1)
    polls = await gather_all([poll_verdicts(asker, inquiry, ids, vote=number) for number in numbers])
    judged: dict[str, JudgedItem] = {}
    for item_id in ids:
        cast = [
            Vote(number=number, verdict=item.verdict, call_id=item.call_id)
            for number, poll in zip(numbers, polls, strict=True)
            if (item := poll.judged.get(item_id)) is not None
        ]
        elected = elect(cast, asked=inquiry.votes)
        if elected is not None:
            judged[item_id] = elected
    if len(judged) == len(ids):
        return Poll(judged=judged)
    open_ids = ", ".join(item_id for item_id in ids if item_id not in judged)
    failures = [poll.failure for poll in polls if poll.failure is not None]
    return Poll(judged=judged, failure=_make_failure(open_ids, failures, inquiry.votes))


def _make_failure(open_ids: str, failures: Sequence[JudgeFailed], n_votes: int) -> JudgeFailed:
    """One error for the votes that are missing. Where money was, or room, it is that: then they can still be had."""
    telling = (failure for failure in failures if isinstance(failure, BudgetExhausted | TooLong))
    kind: type[JudgeFailed] = next((type(failure) for failure in telling), JudgeFailed)
    why = f"; {len(failures)} failed, the first: {failures[0]}" if failures else ""
    return kind(f"no majority of {n_votes} votes on {open_ids}{why}")


_Read = Callable[[str], Verdicts]


def _read_for(inquiry: Inquiry, ids: Collection[str], question: Question) -> tuple[_Read, _Read]:
    """How a reply about these ids is read, and how one that was cut off."""

    def read(text: str) -> Verdicts:
        return _refuse_copies(inquiry.read(text, ids), inquiry.prompt, question.data)

    return read, lambda text: read(_close_cut(text))


def _refuse_copies(verdicts: Verdicts, prompt: Prompt, data: Mapping[str, BlockValue]) -> Verdicts:
    """Without the verdicts whose reasons small models copied from a worked example; raises UnusableReply for all."""
    if not prompt.examples:
        return verdicts
    copied = prompt.list_copied([verdict.reason for verdict in verdicts.by_id.values()], data)
    by_id = {item_id: verdict for item_id, verdict in verdicts.by_id.items() if verdict.reason not in copied}
    lost = tuple(item_id for item_id in verdicts.by_id if item_id not in by_id)
    if not lost:
        return verdicts
    problem = f"{COPIED} for {', '.join(lost)}"
    if not by_id:
        raise UnusableReply(problem)
    return Verdicts(by_id=by_id, problems=(*verdicts.problems, problem), missing=(*verdicts.missing, *lost))


def gather_all(asked: Sequence[Awaitable[T]]) -> "asyncio.Task[list[T]]":
    """All results in order. When some fail, the first failure once all have ended, so that nothing is left behind.

    A failure for good goes before EndpointDown, which would have the others tried again for nothing. It is a task, so
    that whoever waits for it is woken once and not with everything below.
    """
    begun = [asyncio.ensure_future(one) for one in asked]
    gathered = asyncio.create_task(_gather(begun))
    for one in begun:
        # One that is cancelled before its first step would leave what it was to wait for behind.
        gathered.add_done_callback(one.cancel)
    return gathered


async def _gather(asked: Sequence["asyncio.Future[T]"]) -> list[T]:
    results = await asyncio.gather(*asked, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise next((failure for failure in failures if not isinstance(failure, EndpointDown)), failures[0])
    return [result for result in results if not isinstance(result, BaseException)]


def elect(cast: Sequence[Vote], *, asked: int) -> JudgedItem | None:
    """What the majority of `asked` votes says, in the words and with the call of the vote that is nearest to it.

    `cast` are those that came; None when they leave it open. Counted are marks: a label is one mark; that a statement
    is supported is one, whether by contexts alone or together, and so is each context that supports it alone, and each
    that does so with others. A mark holds when more than half of all votes set it, and does not when more than half
    leave it out; a vote that failed could have done either, so it counts as undecided.

    Supporting contexts are counted one by one, so that the majority may be a set that no single vote named. Where most
    votes find support and no majority says where, it stands where the nearest of them says.
    """
    counts = Counter(mark for vote in cast for mark in _list_marks(vote.verdict))
    half = asked / 2
    settled = all(count > half or len(cast) - count > half for count in counts.values())
    elected = frozenset(mark for mark, count in counts.items() if count > half)
    is_label = any(vote.verdict.label is not None for vote in cast)
    if len(cast) <= half or not settled or (is_label and not elected):
        return None
    votes = tuple(replace(vote, agrees=_list_marks(vote.verdict) == elected) for vote in cast)
    nearest = min(votes, key=lambda vote: _measure_distance(_list_marks(vote.verdict), elected))
    verdict = nearest.verdict if nearest.agrees else _word_majority(elected, nearest.verdict)
    if verdict is None and len(cast) < asked:
        return None  # a vote that is missing may be nearer
    if verdict is None:
        reason = f"by a majority that it is supported, and by none for a context; {_NEAREST} {nearest.verdict.reason}"
        verdict = replace(nearest.verdict, reason=reason)
    return JudgedItem(verdict=verdict, call_id=nearest.call_id, votes=votes)


def _list_marks(verdict: Verdict) -> frozenset[str]:
    if verdict.label is not None:
        return frozenset((verdict.label,))
    together = (_TOGETHER + item for item in verdict.together)
    return frozenset((_SUPPORTED, *verdict.contexts, *together)) if verdict.is_supported else frozenset()


def _measure_distance(marks: frozenset[str], elected: frozenset[str]) -> tuple[bool, int]:
    """How far a vote is from the majority: whether there is support at all comes first, then by how many marks."""
    return bool(marks) != bool(elected), len(marks ^ elected)


def _word_majority(elected: frozenset[str], nearest: Verdict) -> Verdict | None:
    """A majority that no single vote named; None where it is for support but for no context, nor for two together."""
    named = sorted(elected - {_SUPPORTED}, key=lambda mark: _read_rank(mark.removeprefix(_TOGETHER)))
    alone = tuple(mark for mark in named if not mark.startswith(_TOGETHER))
    together = () if alone else tuple(mark.removeprefix(_TOGETHER) for mark in named)
    if elected and not alone and len(together) < 2:
        return None
    reason = f"by a majority for each context; {_NEAREST} {nearest.reason}"
    return Verdict(reason=reason, contexts=alone, together=together)


def _read_rank(context_id: str) -> int:
    return int(context_id[1:])


def list_ranks(ids: Iterable[str], prefix: str = "C") -> list[int]:
    """The ranks of contexts, or the places of turns, that ids name, in order and each once."""
    return sorted({_read_rank(item) for item in ids if item.startswith(prefix)})


def write_verdict(verdict: Verdict) -> str:
    """A verdict as the table `votes` has it: its label, or the ranks of the contexts, else `none`.

    Ranks of contexts that support alone are joined by commas, of those that do so together by plus signs. Turns of a
    conversation follow them, as T1.
    """
    if verdict.label is not None:
        return verdict.label
    alone, together = (_write_ranks(items) for items in (verdict.contexts, verdict.together))
    return ",".join(alone) or "+".join(together) or _NO_CONTEXT


def _write_ranks(ids: Iterable[str]) -> list[str]:
    ids = tuple(ids)
    return [*map(str, list_ranks(ids)), *(f"{TURN_PREFIX}{place}" for place in list_ranks(ids, TURN_PREFIX))]


_Check = Callable[[Mapping[str, object], str], Verdict | str]
_Name = Callable[[Mapping[str, object], str], str]


@dataclass(frozen=True, kw_only=True)
class _FoundObject:
    """A JSON object within a text, and where it stands there."""

    value: dict[str, object]
    start: int
    end: int


@dataclass(kw_only=True)
class _Sorting:
    """Verdicts on their way to being usable or not."""

    good: dict[str, Verdict] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def parse_object(text: str, *keys: str) -> dict[str, object]:
    """The JSON object with any of `keys` in a reply; raises UnusableReply when there is none or it is cut off.

    The last one counts where there are several, since models think aloud before they answer. Thoughts that are marked
    as such hold no answer, and neither do drafts when the answer after them is cut off.
    """
    if not text.strip():
        raise UnusableReply("the reply was empty")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        fitting = [match for match in _find_objects(text) if not match.value.keys().isdisjoint(keys)]
        if not fitting or _is_draft(text, fitting[-1], keys):
            raise UnusableReply(f'the reply held no complete JSON object with "{keys[0]}"') from None
        value = _as_storable(fitting[-1].value)
    if not isinstance(value, dict):
        raise UnusableReply(f"the reply was not a JSON object but a {type(value).__name__}")
    _check_size(value)
    return value


def _check_size(value: dict[str, object]) -> None:
    """Refuse what no answer to a question of ours has, before anything is made of it; raises UnusableReply."""
    level: list[object] = [value]
    for _ in range(_MOST_DEPTH):
        longest = max((len(item) for item in level if isinstance(item, str)), default=0)
        if longest > _MOST_LETTERS:
            raise UnusableReply(f"the reply held a text of {longest:,} characters; {_MOST_LETTERS:,} are allowed")
        level = [child for item in level if isinstance(item, dict | list) for child in _list_children(item)]
        if not level:
            return
    raise UnusableReply(f"the reply was nested deeper than {_MOST_DEPTH} levels")


def _list_children(item: dict[str, object] | list[object]) -> Iterable[object]:
    return item.values() if isinstance(item, dict) else item


def _close_cut(text: str) -> str:
    """The verdicts that are complete in a reply that breaks off within them; raises UnusableReply for any other."""
    begun = list(_VERDICTS_BEGIN.finditer(text))
    if not begun or text.rfind(_THINK) > text.rfind(_THOUGHT):
        raise UnusableReply("the reply broke off before its verdicts")
    rest = text[begun[-1].end() :]
    verdicts = _list_rows(rest) or [match.value for match in _find_objects(rest) if "id" in match.value]
    return orjson.dumps({VERDICTS: verdicts}).decode()


def _list_rows(text: str) -> list[object]:
    """The complete rows that a text begins with."""
    rows: list[object] = []
    while (begun := _ROW_BEGINS.match(text)) is not None:
        try:
            row, end = _DECODER.raw_decode(text, begun.end() - 1)
        except (ValueError, RecursionError):
            break
        rows.append(row)
        text = text[end:]
    return rows


def read_statements(text: str, key: str = "statements") -> list[str]:
    """The statements under a key of an `extract` reply, without blank ones and exact repeats."""
    statements = parse_object(text, key).get(key)
    if not isinstance(statements, list) or not all(isinstance(item, str) for item in statements):
        raise UnusableReply(f'the reply had no list of texts under "{key}"')
    different = list(dict.fromkeys(" ".join(item.split()) for item in statements if item.strip()))
    if len(different) > _MOST_STATEMENTS:
        raise UnusableReply(
            f"the reply split the text into {len(different):,} statements; {_MOST_STATEMENTS:,} are allowed"
        )
    return different


def read_labels(text: str, allowed: Mapping[str, Collection[str]]) -> Verdicts:
    """Verdicts with labels, of a `classify` or `rank` reply. `allowed` gives each asked id its labels."""

    def check(entry: Mapping[str, object], item_id: str) -> Verdict | str:
        return _check_label(entry, item_id, allowed[item_id])

    return _read_verdicts(text, allowed.keys(), check)


def _check_label(entry: Mapping[str, object], item_id: str, allowed: Collection[str]) -> Verdict | str:
    label = entry.get("label")
    if not isinstance(label, str) or label not in allowed:
        return f"{item_id} has the label {label!r:.60}, allowed: {', '.join(sorted(allowed))}"
    return Verdict(reason=_read_reason(entry), label=label)


def read_supports(text: str, asked: Collection[str], context_ids: Collection[str]) -> Verdicts:
    """Verdicts with lists of contexts, of an `attribute` reply.

    Contexts that support a statement together count where none does so alone, and are dropped beside one that does: the
    statement needs no other then. One context `together` says neither that it is enough nor what it lacks, and is asked
    about again. Prompts that ask for no `together` get none.
    """

    def check(entry: Mapping[str, object], item_id: str) -> Verdict | str:
        return _check_support(entry, item_id, context_ids)

    return _read_verdicts(text, asked, check)


def _check_support(entry: Mapping[str, object], item_id: str, context_ids: Collection[str]) -> Verdict | str:
    alone, together = entry.get("contexts"), entry.get("together", [])
    if not isinstance(alone, list) or not isinstance(together, list):
        return f"{item_id} has no list of {'contexts' if not isinstance(alone, list) else 'contexts together'}"
    unknown = [item for item in (*alone, *together) if not isinstance(item, str) or item not in context_ids]
    if unknown:
        return f"{item_id} names the context {unknown[0]!r:.60}, which was not given"
    alone, together = tuple(dict.fromkeys(alone)), tuple(dict.fromkeys(together))
    if not alone and len(together) == 1:
        return f"{item_id} names {together[0]} as support together with no other context"
    return Verdict(reason=_read_reason(entry), contexts=alone, together=() if alone else together)


def read_joined(
    text: str, allowed: Mapping[str, Collection[str]], context_ids: Collection[str], sent: Collection[str]
) -> Verdicts:
    """Verdicts with labels and with lists of contexts, of a `fused` reply, by their names: those on support have one
    of their own (`name_support`), the others the id.

    `allowed` gives each asked name its labels, none where contexts are asked for, and `sent` are all ids of the data.
    Each verdict must say what it rests on: ids are that as much as words, but only ids of the items that it is to be
    judged by. A label that rests on contexts is none on a statement.
    """

    def check(entry: Mapping[str, object], name: str) -> Verdict | str:
        verdict = (
            _check_label(entry, name, allowed[name]) if allowed[name] else _check_support(entry, name, context_ids)
        )
        if isinstance(verdict, str):
            return verdict
        grounds = context_ids if not allowed[name] else [item for item in sent if item[0] == _JUDGED_BY[name[0]]]
        hollow = [item_id for item_id in list_ids(verdict.reason) if item_id not in grounds]
        if hollow:
            return f"{name} rests on {hollow[0]!r:.60}, which is not one of {', '.join(sorted(grounds)) or 'no items'}"
        return verdict if verdict.reason else f"{name} has neither evidence nor a reason"

    return _read_verdicts(text, allowed.keys(), check, _name_joined)


def _name_joined(entry: Mapping[str, object], item_id: str) -> str:
    return item_id if "label" in entry else name_support(item_id)


def _read_verdicts(text: str, asked: Collection[str], check: _Check, name: _Name | None = None) -> Verdicts:
    reply = parse_object(text, *_VERDICT_LISTS)
    lists = [reply[name] for name in _VERDICT_LISTS if name in reply]
    if not lists or not all(isinstance(entries, list) for entries in lists):
        named = " or ".join(f'"{name}"' for name in reply if name in _VERDICT_LISTS) or f'"{VERDICTS}"'
        raise UnusableReply(f"the reply had no list under {named}")
    sorting = _Sorting()
    for entries in lists:
        for entry in entries:  # type: ignore[attr-defined]  # lists, by the check above
            for verdict in _unfold(entry, sorting) if name else [entry]:
                _sort_entry(verdict, asked, check, sorting, name)
    missing = [item for item in asked if item not in sorting.good]
    n_more = len(sorting.problems) - _MOST_PROBLEMS
    if n_more > 0:
        sorting.problems[_MOST_PROBLEMS:] = [f"and {n_more:,} more of the kind"]
    if missing:
        sorting.problems.append(f"no usable verdict for {', '.join(missing)}")
    if asked and not sorting.good:
        raise UnusableReply("; ".join(sorting.problems))
    return Verdicts(by_id=sorting.good, problems=tuple(sorting.problems), missing=tuple(missing))


def _unfold(entry: object, sorting: _Sorting) -> Iterable[object]:
    """The verdicts of a row; anything else is one."""
    if not isinstance(entry, list):
        return [entry]
    try:
        return unfold_row(entry)
    except ValueError as error:
        sorting.problems.append(str(error))
        return []


def _sort_entry(entry: object, asked: Collection[str], check: _Check, sorting: _Sorting, name: _Name | None) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        sorting.problems.append("a verdict has no id")
        return
    item_id = entry["id"].strip().strip("[]")
    item_id = name(entry, item_id) if name else item_id
    if item_id not in asked:
        sorting.problems.append(f"{item_id!r:.60} was not asked for")
        return
    if item_id in sorting.seen:
        sorting.problems.append(f"{item_id} came more than once")
        sorting.good.pop(item_id, None)
        return
    sorting.seen.add(item_id)
    verdict = check(entry, item_id)
    if isinstance(verdict, str):
        sorting.problems.append(verdict)
    else:
        sorting.good[item_id] = verdict


def _read_reason(entry: Mapping[str, object]) -> str:
    reason = entry.get("reason")
    return reason.strip() if isinstance(reason, str) else ""


def _as_storable(value: dict[str, object]) -> dict[str, object]:
    """The object as the warehouse can keep it: half a surrogate pair and numbers beyond 64 bits are refused."""
    try:
        stored: dict[str, object] = orjson.loads(orjson.dumps(value))
    except orjson.JSONEncodeError as error:
        raise UnusableReply(f"the reply held what cannot be stored: {error}") from None
    return stored


def _is_draft(text: str, match: _FoundObject, keys: Sequence[str]) -> bool:
    """Whether the answer proper was still to come: what was found stands in thoughts, or before another one's start."""
    before, after = text[: match.start], text[match.end :]
    thinks = _THOUGHT in after or before.rfind(_THINK) > before.rfind(_THOUGHT)
    return thinks or re.search(rf'\{{\s*"(?:{"|".join(map(re.escape, keys))})"\s*:', after) is not None


def _find_objects(text: str) -> Iterator[_FoundObject]:
    """The complete JSON objects within a text, outermost first come.

    A bracket that opens none costs a scan, so only so many are tried, and only so far: a text made of brackets must not
    keep us busy.
    """
    false_starts, n_scanned = 0, 0
    place = text.find("{")
    while place != -1 and false_starts < _MOST_FALSE_STARTS and n_scanned <= 2 * len(text):
        try:
            value, end = _DECODER.raw_decode(text, place)
            yield _FoundObject(value=value, start=place, end=end)
            place = end
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError of its own
            false_starts += 1
            n_scanned += (error.pos if isinstance(error, json.JSONDecodeError) else len(text)) - place
            place += 1
        place = text.find("{", place)
