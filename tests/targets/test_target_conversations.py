"""A bot asked turn by turn: it adds up the numbers it gets, and only the right history gives the right sum."""

from __future__ import annotations

import json
import re
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from cli_process import Place, finish, wait_for
from target_house import ask_once, pose
from target_server import Canned, Sent, TargetServer, answer_json, serving
from test_collect_asking import FAILED, SIZE, ScriptedTarget, answer, collect_all, collecting
from warehouse_runs import make_run

from evalhouse.flows.preparing.live_run import check_history, find_parent_responses
from evalhouse.flows.replay import pose_given
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import (
    UnaffectedResponses,
    asks_the_same,
    came_after,
    check_takes_conversation,
    group_turns,
    make_target,
    stage_responses,
)
from evalhouse.tasks.targets.protocol import Response, TargetError, TargetQuestion
from evalhouse.warehouse.rows.calls import StoredResponse, fetch_responses
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import StoredSample, Turn, dump_turns, take_in_samples
from evalhouse.warehouse.store import Warehouse

EARLIER = ({"role": "user", "content": "Add 1."}, {"role": "assistant", "content": "The total is 1."})
RULES = {"role": "system", "content": "Add."}
START = 100
SUITE = """\
dataset = "sums.jsonl"
judge = "lexical"
metrics = ["exact_match"]

[target]
url = "{url}"
body = {{ question = "{{{{question}}}}", history = "{{{{conversation}}}}" }}
attempts = 1
concurrency = 2
stop_early = false
{more}
"""
N_TALKS, N_TURNS = 3, 4


def add_up(sent: Sent) -> Canned:
    """Return the total of its last answer in the history, or START, plus the number asked for."""
    body: Any = sent.body
    texts = [message["content"] for message in body["history"] if message["role"] == "assistant"]
    total = int(re.findall(r"\d+", texts[-1])[0]) if texts else START
    number = int(re.findall(r"\d+", body["question"])[0])
    return answer_json({"answer": f"The total is {total + number}.", "contexts": []})


def write_talks(folder: Path, n: int = N_TALKS) -> None:
    """Conversations of additions, whose answers in the dataset begin with 0."""
    rows = []
    for talk in range(1, n + 1):
        messages, total = [], 0
        for turn in range(1, N_TURNS + 1):
            total += 10 * talk + turn
            messages += [
                {"role": "user", "content": f"Add {10 * talk + turn}."},
                {"role": "assistant", "content": f"The total is {total}."},
            ]
        rows.append({"id": f"talk{talk}", "messages": messages})
    (folder / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


@contextmanager
def build_place(folder: Path, prefect_home: Path, bot: Any, *more: str) -> Iterator[tuple[Place, TargetServer]]:  # noqa: ANN401
    folder.mkdir()
    write_talks(folder)
    with serving(bot) as server:
        text = SUITE.format(url=server.url, more="\n".join(more))
        (folder / "sums.toml").write_text(text, encoding="utf-8")
        yield Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)}), server


def read(place: Place, sql: str) -> list[dict[str, Any]]:
    return Warehouse(str(place.folder / "evalhouse.duckdb")).read_rows(sql)


SAMPLES = """
select run_samples.sample_id, answer, conversation::varchar as conversation
from run_samples join samples using (sample_id, input_hash)
where run_id = '{run_id}' order by ordinal
"""


def list_totals(place: Place, run_id: str) -> dict[str, int | None]:
    rows = read(place, SAMPLES.format(run_id=run_id))
    return {row["sample_id"]: int(row["answer"].split()[-1][:-1]) if row["answer"] else None for row in rows}


def expect_totals(*, own: bool) -> dict[str, int]:
    """Return the bot's answers after the dataset's answers, or after its own."""
    totals = {}
    for talk in range(1, N_TALKS + 1):
        total = START
        for turn in range(1, N_TURNS + 1):
            total += 10 * talk + turn
            totals[f"talk{talk}/{turn}"] = total if own or turn == 1 else total - START
    return totals


# --- the request to a target


