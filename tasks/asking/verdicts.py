"""Ids in, ids out: ask about a set of items until each has exactly one usable verdict.

Items that a reply leaves out, doubles or labels wrongly are asked for again, alone. Nothing is padded or guessed: when
the attempts are used up the question has failed, with the ids that are missing. With votes all of this is done that
many times side by side, and the majority decides on each item; the steps keep each vote beside their verdict.

Below it is the reading of replies. Endpoints without structured output put JSON in a fence or after prose; that much is
accepted. The JSON is checked strictly: each id that was sent must come back exactly once with an allowed label. A
verdict that breaks this is as good as missing.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import orjson

from evalhouse.prompts import (
    TURN_PREFIX,
    VERDICT_LISTS,
    VERDICTS,
    BlockValue,
    Prompt,
    list_ids,
    name_support,
    unfold_row,
)
from evalhouse.tasks.asking.splitting import CODE, HEADING, shrink_room
from evalhouse.tasks.judge.protocol import (
    COPIED,
    FORM_JOIN,
    THOUGHT,
    BudgetExhausted,
    CutReply,
    EndpointDown,
    JudgeFailed,
    Question,
    TooLong,
    UnusableReply,
    ends_in_thoughts,
    is_fixed,
    plain_data,
)
from evalhouse.warehouse.steps import find_task

if TYPE_CHECKING:
    from evalhouse.tasks.asking.asker import Asker
    from evalhouse.tasks.asking.pairs import Form, Pair

T = TypeVar("T")
_NO_CONTEXT = "none"
_SUPPORTED, _TOGETHER = "supported", "+"  # marks of votes
_NEAREST = "the nearest vote:"
_MAX_FALSE_STARTS = 100
# What one reply may hold. A text of one request has at most some thousand sentences and a hundred thousand letters.
_MAX_STATEMENTS = 2_000
_MAX_LETTERS = 100_000
_MAX_DEPTH = 32
_MAX_PROBLEMS = 20
_VERDICTS_BEGIN = re.compile(rf'\{{\s*"(?:{"|".join(VERDICT_LISTS)})"\s*:\s*\[')
_JUDGED_BY = {"A": "G", "G": "A", "C": "G"}
_ROW_BEGINS = re.compile(r"[\s,]*\[")
_TEXT_AFTER = re.compile(r"\s*\]\s*\}[\s`]*[^\s`]")  # after the end of all verdicts
# Not strict: models write line breaks into texts without escaping them.
_DECODER = json.JSONDecoder(strict=False)


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
        """Return whether any context supports it, alone or with others."""
        return bool(self.contexts or self.together)


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """The usable verdicts of one reply by id, and the problems of the rest; `missing` ids have none."""

    by_id: Mapping[str, Verdict]
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def shortfall(self) -> str | None:
        """The error that is recorded with a reply that is not complete."""
        return f"incomplete: {'; '.join(self.problems)}" if self.missing else None


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """A request about items of a sample, and how many votes to take on it.

    `allowed` has by id the labels of its verdict, none where it names contexts. `build_data` gives the data of a
    request about some of the ids, with all that they are judged against. Verdicts may name `contexts` as support; those
    of a `fused` reply rest on items among all ids that were `sent`. `is_part` says that its prompt asks for more than
    all ids of the inquiry, so that the first request names them too.
    """

    step: str
    sample_id: str
    prompt: Prompt
    allowed: Mapping[str, Collection[str]]
    build_data: Callable[[Collection[str]], Mapping[str, BlockValue]]
    contexts: Collection[str] = ()
    sent: Collection[str] | None = None
    votes: int = 1
    is_part: bool = False


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One vote on one item, the call it came from, and whether it agrees with the majority in all.

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
    """The verdicts of an inquiry, or of one vote on it, by id, and the failure that left others missing."""

    judged: dict[str, JudgedItem]
    failure: JudgeFailed | None = None


def narrow_blocks(
    data: Mapping[str, BlockValue], blocks: Collection[str], ids: Collection[str]
) -> Mapping[str, BlockValue]:
    """Return the data with each of these blocks narrowed to the items asked about, where it holds all of them."""
    narrowed = dict(data)
    for block in blocks:
        items = [item for item in data[block] if not isinstance(item, str) and item.id in ids]
        if len({item.id for item in items}) == len(ids):
            narrowed[block] = items
    return narrowed


async def ask_in_parts(
    asker: "Asker", room: int, split: Callable[[int], Sequence[Inquiry]]
) -> dict[str, list[JudgedItem]]:
    """Ask the inquiries that `split` makes for requests of `room` tokens, or fewer where the model's window is smaller.

    Returns the verdicts by id, one from each inquiry that an item is part of. Raises JudgeFailed when some are still
    missing after the last attempt.
    """
    while True:
        try:
            polls = await gather_all([ask_verdicts(asker, inquiry) for inquiry in split(room)])
            for failure in (poll.failure for poll in polls if poll.failure is not None):
                raise failure
            break
        except TooLong as error:
            room = shrink_room(room, error)
    judged: dict[str, list[JudgedItem]] = {}
    for poll in polls:
        for item_id, item in poll.judged.items():
            judged.setdefault(item_id, []).append(item)
    return judged


async def ask_verdicts(asker: "Asker", inquiry: Inquiry, *, vote: int | None = None) -> Poll:
    """Return the verdicts that came, with the failure that left others missing; `vote` is the number of one vote, 0 of
    a juror's.

    The first request asks for all ids, later ones name the missing ids, half as many once a reply was cut off.
    The run's attempts are shared among them, so a judge that never gives one verdict is not asked more often than one
    that gives none; the verdicts before a reply was cut off are worth an attempt. A judge that gives the same reply
    each time has one vote, and so has one that is asked pair by pair.
    """
    judge, ids = asker.find(inquiry.step).judge.name, list(inquiry.allowed)
    jury = asker.juries.get(find_task(inquiry.step), ()) if asker.juries else ()
    if vote is None and jury:
        return await _ask_by_vote(asker, inquiry, jury)
    if not vote and FORM_JOIN in judge:
        from evalhouse.tasks.asking.pairs import find_form  # noqa: PLC0415  # few judges are asked by pairs

        if (form := find_form(judge)) is not None:
            return await _ask_by_pairs(asker, inquiry, form)
    if vote is None and inquiry.votes > 1 and not is_fixed(judge):
        return await _ask_by_vote(asker, inquiry)
    judged: dict[str, JudgedItem] = {}
    missing: Sequence[str] = ids
    max_ids, number, used, problem = len(ids), 0, 0, ""
    while missing and used < asker.attempts:
        asked, number = missing[:max_ids], number + 1
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
        read = partial(_read_reply, inquiry=inquiry, ids=asked, data=question.data)
        read_cut = partial(read, is_cut=True) if len(asked) > 1 else None
        try:
            answer = await asker.ask(question, read, attempts=asker.attempts - used, read_cut=read_cut)
        except CutReply as error:
            max_ids, used, problem = -(-len(asked) // 2), used + 1, str(error)
            continue
        except JudgeFailed as error:
            return Poll(judged=judged, failure=error)
        for item_id, verdict in answer.value.by_id.items():
            judged[item_id] = JudgedItem(verdict=verdict, call_id=answer.call_id)
        if answer.is_cut:
            max_ids = -(-len(asked) // 2)
        elif answer.value.missing:
            used, problem = used + 1, "; ".join(answer.value.problems)
        missing = [item for item in ids if item not in judged]
    failure = JudgeFailed(f"still incomplete after asking {number} times: {problem}") if missing else None
    return Poll(judged={item: judged[item] for item in ids if item in judged}, failure=failure)


def _read_reply(
    text: str, *, inquiry: Inquiry, ids: Collection[str], data: Mapping[str, BlockValue], is_cut: bool = False
) -> Verdicts:
    """Return the verdicts on these ids without those whose reasons small models copied from a worked example."""
    allowed = {item_id: inquiry.allowed[item_id] for item_id in ids}
    if is_cut:
        # The complete verdicts of a reply that breaks off within them.
        begun = list(_VERDICTS_BEGIN.finditer(text))
        if not begun or ends_in_thoughts(text):
            raise UnusableReply("the reply broke off before its verdicts")
        complete: list[object] = []
        rest = text = text[begun[-1].end() :]
        while (row_begins := _ROW_BEGINS.match(rest)) is not None:  # verdicts as rows
            try:
                row, end = _DECODER.raw_decode(rest, row_begins.end() - 1)
            except (ValueError, RecursionError):
                break
            complete.append(row)
            rest = rest[end:]
        if not complete:
            found = [(value, end) for value, _, end in _find_objects(text) if "id" in value]
            complete, rest = [value for value, _ in found], text[found[-1][1] :] if found else ""
        if _TEXT_AFTER.match(rest):
            raise UnusableReply("the reply broke off after a draft of its verdicts")
        text = dump_json({VERDICTS: complete})
    verdicts = read_verdicts(text, allowed, inquiry.contexts, sent=inquiry.sent)
    if not inquiry.prompt.examples:
        return verdicts
    copied = inquiry.prompt.list_copied([verdict.reason for verdict in verdicts.by_id.values()], data)
    by_id = {item_id: verdict for item_id, verdict in verdicts.by_id.items() if verdict.reason not in copied}
    lost = tuple(item_id for item_id in verdicts.by_id if item_id not in by_id)
    if not lost:
        return verdicts
    problem = f"{COPIED} for {', '.join(lost)}"
    if not by_id:
        raise UnusableReply(problem)
    return Verdicts(by_id=by_id, problems=(*verdicts.problems, problem), missing=(*verdicts.missing, *lost))


async def _ask_by_pairs(asker: "Asker", inquiry: Inquiry, form: "Form") -> Poll:
    """Return the verdicts that follow from a yes or no on each pair, with the call of the pair that decided each."""
    from evalhouse.tasks.asking.pairs import Scored, judge_pairs, locate  # noqa: PLC0415

    class AskedPairs:
        """Scores pairs by the replies of the chat model, 1 for yes and 0 for no."""

        threshold = 0.5

        def fits(self, pair: "Pair") -> bool:
            return True  # requests are split by tokens before

        async def score(self, pairs: Sequence["Pair"], *, whole: bool = False) -> list[Scored]:
            return await gather_all([self.ask(pair) for pair in pairs])

        async def ask(self, pair: "Pair") -> Scored:
            data = {"document": pair.document, "claim": pair.claim}
            question = Question(step=inquiry.step, sample_id=inquiry.sample_id, prompt=inquiry.prompt, data=data)
            answer = await asker.ask(question, form.read)
            place = locate(pair.document, 0, len(pair.document))
            reply = "supported" if answer.value else "not supported"
            return Scored(score=float(answer.value), text=pair.document, reply=reply, call_id=answer.call_id, **place)

    data, joint = plain_data(inquiry.build_data(list(inquiry.allowed))), "together" in str(inquiry.prompt.reply_schema)
    try:
        given = await judge_pairs(inquiry.prompt.name, data, AskedPairs(), joint=joint)
    except JudgeFailed as error:
        return Poll(judged={}, failure=error)
    verdicts = read_verdicts(orjson.dumps({VERDICTS: given}).decode(), inquiry.allowed, inquiry.contexts)
    calls = {verdict["id"]: verdict["call_id"] for verdict in given}
    return Poll(
        judged={key: JudgedItem(verdict=verdict, call_id=calls[key]) for key, verdict in verdicts.by_id.items()}
    )


async def _ask_by_vote(asker: "Asker", inquiry: Inquiry, jury: Sequence["Asker"] = ()) -> Poll:
    """Return what the majority of votes decides. Some may fail, as long as the others are a majority of all.

    The judges of a jury have one vote each, by the requests that they get without a jury too.
    """
    n_votes = len(jury) or inquiry.votes
    numbers = range(1, n_votes + 1)
    asked = [(juror, 0) for juror in jury] or [(asker, number) for number in numbers]
    polls = await gather_all([ask_verdicts(voter, inquiry, vote=vote) for voter, vote in asked])
    judged: dict[str, JudgedItem] = {}
    for item_id in inquiry.allowed:
        cast = [
            Vote(number=number, verdict=item.verdict, call_id=item.call_id)
            for number, poll in zip(numbers, polls, strict=True)
            if (item := poll.judged.get(item_id)) is not None
        ]
        elected = elect(cast, asked=n_votes, labels=tuple(inquiry.allowed[item_id]))
        if elected is not None:
            judged[item_id] = elected
    open_ids = [item_id for item_id in inquiry.allowed if item_id not in judged]
    if not open_ids:
        return Poll(judged=judged)
    failures = [poll.failure for poll in polls if poll.failure is not None]
    why = f"; {len(failures)} failed, the first: {failures[0]}" if failures else ""
    # Where money or room is the reason, more of it would bring the votes.
    decisive = (failure for failure in failures if isinstance(failure, BudgetExhausted | TooLong))
    kind: type[JudgeFailed] = next((type(failure) for failure in decisive), JudgeFailed)
    failure = kind(f"no majority of {n_votes} votes on {', '.join(open_ids)}{why}")
    return Poll(judged=judged, failure=failure)


def gather_all(asked: Sequence[Awaitable[T]]) -> "asyncio.Task[list[T]]":
    """Return all results in order; when some fail, raise the first failure once all have ended.

    Other failures are raised before EndpointDown, which would have the others tried again for nothing. It is a task, so
    that the caller who waits for it is woken once and not with each of the calls below.
    """
    begun = [asyncio.ensure_future(awaited) for awaited in asked]

    async def gather() -> list[T]:
        results = await asyncio.gather(*begun, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise next((failure for failure in failures if not isinstance(failure, EndpointDown)), failures[0])
        return [result for result in results if not isinstance(result, BaseException)]

    gathered = asyncio.create_task(gather())
    for future in begun:
        # A task that is cancelled before its first step would leave what it was to wait for behind.
        gathered.add_done_callback(future.cancel)
    return gathered


def elect(cast: Sequence[Vote], *, asked: int, labels: Sequence[str] = ()) -> JudgedItem | None:
    """Return the verdict of the majority of `asked` votes, with reason and call of the vote that is nearest to it.

    `cast` are the votes that came; None when they leave it open. Counted are marks: a label is one mark; that a
    statement is supported is one, whether by contexts alone or together, and so is each context that supports it alone,
    and each that does so with others. A mark holds when more than half of all votes set it, and does not when at least
    half leave it out; a vote that failed could have done either, so it counts as undecided. So an even number of votes
    that tie give the stricter verdict: no support, or the last of `labels`, of which the first says yes.

    Supporting contexts are counted one by one, so that the majority may be a set that no single vote named. Where most
    votes find support and no majority names a context, the verdict of the nearest of them counts.
    """
    marks: list[frozenset[str]] = []
    for verdict in (vote.verdict for vote in cast):
        together = tuple(_TOGETHER + item for item in verdict.together)
        supports = (_SUPPORTED, *verdict.contexts, *together) if verdict.is_supported else ()
        marks.append(frozenset(supports if verdict.label is None else (verdict.label,)))
    counts = Counter(mark for of_vote in marks for mark in of_vote)
    half = asked / 2
    settled = all(count > half or len(cast) - count >= half for count in counts.values())
    elected = frozenset(mark for mark, count in counts.items() if count > half)
    if len(cast) <= half or not settled:
        return None
    is_label = any(vote.verdict.label is not None for vote in cast)
    is_tie = any(count == half for mark, count in counts.items() if is_label or mark == _SUPPORTED)
    if is_label and not elected:
        if not is_tie:
            return None
        elected = frozenset(labels[-1:])
    # That there is support at all comes first, then the number of marks that differ.
    distances = [(bool(of_vote) != bool(elected), len(of_vote ^ elected)) for of_vote in marks]
    votes = tuple(replace(vote, agrees=of_vote == elected) for vote, of_vote in zip(cast, marks, strict=True))
    nearest = votes[distances.index(min(distances))]
    verdict = nearest.verdict
    if not nearest.agrees:
        named = sorted(elected - {_SUPPORTED}, key=lambda mark: int(mark.removeprefix(_TOGETHER)[1:]))
        alone = tuple(mark for mark in named if not mark.startswith(_TOGETHER))
        together = () if alone else tuple(mark.removeprefix(_TOGETHER) for mark in named)
        if not elected or alone or len(together) > 1:
            reason = f"by a majority for each context; {_NEAREST} {verdict.reason}"
            verdict = Verdict(reason=reason, contexts=alone, together=together)
        elif len(cast) < asked:
            return None  # a vote that is missing may be nearer
        else:
            reason = f"by a majority that it is supported, and by none for a context; {_NEAREST} {verdict.reason}"
            verdict = replace(verdict, reason=reason)
    if is_tie:
        verdict = replace(verdict, reason=f"by a tie, in which the stricter verdict counts: {verdict.reason}")
    return JudgedItem(verdict=verdict, call_id=nearest.call_id, votes=votes)


def list_ranks(ids: Iterable[str], prefix: str = "C") -> list[int]:
    """Return the ranks of contexts, or the places of turns, that ids name, in order and each once."""
    return sorted({int(item[1:]) for item in ids if item.startswith(prefix)})


def write_verdict(verdict: Verdict) -> str:
    """Format a verdict as the table `votes` has it: its label, or the ranks of the contexts, else `none`.

    Ranks of contexts that support alone are joined by commas, of contexts that do so together by plus signs. Turns of a
    conversation follow them, as T1.
    """
    if verdict.label is not None:
        return verdict.label
    for ids, separator in ((verdict.contexts, ","), (verdict.together, "+")):
        if ids:
            turns = [f"{TURN_PREFIX}{place}" for place in list_ranks(ids, TURN_PREFIX)]
            return separator.join([*map(str, list_ranks(ids)), *turns])
    return _NO_CONTEXT


# Reading replies


def parse_object(text: str, *keys: str) -> dict[str, object]:
    """Return the JSON object with any of `keys` in a reply; raises UnusableReply when it is missing or cut off.

    The last one counts where there are several, since models think aloud before they answer. Thoughts that are marked
    as such hold no answer, and neither do drafts when the answer after them is cut off. An object that the warehouse
    cannot store is refused (half a surrogate pair, numbers beyond 64 bits), and one that is larger than any answer.
    """
    if not text.strip():
        raise UnusableReply("the reply was empty")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        fitting = [found for found in _find_objects(text) if not found[0].keys().isdisjoint(keys)]
        last, start, end = fitting[-1] if fitting else (None, 0, 0)
        # The answer was still to come if the object is within thoughts, or before the start of another.
        before, after = text[:start], text[end:]
        thinks = THOUGHT in after or ends_in_thoughts(before)
        begins_another = re.search(rf"""\{{\s*["'](?:{"|".join(map(re.escape, keys))})["']\s*:""", after) is not None
        if last is None or thinks or begins_another:
            raise UnusableReply(f'the reply held no complete JSON object with "{keys[0]}"') from None
        value = orjson.loads(dump_json(last))
    if not isinstance(value, dict):
        raise UnusableReply(f"the reply was not a JSON object but a {type(value).__name__}")
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        longest = max((len(item) for item in level if isinstance(item, str)), default=0)
        if longest > _MAX_LETTERS:
            raise UnusableReply(f"the reply held a text of {longest:,} characters; {_MAX_LETTERS:,} are allowed")
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [child for children in nested for child in children]
        if not level:
            return value
    raise UnusableReply(f"the reply was nested deeper than {_MAX_DEPTH} levels")


def dump_json(value: object) -> str:
    """Return JSON of what was read from a reply; raises UnusableReply for half a surrogate pair and longer numbers."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise UnusableReply(f"the reply held what cannot be stored: {error}") from None


def _find_objects(text: str) -> Iterator[tuple[dict[str, object], int, int]]:
    """Yield the complete JSON objects within a text with their starts and ends, the outermost ones in order.

    A bracket that opens none costs a scan, so only so many are tried, and only so far: a text made of brackets must not
    keep this process busy.
    """
    false_starts, n_scanned = 0, 0
    place = text.find("{")
    while place != -1 and false_starts < _MAX_FALSE_STARTS and n_scanned <= 2 * len(text):
        try:
            value, end = _DECODER.raw_decode(text, place)
            yield value, place, end
            place = end
        except (ValueError, RecursionError) as error:  # as for a number of thousands of digits
            false_starts += 1
            n_scanned += (error.pos if isinstance(error, json.JSONDecodeError) else len(text)) - place
            place += 1
        place = text.find("{", place)


def read_statements(text: str, key: str = "statements", *, source: str | None = "") -> list[str]:
    """Return the statements under a key of an `extract` reply, without blank ones and exact repeats.

    A heading is not a statement. A comment that opens code looks like one, so what is in the code of `source`, the text
    that was split, is accepted; without a source (None) all statements are.
    """
    statements = parse_object(text, key).get(key)
    if not isinstance(statements, list) or not all(isinstance(item, str) for item in statements):
        raise UnusableReply(f'the reply had no list of texts under "{key}"')
    headings = [item for item in statements if source is not None and HEADING.search(item)]
    if headings and source:
        code = "\n".join(" ".join(block.split()) for block in CODE.findall(source))
        headings = [item for item in headings if " ".join(item.split()) not in code]
    if 0 < len(headings) < len(statements):
        raise UnusableReply("a heading is among the statements")
    different = list(dict.fromkeys(" ".join(item.split()) for item in statements if item.strip()))
    if len(different) > _MAX_STATEMENTS:
        raise UnusableReply(
            f"the reply split the text into {len(different):,} statements; {_MAX_STATEMENTS:,} are allowed"
        )
    return different


def read_verdicts(
    text: str,
    allowed: Mapping[str, Collection[str]],
    contexts: Collection[str] = (),
    *,
    sent: Collection[str] | None = None,
) -> Verdicts:
    """Return the verdicts of a reply. `allowed` gives each asked id its labels, none where it is to name `contexts`.

    With `sent`, all ids of the data, it is a `fused` reply: verdicts may be rows, those on support have names
    (`name_support`), and each must name its evidence or a reason: items that it is to be judged by. Raises
    UnusableReply when no verdict is usable.
    """
    reply = parse_object(text, *VERDICT_LISTS)
    lists = [reply[name] for name in VERDICT_LISTS if name in reply]
    if not lists or not all(isinstance(entries, list) for entries in lists):
        named = " or ".join(f'"{name}"' for name in reply if name in VERDICT_LISTS) or f'"{VERDICTS}"'
        raise UnusableReply(f"the reply had no list under {named}")
    problems: list[str] = []
    entries: list[object] = []
    for entry in (entry for of_list in lists for entry in of_list):  # type: ignore[attr-defined]  # lists, see above
        try:
            entries += unfold_row(entry) if sent is not None and isinstance(entry, list) else [entry]
        except ValueError as error:
            problems.append(str(error))
    usable: dict[str, Verdict] = {}
    seen: set[str] = set()
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            problems.append("a verdict has no id")
            continue
        item_id = entry["id"].strip().strip("[]")
        if sent is not None and "label" not in entry:
            item_id = name_support(item_id)
        if item_id not in allowed:
            problems.append(f"{item_id!r:.60} was not asked for")
        elif item_id in seen:
            problems.append(f"{item_id} came more than once")
            usable.pop(item_id, None)
        else:
            seen.add(item_id)
            verdict = _read_entry(entry, item_id, allowed[item_id], contexts, sent)
            if isinstance(verdict, str):
                problems.append(verdict)
            else:
                usable[item_id] = verdict
    missing = [item for item in allowed if item not in usable]
    n_more = len(problems) - _MAX_PROBLEMS
    if n_more > 0:
        problems[_MAX_PROBLEMS:] = [f"and {n_more:,} more of the kind"]
    if missing:
        problems.append(f"no usable verdict for {', '.join(missing)}")
    if allowed and not usable:
        raise UnusableReply("; ".join(problems))
    return Verdicts(by_id=usable, problems=tuple(problems), missing=tuple(missing))


def _read_entry(
    entry: Mapping[str, object],
    name: str,
    labels: Collection[str],
    contexts: Collection[str],
    sent: Collection[str] | None,
) -> Verdict | str:
    """Return the verdict of one entry, or its problem.

    Contexts that support a statement together count where none does so alone, and are dropped beside one that does: the
    statement needs no other then. One context `together` says neither that it is enough nor what it lacks, and is asked
    about again. Prompts that ask for no `together` get none.
    """
    reason = entry["reason"].strip() if isinstance(entry.get("reason"), str) else ""  # type: ignore[attr-defined]
    if labels:
        label = entry.get("label")
        if not isinstance(label, str) or label not in labels:
            return f"{name} has the label {label!r:.60}, allowed: {', '.join(sorted(labels))}"
        verdict = Verdict(reason=reason, label=label)
    else:
        alone, together = entry.get("contexts"), entry.get("together", [])
        if not isinstance(alone, list) or not isinstance(together, list):
            return f"{name} has no list of {'contexts' if not isinstance(alone, list) else 'contexts together'}"
        unknown = [item for item in (*alone, *together) if not isinstance(item, str) or item not in contexts]
        if unknown:
            return f"{name} names the context {unknown[0]!r:.60}, which was not given"
        alone, together = tuple(dict.fromkeys(alone)), tuple(dict.fromkeys(together))
        if not alone and len(together) == 1:
            return f"{name} names {together[0]} as support together with no other context"
        verdict = Verdict(reason=reason, contexts=alone, together=() if alone else together)
    if sent is None:
        return verdict
    grounds = [item for item in sent if item[0] == _JUDGED_BY[name[0]]] if labels else contexts
    hollow = [item_id for item_id in list_ids(reason) if item_id not in grounds]
    if hollow:
        return f"{name} rests on {hollow[0]!r:.60}, which is not one of {', '.join(sorted(grounds)) or 'no items'}"
    return verdict if reason else f"{name} has neither evidence nor a reason"
