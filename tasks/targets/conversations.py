"""Asking turn by turn: which samples are turns of one conversation, and what was said before each.

With `history = "dataset"` a sample's earlier turns are those of the dataset, and every question stands for itself. With
"own" the application's own answers take the place of the dataset's: turn 3 is asked after what it really said in turns
1 and 2. What was said before the first turn, and what a person said between two questions, stays as the dataset has it.
"""

from collections.abc import Callable, Sequence

from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.protocol import Target, TargetError
from evalhouse.warehouse.rows.calls import StoredResponse
from evalhouse.warehouse.rows.samples import StoredSample, Turn, load_turns

Messages = tuple[dict[str, str], ...]


def make_messages(turns: Sequence[Turn]) -> Messages:
    """Turns as OpenAI's chat API has messages, which is what an application is told of them."""
    return tuple({"role": turn.role, "content": turn.text} for turn in turns)


def continue_conversation(
    said: Sequence[Turn], sample: StoredSample, response: StoredResponse, following: StoredSample
) -> list[Turn]:
    """What was said before the `following` turn, after `sample` was asked when all of `said` was and was answered."""
    answer = response.answer or ""
    asked = Turn(role="user", text=sample.question)
    replied = Turn(role="assistant", text=answer, contexts=response.contexts, context_ids=response.context_ids)
    return [*said, asked, *([replied] if answer.strip() else []), *_list_between(sample, following)]


def _list_between(sample: StoredSample, following: StoredSample) -> list[Turn]:
    """The turns of the following sample's conversation after the question and the answer of this one."""
    turns = following.conversation
    n_before = sum(turn.role == "user" for turn in sample.conversation)
    places = [place for place, turn in enumerate(turns) if turn.role == "user"]
    if len(places) <= n_before or turns[places[n_before]].text != sample.question:
        return []
    begin = places[n_before] + 1
    while begin < len(turns) and turns[begin].role == "assistant":
        begin += 1
    return turns[begin:]


def stands_after(said: Sequence[Turn], response: StoredResponse) -> bool:
    """Whether a response on record was given after the same messages; True where nobody knows what it was given to."""
    return response.question is None or make_messages(said) == make_messages(load_turns(response.conversation_json))


def asks_the_same(sample: StoredSample, response: StoredResponse, *, own: bool) -> bool:
    """Whether a response on record belongs to a sample's question. With its `own` answers between them the questions
    alone must be the same before it: what was answered to those is seen when it is its turn."""
    if response.question is None:
        return True
    earlier = load_turns(response.conversation_json)
    if own:
        same = list_questions(earlier) == list_questions(sample.conversation)
    else:
        same = make_messages(earlier) == make_messages(sample.conversation)
    return same and response.question == sample.question


def list_questions(turns: Sequence[Turn]) -> list[str]:
    """What the user said."""
    return [turn.text for turn in turns if turn.role == "user"]


def group_turns(read_samples: Callable[[int, int], list[StoredSample]], n_samples: int, size: int) -> list[list[int]]:
    """The ordinals of each conversation's samples, in the order in which they are asked.

    Samples belong together that have one `conversation_id` in their metadata, in the order of `turn`; a turn that comes
    twice begins another conversation of that id. A sample without an id is a conversation of its own.
    """
    groups: dict[object, list[tuple[int, int]]] = {}
    times: dict[tuple[str, int], int] = {}
    for first in range(1, n_samples + 1, size):
        for sample in read_samples(first, first + size - 1):
            name = sample.metadata.get("conversation_id")
            turn = _find_turn(sample)
            key: object = sample.ordinal
            if name is not None:
                times[str(name), turn] = times.get((str(name), turn), 0) + 1
                key = (str(name), times[str(name), turn])
            groups.setdefault(key, []).append((turn, sample.ordinal))
    return [[ordinal for _, ordinal in sorted(group)] for group in groups.values()]


def _find_turn(sample: StoredSample) -> int:
    turn = sample.metadata.get("turn")
    return turn if isinstance(turn, int) else 1 + len(list_questions(sample.conversation))


def check_takes_conversation(target: Target, settings: TargetSettings, n_continued: int) -> None:
    """Refuse to ask questions of conversations without what was said before; raises TargetError.

    `n_continued` is how many samples have earlier turns. An application that is told which conversation it is in may
    remember it itself, when its turns are asked in order.
    """
    if not n_continued or target.takes_conversation:
        return
    if settings.history == "own" and target.names_conversation:
        return
    where = {
        "url": 'put "{{conversation}}" into [target] body, where a request takes the messages before the question',
        "callable": "let the function take an argument `conversation`, the list of messages before the question",
        "runnable": "let the Runnable's input have `messages`, or a member `conversation`, `chat_history` or `history`",
    }
    how = next(words for name, words in where.items() if getattr(settings, name) is not None)
    mark = "an argument `metadata`" if settings.callable is not None else "{{metadata.conversation_id}}"
    raise TargetError(
        f"{n_continued:,} questions are asked in the middle of a conversation, and {target.name} is not told what was "
        f'said before: {how}; where it remembers that itself, set history = "own" and tell it which conversation it is '
        f"in, by {mark}"
    )