@pytest.mark.parametrize(
    ("template", "sent", "first_sent"),
    [
        (
            {"q": "{{question}}", "history": "{{conversation}}"},
            {"q": "Add 2.", "history": list(EARLIER)},
            {"q": "Add 2.", "history": []},
        ),
        (
            {"q": "{{question}}", "s": "s-{{conversation_id}}"},
            {"q": "Add 2.", "s": "s-4711"},
            {"q": "Add 2.", "s": "s-"},
        ),
        (
            {"messages": [RULES, "{{conversation}}", {"role": "user", "content": "{{question}}"}]},
            {"messages": [RULES, *EARLIER, {"role": "user", "content": "Add 2."}]},
            {"messages": [RULES, {"role": "user", "content": "Add 2."}]},
        ),
    ],
)
async def test_request_has_the_conversation_in_place_of_its_mark(
    template: object, sent: object, first_sent: object
) -> None:
    with serving(answer_json({"answer": "The total is 3."})) as server:
        question = replace(pose("Add 2."), conversation=EARLIER, conversation_id="4711")
        response = await ask_once(question, url=server.url, body=template)
        assert (response.error, server.requests[0].body) == (None, sent)
        first = await ask_once(pose("Add 2."), url=server.url, body=template)
        assert first.error is None
        assert server.requests[1].body == first_sent


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"callable": "target_bots:remember"}, "Add 1. | The total is 1. | Add 2."),
        ({"runnable": "target_bots:agent_of_messages"}, "Add 1. | The total is 1. | Add 2."),
        ({"runnable": "target_bots:with_chat_history"}, "Add 1. | The total is 1. | Add 2."),
        ({"runnable": "target_bots:chat_model_of_messages"}, "Add 1. | The total is 1. | Add 2."),
        ({"callable": "target_bots:answer"}, "About Add 2."),
    ],
)
async def test_python_targets_take_the_conversation(settings: dict[str, str], expected: str) -> None:
    target = make_target(TargetSettings(**settings))  # type: ignore[arg-type]  # names of settings
    assert target.takes_conversation == (expected != "About Add 2.")
    assert (await ask_once(replace(pose("Add 2."), conversation=EARLIER), **settings)).answer == expected
    alone = (await ask_once(pose("Add 2."), **settings)).answer
    assert alone == ("About Add 2." if "About" in expected else "Add 2.")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "http://bot.test/"}, 'put "{{conversation}}" into [target] body'),
        ({"callable": "target_bots:answer"}, "let the function take an argument `conversation`"),
        ({"runnable": "target_bots:chain_of_text"}, "let the Runnable's input have `messages`, or a member"),
    ],
)
async def test_target_without_the_conversation_is_refused_with_the_fix(settings: dict[str, str], words: str) -> None:
    given = TargetSettings(**settings)  # type: ignore[arg-type]
    target = make_target(given)
    check_takes_conversation(target, given, 0, 0)
    with pytest.raises(TargetError) as caught:
        check_takes_conversation(target, given, 1200, 0)
    assert str(caught.value).startswith("1,200 questions are asked in the middle of a conversation, and ")
    assert words in str(caught.value)
    await target.close()


async def test_bot_with_memory_needs_the_conversation_id() -> None:
    for history, mark, is_fine in [("own", "metadata.conversation_id", True), ("own", "conversation_id", True),
                                   ("dataset", "conversation_id", False), ("own", "metadata.lang", False)]:  # fmt: skip
        body = {"q": "{{question}}", "session": f"{{{{{mark}}}}}"}
        settings = TargetSettings(url="http://bot.test/", body=body, history=history)  # type: ignore[arg-type]
        target = make_target(settings)
        if is_fine:
            check_takes_conversation(target, settings, 3, 0)
        else:
            with pytest.raises(TargetError, match="remembers them itself"):
                check_takes_conversation(target, settings, 3, 0)
        await target.close()


async def test_own_history_needs_a_bot_that_has_conversations_and_rows_with_an_id() -> None:
    """A later turn was asked alone: the bot got no id, or the dataset had the id under another name."""
    settings = TargetSettings(callable="target_bots:answer", history="own")
    with pytest.raises(TargetError, match=r"^2 questions are asked in the middle of a conversation"):
        check_takes_conversation(make_target(settings), settings, 0, 2)
    for name, is_known in [("chat_id", True), ("sessionId", True), ("ticket", False)]:
        rows = [{"question": f"q{turn}", "turn": turn, name: "x"} for turn in (1, 2, 3)]
        staged = stage_dataset(pl.DataFrame(rows), mapping={}, limit=None)
        staged.staging.discard()
        assert (staged.n_later, staged.n_nameless) == ((2, 0) if is_known else (0, 2))
    takes = TargetSettings(callable="target_bots:remember")
    with pytest.raises(TargetError, match=r"^2 rows have a `turn` above 1 and no id .* `session_id`"):
        check_takes_conversation(make_target(takes), takes, 0, 0, n_nameless=2)


async def test_a_runnable_may_remember_by_any_name_of_the_conversations_id() -> None:
    """Only `conversation_id` was known, and LangChain's name is `session_id`."""
    settings = TargetSettings(runnable="target_bots:with_session")
    target = make_target(settings)
    with pytest.raises(TargetError, match="2 rows are later turns"):
        check_takes_conversation(target, settings, 0, 2)
    with pytest.raises(TargetError, match=r"by a required member .*`session_id` of its input"):
        check_takes_conversation(target, settings, 3, 0)
    own = TargetSettings(runnable="target_bots:with_session", history="own")
    check_takes_conversation(target, own, 3, 2)
    await target.close()


# --- turns in order, conversations side by side


def make_turn(ordinal: int, talk: str | None, turn: int, *texts: str) -> StoredSample:
    turns = [Turn(role="user" if place % 2 == 0 else "assistant", text=text) for place, text in enumerate(texts)]
    metadata = {"conversation_id": talk, "turn": turn} if talk else {}
    return StoredSample(
        ordinal=ordinal, sample_id=f"{talk}/{turn}", input_hash="", question=f"q{turn}", answer=f"old{turn}",
        ground_truth=None, contexts=None, context_ids=None, reference_context_ids=None,
        metadata_json=json.dumps(metadata), conversation_json=dump_turns(turns),
    )  # fmt: skip


A, B = ("q1", "old1"), ("q1", "old1", "q2", "old2")
# Conversation x straddles shards of four, and its turns are not in order.
TALKS = [
    make_turn(1, "x", 1), make_turn(2, "y", 1), make_turn(3, None, 9), make_turn(4, "y", 2, *A),
    make_turn(5, "x", 3, *B), make_turn(6, "x", 2, *A), make_turn(7, "y", 1), make_turn(8, "y", 2, *A),
]  # fmt: skip
GROUPS = [[1, 6, 5], [2, 4], [3], [7, 8]]


def read_talks(first: int, last: int) -> list[StoredSample]:
    return TALKS[first - 1 : last]


def remember(question: TargetQuestion) -> Response:
    """Answer with the history, so that a test can read it."""
    texts = "".join(message["content"] for message in question.conversation if message["role"] == "assistant")
    return answer(answer=f"[{texts}{question.question}]", contexts=("c",), context_ids=None)


def test_turns_of_one_conversation_are_found_in_any_order() -> None:
    assert group_turns(read_talks, len(TALKS), 3)[0] == GROUPS


@pytest.mark.parametrize(
    "form", [str, float, lambda n: f"{n}.0", lambda _: None], ids=["CSV", "Parquet", "CSV with empty cells", "none"]
)
def test_turns_are_in_order_where_their_numbers_are_no_integers(form: Callable[[int], object]) -> None:
    """Each turn of a CSV was asked at once, as a conversation of one turn."""
    numbers = [1, 2, 3] if form(1) is None else [3, 1, 2]
    turns = [make_turn(place, "x", number) for place, number in enumerate(numbers, start=1)]
    metadata = [json.dumps({"conversation_id": "x", "turn": form(number)}) for number in numbers]
    turns = [replace(turn, metadata_json=text) for turn, text in zip(turns, metadata, strict=True)]
    assert group_turns(lambda first, last: turns[first - 1 : last], 3, 2)[0] == [
        [1, 2, 3] if form(1) is None else [2, 3, 1]
    ]


@pytest.mark.parametrize("mark", ["metadata.conversation_id", "conversation"])
async def test_rows_of_one_turn_each_are_asked_in_order_or_refused(tmp_path: Path, mark: str) -> None:
    """Side by side, a bot that remembers by an id mixes turns up, and one that is given the turns before gets none."""
    rows = [
        {"conversation_id": "x", "turn": str(turn), "question": f"q{turn}", "ground_truth": "g"} for turn in (1, 2, 3)
    ]
    staged = stage_dataset(pl.DataFrame(rows), mapping={}, limit=None)
    staged.staging.discard()
    assert (staged.n_continued, staged.n_later) == (0, 2)
    for history in ("own", "dataset", "default"):
        body = {"q": "{{question}}", "c": f"{{{{{mark}}}}}"}
        settings = TargetSettings(url="http://bot.test/", body=body)
        if history != "default":
            settings = TargetSettings(url="http://bot.test/", body=body, history=history)
        target = make_target(settings)
        if history != "default":
            check_takes_conversation(target, settings, staged.n_continued, staged.n_later)
        else:
            with pytest.raises(TargetError, match=r"2 rows are later turns.*history = .own"):
                check_takes_conversation(target, settings, staged.n_continued, staged.n_later)
        await target.close()


@pytest.mark.parametrize(("options", "is_noted"), [({}, True), ({"history": "dataset"}, False)])
def test_turns_that_are_asked_alone_are_named(tmp_path: Path, options: dict[str, Any], *, is_noted: bool) -> None:
    """The suite that `init` writes asked each turn of a session as if it began one, without a word."""
    rows = pl.DataFrame({"session_id": ["x", "x", "y"], "turn": [1, 2, 1], "question": ["q1", "q2", "q1"]})
    target = TargetSettings.model_validate({"url": "http://bot.test/", **options})
    staged = stage_dataset(rows, mapping={}, limit=None)
    notices = check_history(RunSettings(target=target), staged)
    staged.staging.discard()
    assert [notice.partition(": the")[0] for notice in notices] == (
        ["Later turns of conversations are asked alone (rows: 1)"] if is_noted else []
    )


LAST = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}]


@pytest.mark.parametrize(
    ("rows", "n_following"),
    [
        ([("x", None, None), ("y", None, None), ("x", None, None), ("x", None, None)], 2),
        ([("x", 0, None), ("x", 1, None), ("y", 1, None), ("y", 0, None)], 2),
        ([("x", None, None), ("y", None, None), (None, None, None), (None, None, None)], 0),
        ([("x", 1, None), ("x", 2, LAST), ("x", 1, None)], 0),
        ([("x", None, LAST), ("x", None, None)], 0),
    ],
    ids=["no numbers", "from 0", "an id each", "recorded twice", "out of order"],
)
async def test_rows_without_numbers_are_refused_for_a_bot_with_conversations(
    rows: list[tuple[str | None, int | None, list[dict[str, str]] | None]], n_following: int
) -> None:
    """Only `turn` from 2 on was looked at, so that exported sessions were asked side by side."""
    columns = [{"session_id": name, "turn": turn, "conversation": earlier} for name, turn, earlier in rows]
    frame = pl.DataFrame([{"question": f"q{place}", **row} for place, row in enumerate(columns)])
    staged = stage_dataset(frame, mapping={}, limit=None)
    staged.staging.discard()
    assert (staged.n_later, staged.n_following) == (0, n_following)
    for mark in ("metadata.session_id", "conversation", "metadata.lang"):
        settings = TargetSettings(url="http://bot.test/", body={"q": "{{question}}", "s": f"{{{{{mark}}}}}"})
        target = make_target(settings)
        if n_following and mark != "metadata.lang":
            with pytest.raises(TargetError, match=r"2 rows are later turns.*same .*`session_id` as one before"):
                check_takes_conversation(target, settings, 0, staged.n_later + staged.n_following)
        else:
            check_takes_conversation(target, settings, 0, staged.n_later + staged.n_following)
        await target.close()


@pytest.mark.parametrize(
    ("rows", "n_unheard"),
    [
        ([("x", None), ("x", LAST)], 0),
        ([("x", LAST), ("x", None)], 0),
        ([("x", LAST), ("y", None)], 1),
        ([("x", None), ("x", [*LAST, *LAST])], 1),
        ([("x", None), ("x", LAST), ("x", [*LAST, *LAST])], 0),
        ([(None, LAST), (None, LAST), (None, None)], 2),
        ([("x", None), ("x", None), ("x", None)], 0),
        ([("x", None), ("x", [*LAST, {"role": "user", "content": "Hello?"}])], 0),
    ],
)
async def test_a_bot_that_remembers_needs_a_row_for_each_question(
    rows: list[tuple[str | None, list[dict[str, str]] | None]], n_unheard: int
) -> None:
    """Questions that were only in the earlier turns of a row were never asked, and the last one was asked alone."""
    frame = pl.DataFrame(
        [
            {"question": f"q{place}", "session_id": name, "conversation": earlier}
            for place, (name, earlier) in enumerate(rows)
        ],
        strict=False,
    )
    staged = stage_dataset(frame, mapping={}, limit=None)
    staged.staging.discard()
    assert staged.n_unheard == n_unheard
    for mark, refuses in (("conversation_id", n_unheard > 0), ("conversation", False)):
        body = {"q": "{{question}}", "s": f"{{{{{mark}}}}}"}
        settings = TargetSettings(url="http://bot.test/", body=body, history="own")
        target = make_target(settings)
        if refuses:
            with pytest.raises(TargetError, match=rf"^{n_unheard} questions come after others that are not asked"):
                check_takes_conversation(target, settings, staged.n_continued, 0, n_unheard=staged.n_unheard)
        else:
            check_takes_conversation(target, settings, staged.n_continued, 0, n_unheard=staged.n_unheard)
        await target.close()


async def test_own_answers_are_the_history_across_shards_and_in_order(tmp_path: Path) -> None:
    target = ScriptedTarget(remember)
    options = {"read_samples": read_talks, "conversations": GROUPS}
    async with collecting(tmp_path, target, len(TALKS), **options) as (live_run, collection):
        for number in collection.numbers:
            await collection.collect(live_run.asker.stop_sign, number, size=live_run.settings.shard_size)
        collection.record.flush()
        responses = fetch_responses(live_run.warehouse, live_run.run_id, [sample.sample_id for sample in TALKS])
        assert responses["x/1"].answer == "[q1]"
        assert responses["x/2"].answer == "[[q1]q2]"
        assert responses["x/3"].answer == "[[q1][[q1]q2]q3]"
        assert target.asked.index("x/1") < target.asked.index("x/2") < target.asked.index("x/3")
        assert Counter(target.asked) == Counter(sample.sample_id for sample in TALKS)
        assert target.most_in_flight == 2, "conversations are asked side by side"
        staging = stage_responses(collection, live_run.settings.shard_size)
        rows = {sample.ordinal: sample for part in staging.read_parts() for sample in part}
        staging.discard()
    assert sorted(rows) == list(range(1, len(TALKS) + 1))
    assert [turn.text for turn in rows[5].conversation] == ["q1", "[q1]", "q2", "[[q1]q2]"], "as it really went"
    assert rows[5].conversation[1].contexts == ["c"], "with what each answer rested on"


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The responses of an earlier run, with the messages before each."""

    texts: Mapping[str, tuple[str, ...]]

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        return {sample.sample_id: self._make(sample) for sample in samples if sample.sample_id in self.texts}

    def _make(self, sample: StoredSample) -> StoredResponse:
        before = make_turn(0, None, 0, *self.texts[sample.sample_id]).conversation_json
        return StoredResponse(
            sample_id=sample.sample_id, answer=f"earlier {sample.question}", contexts=None, context_ids=None,
            status="ok", error=None, latency_ms=None, asked_run_id="r0", question=sample.question,
            metadata_json=sample.metadata_json, conversation_json=before,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "asked"),
    [
        ({"x/1": (), "x/2": ("q1", "earlier q1"), "x/3": ("q1", "earlier q1", "q2", "earlier q2")}, []),
        ({"x/1": (), "x/2": ("q1", "earlier q1"), "x/3": ("q1", "earlier q1", "q2", "otherwise")}, ["x/3"]),
        ({"x/1": (), "x/3": ("q1", "earlier q1", "q2", "earlier q2")}, ["x/2", "x/3"]),
        ({"x/2": ("q1", "[q1]"), "x/3": ("q1", "[q1]", "q2", "earlier q2")}, ["x/1"]),
    ],
)
async def test_recorded_response_is_valid_only_after_the_same_messages(
    tmp_path: Path, texts: Mapping[str, tuple[str, ...]], asked: list[str]
) -> None:
    target = ScriptedTarget(remember)
    options: dict[str, Any] = {"read_samples": read_talks, "conversations": GROUPS[:1], "known": Earlier(texts=texts)}
    async with collecting(tmp_path, target, len(TALKS), **options) as (live_run, collection):
        await collection.collect(live_run.asker.stop_sign, 0, size=live_run.settings.shard_size)
        assert (target.asked, collection.n_taken) == (asked, 3 - len(asked))


def test_matches_responses_by_conversation_or_by_question() -> None:
    sample = TALKS[4]
    same, answered_otherwise, asked_otherwise = (
        Earlier(texts={sample.sample_id: texts}).find([sample])[sample.sample_id]
        for texts in (B, ("q1", "old1", "q2", "own"), ("q1", "old1", "q9", "old2"))
    )
    held = [same, answered_otherwise, asked_otherwise]
    assert [asks_the_same(sample, response, own=False) for response in held] == [True, False, False]
    assert [asks_the_same(sample, response, own=True) for response in held] == [True, True, True]
    assert [came_after(sample.conversation, response) for response in held] == [True, False, False]
    assert not asks_the_same(sample, replace(same, question="q4"), own=True)


@pytest.mark.parametrize("failing", ["", "q2"])
async def test_responses_to_rows_of_one_turn_each_are_taken_again(tmp_path: Path, failing: str) -> None:
    """The turns before were expected in each row, so that the responses of a whole collection were refused."""
    rows = [replace(sample, sample_id=f"s{sample.ordinal}", conversation_json=None) for sample in TALKS]
    ids = [row.sample_id for row in rows]
    target = ScriptedTarget(lambda question: FAILED if question.question == failing else remember(question))
    options: dict[str, Any] = {"read_samples": lambda first, last: rows[first - 1 : last], "conversations": GROUPS}
    async with collecting(tmp_path, target, len(rows), **options) as (live_run, collection):
        run = make_run(live_run.run_id, config={"target": {"history": "own"}})
        insert_run(live_run.warehouse, run)
        await collect_all(live_run, collection)
        staging = stage_responses(collection, SIZE)
        take_in_samples(live_run.warehouse, run.run_id, staging)
        staging.discard()
        known = find_parent_responses(live_run.warehouse, run)
        known.check_complete(collection.read_samples, GROUPS, len(rows), SIZE)
        again = replace(collection, run_id="again", target=None, known=known, n_asked=0)
        await collect_all(live_run, again)
        assert again.n_asked == 0
        given, taken = (fetch_responses(live_run.warehouse, name, ids) for name in (run.run_id, "again"))
        assert {name: (found.answer, found.error) for name, found in taken.items()} == {
            name: (found.answer, found.error) for name, found in given.items()
        }
        rows[0] = replace(rows[0], question="q9")
        with pytest.raises(FatalJudgeError, match="3 of 8 questions have no response in run run-1"):
            known.check_complete(collection.read_samples, GROUPS, len(rows), SIZE)


@pytest.mark.parametrize(("takes", "asked"), [(True, ["s6"]), (False, ["s1", "s6", "s5"])])
async def test_a_bot_that_remembers_is_asked_whole_conversations(tmp_path: Path, takes: bool, asked: list[str]) -> None:
    """It was asked a later turn alone, without the turns before, which were taken from the record."""
    rows = [replace(sample, sample_id=f"s{sample.ordinal}", conversation_json=None) for sample in TALKS]
    failing: set[str] = set()

    def cite(question: TargetQuestion) -> Response:
        is_failing = question.sample_id in failing
        return FAILED if is_failing else replace(remember(question), context_ids=(f"{question.sample_id}.md",))

    target = ScriptedTarget(cite)
    target.takes_conversation, target.names_conversation = takes, True
    options: dict[str, Any] = {"read_samples": lambda first, last: rows[first - 1 : last], "conversations": GROUPS}
    async with collecting(tmp_path, target, len(rows), **options) as (live_run, collection):
        run = make_run(live_run.run_id)
        insert_run(live_run.warehouse, run)
        await collect_all(live_run, collection)
        staging = stage_responses(collection, SIZE)
        take_in_samples(live_run.warehouse, run.run_id, staging)
        staging.discard()
        known = UnaffectedResponses(
            warehouse=live_run.warehouse, asking_runs={run.run_id: run.started_at},
            announced={"s6.md": run.started_at + timedelta(days=1)}, own=True,
        )  # fmt: skip
        target.asked.clear()
        failing.add("s6")
        updated = replace(collection, run_id="updated", known=known)
        await collect_all(live_run, updated)
        assert target.asked == asked[: asked.index("s6") + 1]
        target.asked.clear()
        failing.clear()
        await collect_all(live_run, replace(updated, is_resumed=True))
        assert target.asked == (asked if not takes else asked[asked.index("s6") :]), "it may have forgotten the turns"
        if takes:
            return
        # A bot that is down takes away no answer of a conversation that is asked again.
        kept = {name: one.answer for name, one in fetch_responses(live_run.warehouse, "updated", asked).items()}
        failing.update(("s1", "s5"))
        third = replace(collection, run_id="third", known=None)
        await collect_all(live_run, third)
        failing.clear()
        failing.add("s5")
        await collect_all(live_run, replace(third, is_resumed=True))
        first = fetch_responses(live_run.warehouse, "third", asked)
        failing.update(asked)
        await collect_all(live_run, replace(third, is_resumed=True))
        again = fetch_responses(live_run.warehouse, "third", asked)
        statuses = {name: one.status for name, one in again.items()}
        assert {name: one.status for name, one in first.items()} == statuses
        assert statuses["s5"] == "failed"
        assert [again[name].answer for name in ("s1", "s6")] == [first[name].answer for name in ("s1", "s6")]
        assert None not in [first["s1"].answer, first["s6"].answer, *kept.values()]


async def test_a_bot_that_remembers_gets_other_ids_in_each_run(tmp_path: Path) -> None:
    """Each night had the dataset's ids, so that a bot with a lasting memory answered after last night's questions."""
    asked: dict[str, list[TargetQuestion]] = {}

    def note(question: TargetQuestion) -> Response:
        asked.setdefault(question.sample_id, []).append(question)
        return remember(question)

    rows = []
    for sample in TALKS:
        talk = sample.metadata.get("conversation_id")
        of_talk = {"conversation_id": 12 if talk == "y" else talk, "thread_id": f"t-{talk}", "chat_id": None}
        others = {**of_talk, "session_id": 7} if talk else {}
        rows.append(replace(sample, metadata_json=json.dumps({**sample.metadata, **others})))
    target = ScriptedTarget(note)
    target.takes_conversation, target.names_conversation = False, True

    def read(first: int, last: int) -> list[StoredSample]:
        return rows[first - 1 : last]

    conversations, columns = group_turns(read, len(rows), 3)
    assert (conversations, columns) == (GROUPS, {"conversation_id", "thread_id"})
    options: dict[str, Any] = {"read_samples": read, "conversations": conversations, "id_columns": columns}
    async with collecting(tmp_path, target, len(rows), **options) as (live_run, collection):
        await collect_all(live_run, collection)
        await collect_all(live_run, replace(collection, run_id="next-night"))
        target.takes_conversation = True
        await collect_all(live_run, replace(collection, run_id="another"))
    nights = {
        name: [(one.metadata["conversation_id"], one.conversation_id) for one in questions]
        for name, questions in asked.items()
        if questions[0].metadata
    }
    assert nights["x/1"] == nights["x/2"] == nights["x/3"], "one id for all turns"
    assert (nights["x/1"][-1][0], nights["y/1"][-1][0]) == ("x", 12), (
        "it is sent the turns, so the ids are the dataset's"
    )
    assert len({one for _, one in nights["x/1"]}) == 3
    threads = [one.metadata["thread_id"] for one in asked["x/1"]]
    assert threads == [*(one for _, one in nights["x/1"][:2]), "t-x"], "another column with the conversation's id"
    assert all(named == str(uuid.UUID(one)) for named, one in nights["x/1"][:2])
    assert all(isinstance(named, int) for named, _ in nights["y/1"]), "a number stays one"
    assert 12 not in [named for named, _ in nights["y/1"][:2]]
    assert {one.metadata["session_id"] for questions in asked.values() for one in questions if one.metadata} == {7}


def test_replay_asks_after_the_earlier_turns() -> None:
    assert [message["content"] for message in pose_given(TALKS[4]).conversation] == list(B)


# --- through the command, over HTTP


def test_a_bot_over_http_is_asked_with_the_datasets_history(tmp_path: Path, prefect_home: Path) -> None:
    with build_place(tmp_path / "sums", prefect_home, add_up) as (place, server):
        dry = place.call("run", "sums.toml", "--dry-run")
        assert f"will be asked {N_TALKS * N_TURNS} questions" in dry.stdout, dry.stderr
        assert not server.requests
        finished = place.call("run", "sums.toml", "--json")
        assert finished.status == 0, finished.stderr
        run_id = finished.document["run_id"]
        assert list_totals(place, run_id) == expect_totals(own=False)
        assert len(server.requests) == N_TALKS * N_TURNS
        last = place.call("collect", "sums.toml", "--json")
        assert last.status == 0, last.stderr
        assert f"{N_TALKS * N_TURNS} samples from the turns of {N_TALKS} conversations in 'messages'" in last.stderr


@pytest.mark.slow
def test_a_bot_over_http_makes_its_own_history_and_its_answers_are_judged_again(
    tmp_path: Path, prefect_home: Path
) -> None:
    out_of_order = {"Add 22."}

    def add_up_unless_broken(sent: Sent) -> Canned:
        body: Any = sent.body
        return Canned(status=500) if body["question"] in out_of_order else add_up(sent)

    with build_place(tmp_path / "sums", prefect_home, add_up_unless_broken, 'history = "own"') as (place, server):
        finished = place.call("run", "sums.toml", "--json")
        assert finished.status == 3, finished.stderr
        run_id = finished.document["run_id"]
        expected: Mapping[str, int | None] = expect_totals(own=True)
        lost = {f"talk2/{turn}": None for turn in range(2, N_TURNS + 1)}
        assert list_totals(place, run_id) == {**expected, **lost}
        errors = [row["error"] for row in read(place, "select error from responses where error is not null order by 1")]
        assert [error[:40] for error in errors] == [
            "status 500: (empty)",
            *["turn 2 of its conversation failed, so th"] * 2,
        ]
        n_asked = len(server.requests)
        out_of_order.clear()
        resumed = place.call("resume", run_id, "--json")
        assert resumed.status == 0, resumed.stderr
        assert len(server.requests) == n_asked + N_TURNS - 1, "nothing that came back is asked again"
        assert list_totals(place, run_id) == expected
        went = orjson.loads(read(place, SAMPLES.format(run_id=run_id))[N_TURNS - 1]["conversation"])
        assert [turn["text"] for turn in went if turn["role"] == "assistant"] == [
            f"The total is {expected[f'talk1/{turn}']}." for turn in range(1, N_TURNS)
        ], "judged is the conversation as it went"
        n_asked = len(server.requests)
        judged = place.call("run", "sums.toml", "--responses", run_id, "--json")
        assert judged.status == 0, judged.stderr
        assert len(server.requests) == n_asked
        assert read(place, SAMPLES.format(run_id=judged.document["run_id"])) == read(
            place, SAMPLES.format(run_id=run_id)
        )
        write_talks(place.folder, n=1)
        suite = place.folder / "sums.toml"
        text = suite.read_text(encoding="utf-8").replace("{{conversation}}", "{{metadata.turn}}")
        suite.write_text(text.replace('history = "own"', ""), encoding="utf-8")
        for more in ((), ("--dry-run",)):
            refused = place.call("run", "sums.toml", *more)
            assert refused.status == 2, refused.stderr
            assert "3 questions are asked in the middle of a conversation" in refused.stderr
        assert len(server.requests) == n_asked


@pytest.mark.slow
def test_killed_run_resumes_in_the_middle_of_its_conversations(tmp_path: Path, prefect_home: Path) -> None:
    with build_place(tmp_path / "sums", prefect_home, add_up, 'history = "own"', "rpm = 120") as (place, server):
        process = place.start("run", "sums.toml")
        wait_for(lambda: len(server.requests) >= 5, process)
        process.send_signal(signal.SIGKILL)
        assert finish(process).status == -signal.SIGKILL
        (run,) = read(place, "select run_id from runs")
        resumed = place.call("resume", run["run_id"], "--json")
        assert resumed.status == 0, resumed.stderr
        assert list_totals(place, run["run_id"]) == expect_totals(own=True)
        assert len(server.requests) <= N_TALKS * N_TURNS + 2, "only what was in flight is asked again"


@pytest.mark.slow
def test_repeats_ask_after_the_first_rounds_turns(tmp_path: Path, prefect_home: Path) -> None:
    more = ('history = "own"', "repeats = 1", "repeat_share = 1.0")
    with build_place(tmp_path / "sums", prefect_home, add_up, *more) as (place, server):
        finished = place.call("run", "sums.toml", "--json")
        assert finished.status == 0, finished.stderr
        runs = read(place, "select run_id, kind from runs order by started_at, kind")
        assert [run["kind"] for run in runs] == ["evaluation", "repeats"]
        assert {str(list_totals(place, run["run_id"])) for run in runs} == {str(expect_totals(own=True))}
        n_asked = len(server.requests)
        assert n_asked == 2 * N_TALKS * N_TURNS
        suite = place.folder / "sums.toml"
        text = suite.read_text(encoding="utf-8")
        suite.write_text(
            text.replace('"{{conversation}}"', '[], talk = "{{metadata.conversation_id}}"'), encoding="utf-8"
        )
        responses = place.call("run", "sums.toml")
        assert len(server.requests) == n_asked + N_TALKS * N_TURNS, "its turns cannot be asked alone"
        assert "the application remembers its conversations itself" in responses.stdout + responses.stderr


GOOD = answer_json({"answer": "Yes."})
QUESTION = pose("tides")
GIVEN = replace(QUESTION, contexts=("one", 'two "2"'), context_ids=("a#1", "b#2"))
BODY: dict[str, Any] = {
    "query": "{{question}}", "contexts": "{{contexts}}", "more": {"ids": "{{context_ids}}", "list": ["{{contexts}}"]},
}  # fmt: skip


async def test_a_request_holds_contexts_where_they_are_given_and_nothing_else_elsewhere() -> None:
    with serving(GOOD, GOOD, GOOD) as server:
        for question in (GIVEN, QUESTION, replace(GIVEN, contexts=(), context_ids=None)):
            await ask_once(question, url=server.url, body=BODY)
    texts = ["one", 'two "2"']
    assert [sent.body for sent in server.requests] == [
        {"query": "tides", "contexts": texts, "more": {"ids": ["a#1", "b#2"], "list": [texts]}},
        {"query": "tides", "more": {"list": []}},
        {"query": "tides", "contexts": [], "more": {"list": [[]]}},
    ]


async def test_a_function_and_a_runnable_get_them_where_they_name_them() -> None:
    function = {"callable": "target_bots:answer_from"}
    assert (await ask_once(GIVEN, **function)).answer == "tides from ['one', 'two \"2\"'] of ['a#1', 'b#2']"
    assert (await ask_once(QUESTION, **function)).answer == "tides from None of None"
    runnable = {"runnable": "target_bots:answering_from"}
    assert (await ask_once(GIVEN, **runnable)).answer == "tides from ['one', 'two \"2\"']"
    assert (await ask_once(QUESTION, **runnable)).answer == "tides from None"


@pytest.mark.parametrize(
    ("settings", "takes"),
    [
        ({"url": "http://bot.example/ask"}, False),
        ({"url": "http://bot.example/ask", "body": BODY}, True),
        ({"callable": "target_bots:answer"}, False),
        ({"callable": "target_bots:answer_from"}, True),
        ({"runnable": "target_bots:texted"}, False),
        ({"runnable": "target_bots:answering_from"}, True),
    ],
)
async def test_a_target_says_whether_it_takes_contexts(settings: dict[str, Any], takes: bool) -> None:
    target = make_target(TargetSettings(**settings))
    assert target.takes_contexts == takes
    await target.close()


@pytest.mark.parametrize("text", ["answer from {{contexts}}", "{{context_ids}} and more"])
def test_a_list_within_a_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the mark \{\{context\w+\}\} is a list; let it stand alone"):
        TargetSettings(url="http://bot.example", body={"q": "{{question}}", "prompt": text})
    with pytest.raises(ValueError, match="is a list; let it stand alone"):
        TargetSettings(url="http://bot.example/?q={{question}}&c={{contexts}}")
