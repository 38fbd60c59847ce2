"""Texts that no request holds: an answer, a ground truth or a single context is asked about in parts that are cut at
paragraphs, and comes out as if it had been asked about whole: nothing is lost, every part fits, and cuts fall where
they hurt least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Asked, Endpoint, Raw, make_http_fault
from endpoint_replies import Choice, build_completion, compose_reply
from hypothesis import example, given
from hypothesis import strategies as st
from live_runs import (
    Says,
    ScriptedJudge,
    asked_of,
    judge_one,
    make_sample,
    measure,
    read_calls,
    read_detail,
    read_ids,
    read_labels,
    read_outcomes,
    read_ranks,
    read_useful,
    say_good,
    say_verdicts,
)

from evalhouse.prompts import Item
from evalhouse.tasks.asking.splitting import split_items, split_text, split_to_judge
from evalhouse.tasks.asking.usage import estimate_items, estimate_tokens
from evalhouse.tasks.judge.protocol import COPIED, Question, RefusedRequest
from evalhouse.tasks.pipeline.live_run import SampleWork

TOKENS = 1000
LONG = " and the keeper writes it down" * 20  # some 150 tokens
PARAGRAPHS = [
    f"Berth {number} has {number * 7} rings{LONG}. Its ship is number {number * 3}" for number in range(1, 31)
]
LONG_ANSWER = ".\n\n".join(PARAGRAPHS) + "."


def say_sentences(question: Question) -> str:
    """Statements of a text by its full stops, and a good reply to anything else."""
    if question.prompt is None or question.prompt.name != "extract":
        return say_good(question)
    sentences = [text.strip() for text in str(question.data["text"]).split(".") if text.strip()]
    return orjson.dumps({"statements": sentences}).decode()


async def split_answer(
    folder: Path, says: Says = say_sentences, *, answer: str = LONG_ANSWER, tokens: int = TOKENS
) -> tuple[ScriptedJudge, SampleWork]:
    """One sample with a long answer through all steps."""
    judge = ScriptedJudge(says)
    return judge, await judge_one(folder, make_sample(answer=answer), judge=judge, request_tokens=tokens)


def read_statements(work: SampleWork, source: str = "answer") -> list[Mapping[str, Any]]:
    return [row for row in work.rows["statements"] if row["source"] == source]


async def test_a_long_answer_is_split_in_parts_and_its_statements_are_those_of_the_whole(tmp_path: Path) -> None:
    judge, work = await split_answer(tmp_path / "parts")
    asked = [str(question.data["text"]) for question in asked_of(judge, "extract_answer")]
    assert len(asked) >= 5
    assert "".join(sorted(asked, key=LONG_ANSWER.index)) == LONG_ANSWER, "each part once and nothing twice"
    assert all(estimate_tokens(text) <= TOKENS for text in asked)
    assert all(question.data["question"] == work.sample.question for question in asked_of(judge, "extract_answer"))
    assert all(text.startswith("Berth ") for text in asked), "a part begins with a paragraph"
    rows = read_statements(work)
    assert [row["statement_id"] for row in rows] == [f"A{number}" for number in range(1, 61)]
    assert [row["ordinal"] for row in rows] == list(range(1, 61))

    whole_judge, whole = await split_answer(tmp_path / "whole", tokens=24_000)
    assert len(asked_of(whole_judge, "extract_answer")) == 1
    assert [row["text"] for row in rows] == [row["text"] for row in read_statements(whole)]
    assert set(read_outcomes(work).values()) == {None}
    assert set(read_labels(work)) == set(read_labels(whole))


async def test_every_statement_names_the_call_of_its_part(tmp_path: Path) -> None:
    judge, work = await split_answer(tmp_path)
    calls = {call["call_id"]: call for call in read_calls(tmp_path)}
    written = {row["text"]: orjson.loads(calls[row["call_id"]]["reply"])["statements"] for row in read_statements(work)}
    assert all(text in statements for text, statements in written.items())
    named = [row["call_id"] for row in read_statements(work)]
    assert len(dict.fromkeys(named)) == len(asked_of(judge, "extract_answer"))
    assert named == sorted(named, key=list(dict.fromkeys(named)).index), "parts follow each other as in the text"


async def test_what_two_parts_say_is_a_statement_of_the_first_one(tmp_path: Path) -> None:
    answer = "\n\n".join(f"Gulls are white.{LONG} {number}. Gulls are white." for number in range(30))

    judge, work = await split_answer(tmp_path, answer=answer)
    assert len(asked_of(judge, "extract_answer")) >= 4
    texts = [str(row["text"]) for row in read_statements(work)]
    assert texts.count("Gulls are white") == 1
    assert len(texts) == len(set(texts)) == 31
    calls = {row["text"]: row["call_id"] for row in read_statements(work)}
    assert calls["Gulls are white"] == read_statements(work)[1]["call_id"]


async def test_a_long_answer_that_asserts_nothing_names_a_call_for_what_is_missing(tmp_path: Path) -> None:
    def say_nothing(question: Question) -> str:
        return '{"statements": []}' if question.step == "extract_answer" else say_sentences(question)

    judge, work = await split_answer(tmp_path, say_nothing)
    assert len(asked_of(judge, "extract_answer")) >= 5
    assert set(read_labels(work).values()) == {"FN"}
    calls = {call["call_id"]: call["step"] for call in read_calls(tmp_path)}
    assert {calls[str(row["call_id"])] for row in work.rows["classifications"]} == {"extract_answer"}


async def test_one_part_of_a_text_that_fails_leaves_no_silent_half(tmp_path: Path) -> None:
    def refuse_one(question: Question) -> str | Exception:
        if question.step == "extract_answer" and "Berth 17 " in str(question.data["text"]):
            return RefusedRequest("the filter does not like berth 17")
        return say_sentences(question)

    judge, work = await split_answer(tmp_path, refuse_one)
    n_parts = len(asked_of(judge, "extract_answer"))
    outcomes = read_outcomes(work)
    assert outcomes["extract_answer"] == outcomes["classify"] == outcomes["attribute_answer"] == "judge_failed"
    assert outcomes["extract_ground_truth"] is None
    assert "berth 17" in read_detail(work, "extract_answer")
    assert read_statements(work) == []
    assert read_statements(work, "ground_truth")
    # All others were answered and are stored: resuming costs the failed one, and the requests that rest on it.
    again, work = await split_answer(tmp_path)
    assert n_parts >= 5
    assert len(asked_of(again, "extract_answer")) == 1
    assert len(read_statements(work)) == 60


async def test_a_question_that_leaves_no_room_goes_into_every_request_whole(tmp_path: Path) -> None:
    question = "What of the berths?" + " Tell me more." * 2000
    judge = ScriptedJudge(say_sentences)
    sample = make_sample(question=question, answer=LONG_ANSWER)
    work = await judge_one(tmp_path, sample, judge=judge, request_tokens=TOKENS)
    assert all(asked.data["question"] == question for asked in judge.asked)
    assert all(estimate_tokens(str(asked.data["text"])) <= TOKENS // 2 for asked in asked_of(judge, "extract_answer"))
    assert set(read_outcomes(work).values()) == {None}
    assert len(read_statements(work)) == 60


def say_where(word: str) -> Says:
    """Useful is, and support comes from, each context that holds the word."""

    def says(question: Question) -> str:
        if not question.step.startswith(("rank", "attribute")):
            return say_good(question)
        contexts: Any = question.data["contexts"]
        holding = [item.id for item in contexts if word in item.text]
        if question.step == "rank":
            labels = {item.id: "useful" if item.id in holding else "not_useful" for item in contexts}
            return say_verdicts(*({"id": item, "label": label, "reason": label} for item, label in labels.items()))
        statements = read_ids(question, "answer_statements") + read_ids(question, "ground_truth_statements")
        reason = "found" if holding else "not found"
        return say_verdicts(*({"id": item, "contexts": holding, "reason": reason} for item in statements))

    return says


@pytest.mark.parametrize(("at", "expected"), [(2, True), (29, True), (99, False)])
async def test_a_context_longer_than_a_request_counts_where_any_part_of_it_does(
    tmp_path: Path, at: int, expected: bool
) -> None:
    contexts = ["short", LONG_ANSWER, "short too"]
    judge = ScriptedJudge(say_where(f"Berth {at} "))
    work = await judge_one(tmp_path, make_sample(contexts=contexts), judge=judge, request_tokens=TOKENS)
    for step in ("rank", "attribute_answer", "attribute_ground_truth"):
        sent: list[Any] = [item for question in asked_of(judge, step) for item in question.data["contexts"]]
        parts = sorted((item.text for item in sent if item.id == "C2"), key=LONG_ANSWER.index)
        assert "".join(parts) == LONG_ANSWER
        assert {item.id: item.text for item in sent if item.id != "C2"} == {"C1": "short", "C3": "short too"}
        assert len(sent) == len(parts) + 2
        assert all(measure(question) <= TOKENS for question in asked_of(judge, step))
    assert read_useful(work) == {1: False, 2: expected, 3: False}
    assert len(work.rows["context_verdicts"]) == 3
    assert set(map(tuple, read_ranks(work).values())) == {(2,) if expected else ()}
    calls = {call["call_id"]: call for call in read_calls(tmp_path)}
    for table, message in (("context_verdicts", "useful"), ("attributions", "found")):
        row = next(row for row in work.rows[table] if row.get("context_rank", 2) == 2)
        assert row["reason"] == (message if expected else f"not{'_' if message == 'useful' else ' '}{message}")
        assert message in str(calls[str(row["call_id"])]["reply"])


async def test_a_ground_truth_longer_than_a_request_meets_every_context_in_parts(tmp_path: Path) -> None:
    def say_useful(question: Question) -> str:
        contexts = read_ids(question, "contexts")
        message = "Berth 29 " in str(question.data["ground_truth"])
        return say_verdicts(
            *({"id": item, "label": "useful" if message and item == "C2" else "not_useful"} for item in contexts)
        )

    judge = ScriptedJudge(lambda question: say_useful(question) if question.step == "rank" else say_sentences(question))
    work = await judge_one(tmp_path, make_sample(ground_truth=LONG_ANSWER), judge=judge, request_tokens=TOKENS)
    asked = asked_of(judge, "rank")
    truths = [str(question.data["ground_truth"]) for question in asked]
    assert "".join(sorted(truths, key=LONG_ANSWER.index)) == LONG_ANSWER
    assert len(truths) > 5
    assert all(measure(question) + estimate_tokens(str(question.data["ground_truth"])) <= TOKENS for question in asked)
    assert all(read_ids(question, "contexts") == ["C1", "C2", "C3"] for question in asked)
    assert read_useful(work) == {1: False, 2: True, 3: False}


N = 9
MANY = make_sample(
    answer=" ".join(f"Lamp {number} burns oil." for number in range(N)),
    ground_truth=" ".join(f"Lamp {number} burns oil." for number in range(N)),
    contexts=[f"Lamp {number} burns oil." for number in range(N)],
)


def limit_replies(endpoint: Endpoint, most: int, kinds: Sequence[str] = ("classify", "attribute", "rank")) -> None:
    """Cut replies of these kinds, so that none is longer than so many characters."""

    def cut(asked: Asked) -> Raw:
        # Asked for some ids it answers for these alone, as a model does.
        written = orjson.dumps(compose_reply(asked)).decode()
        reply: Any = orjson.loads(written)
        only = asked.texts[-1].rpartition("for these ids only: ")[2].partition(".")[0].split(", ")
        if "verdicts" in reply and "for these ids only" in asked.texts[-1]:
            written = orjson.dumps({"verdicts": [one for one in reply["verdicts"] if one["id"] in only]}).decode()
        choice = Choice(content=written[:most], finish_reason="length" if len(written) > most else "stop")
        return Raw(body=build_completion(asked, choice, 1, 0))

    endpoint.configure(script=dict.fromkeys(kinds, cut))


def read_verdicts(work: SampleWork) -> dict[str, list[Any]]:
    """Return rows in order of their ids: a sample's requests may be answered in any order."""
    return {
        "labels": sorted((row["statement_id"], row["label"]) for row in work.rows["classifications"]),
        "supports": sorted((row["statement_id"], row["context_ranks"]) for row in work.rows["attributions"]),
        "useful": sorted((row["context_rank"], row["useful"]) for row in work.rows["context_verdicts"]),
    }


async def test_a_small_output_limit_changes_no_verdict_and_pays_for_none_twice(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    whole = read_verdicts(await judge_one(tmp_path / "whole", MANY))
    endpoint.reset()
    limit_replies(endpoint, 400)
    work = await judge_one(tmp_path / "cut", MANY, attempts=2)
    assert set(read_outcomes(work).values()) == {None}
    assert read_verdicts(work) == whole
    asked = sum(endpoint.stats.kinds.values())
    cut = [call for call in read_calls(tmp_path / "cut") if "cut off" in str(call["error"])]
    assert cut, "the stored call of a cut reply is marked"
    endpoint.reset()
    again = await judge_one(tmp_path / "cut", MANY, attempts=2)
    assert read_verdicts(again) == read_verdicts(work)
    assert (asked > 0, sum(endpoint.stats.kinds.values())) == (True, 0), "cut replies are stored as well"


async def test_what_says_nothing_before_it_is_cut_off_is_asked_in_halves(endpoint: Endpoint, tmp_path: Path) -> None:
    """Here two verdicts fit, but a reply about more begins with a long reason."""

    def ramble(asked: Asked) -> Raw | None:
        ids = asked.texts[-1].rpartition("for these ids only: ")[2].partition(".")[0].split(", ")
        if "for these ids only" in asked.texts[-1] and len(ids) <= 2:
            verdicts = [{"id": one, "reason": "seen", "label": "useful"} for one in ids]
            return Raw(
                body=build_completion(asked, Choice(content=orjson.dumps({"verdicts": verdicts}).decode()), 1, 0)
            )
        choice = Choice(content='{"verdicts": [{"id": "C1", "reason": "' + "on and " * 50, finish_reason="length")
        return Raw(body=build_completion(asked, choice, 1, 0))

    endpoint.configure(script={"rank": ramble})
    work = await judge_one(tmp_path, MANY, attempts=5)
    assert read_outcomes(work)["rank"] is None
    assert len(work.rows["context_verdicts"]) == N


async def test_one_that_never_ends_is_given_up_after_the_runs_attempts(endpoint: Endpoint, tmp_path: Path) -> None:
    limit_replies(endpoint, 30, ["rank"])
    work = await judge_one(tmp_path, MANY, attempts=3)
    assert read_outcomes(work)["rank"] == "judge_failed"
    assert endpoint.stats.kinds["rank"] <= 6


async def test_a_text_whose_statements_are_cut_off_is_split(endpoint: Endpoint, tmp_path: Path) -> None:
    text = " ".join(f"Lamp number {number} of the north harbour burns nothing but whale oil." for number in range(40))
    sample = make_sample(answer=text, ground_truth="Lamp 1 burns oil.", contexts=["Lamp 1 burns oil."])
    limit_replies(endpoint, 1000, ["extract"])
    work = await judge_one(tmp_path, sample)
    written = [row["text"] for row in work.rows["statements"] if row["source"] == "answer"]
    assert len(written) == 40
    assert read_outcomes(work)["extract_answer"] is None


async def test_a_draft_in_a_cut_reply_is_not_an_answer(endpoint: Endpoint, tmp_path: Path) -> None:
    draft = '<think>{"verdicts": [{"id": "C1", "reason": "x", "label": "useful"}, {"id": "C2", "reason": "x", "la'
    once = iter([Choice(content=draft, finish_reason="length")])

    def think(asked: Asked) -> Raw | None:
        choice = next(once, None)
        return Raw(body=build_completion(asked, choice, 1, 0)) if choice else None

    endpoint.configure(script={"rank": think})
    work = await judge_one(tmp_path, MANY)
    assert "x" not in [row["reason"] for row in work.rows["context_verdicts"]]
    assert read_outcomes(work)["rank"] is None


async def test_verdicts_in_the_words_of_the_example_are_asked_for_again(endpoint: Endpoint, tmp_path: Path) -> None:
    copied = "No A item mentions the roots."
    once = iter([copied])

    def copy(asked: Asked) -> dict[str, Any] | None:
        reply: Any = compose_reply(asked)
        if reason := next(once, None):
            reply["verdicts"][-1]["reason"] = reason
            return dict(reply)
        return None

    endpoint.configure(script={"classify": copy})
    work = await judge_one(tmp_path, make_sample())
    assert copied not in [row["reason"] for row in work.rows["classifications"]]
    assert endpoint.stats.kinds["classify"] == 2
    errors = [str(call["error"]) for call in read_calls(tmp_path) if call["step"] == "classify"]
    assert COPIED in errors[0]


KINDS = ("extract", "classify", "attribute", "rank", "fused")
N_LAMPS = 8
LAMPS = [f"Lamp {number} of the north harbour burns nothing but oil from whales." for number in range(N_LAMPS)]
LONG_TEXT = make_sample(
    answer=" ".join(LAMPS),
    ground_truth=" ".join(LAMPS),
    contexts=[f"{lamp} {'It is cleaned by hand. ' * 60}" for lamp in LAMPS],
)


def hold(endpoint: Endpoint, most: int) -> None:
    """Make the endpoint refuse a request with more than so many characters of data as too long."""

    def refuse(asked: Asked) -> Raw | None:
        return make_http_fault("context_length_exceeded", None) if len(asked.texts[-1]) > most else None

    endpoint.configure(script=dict.fromkeys(KINDS, refuse))


def measure_longest(folder: Path) -> int:
    return max(call["prompt_tokens"] or 0 for call in read_calls(folder))


@pytest.mark.parametrize("votes", [1, 3])
async def test_what_is_refused_as_too_long_is_asked_in_parts_in_every_step(
    endpoint: Endpoint, tmp_path: Path, votes: int
) -> None:
    whole = read_verdicts(await judge_one(tmp_path / "whole", LONG_TEXT, votes=votes))
    hold(endpoint, 3_600)
    work = await judge_one(tmp_path / "parts", LONG_TEXT, votes=votes)
    assert {reason for reason in read_outcomes(work).values() if reason} == set()
    assert read_verdicts(work) == whole
    refused = [call for call in read_calls(tmp_path / "parts") if call["status"] == "refused"]
    assert refused
    assert len({call["request"] for call in refused}) == len(refused), "none is refused a second time"


async def test_a_known_window_is_kept_to_without_a_refusal(endpoint: Endpoint, tmp_path: Path) -> None:
    whole = read_verdicts(await judge_one(tmp_path / "whole", LONG_TEXT))
    longest = measure_longest(tmp_path / "whole")
    assert longest > 3_500
    endpoint.configure(keep_bodies=True)
    work = await judge_one(tmp_path / "parts", LONG_TEXT, context_window=3_500)
    assert read_verdicts(work) == whole
    calls = read_calls(tmp_path / "parts")
    assert {call["status"] for call in calls} <= {"ok", "cached"}
    assert measure_longest(tmp_path / "parts") < longest


@pytest.mark.parametrize("is_known", [True, False])
async def test_what_is_too_long_for_one_request_of_all_is_asked_by_steps_and_says_so(
    endpoint: Endpoint, tmp_path: Path, is_known: bool
) -> None:
    whole = read_verdicts(await judge_one(tmp_path / "whole", LONG_TEXT))
    if not is_known:
        hold(endpoint, 3_600)
    work = await judge_one(tmp_path / "parts", LONG_TEXT, plan="fused", context_window=3_500 if is_known else None)
    assert read_verdicts(work) == whole
    assert set(read_outcomes(work).values()) == {None}
    (detail,) = [row["detail"] for row in work.rows["outcomes"] if row["step"] == "fused"]
    assert ("too long" in detail, detail.endswith(": asked by the separate steps")) == (True, True)
    asked = {call["step"] for call in read_calls(tmp_path / "parts") if call["status"] == "ok"}
    assert {"classify", "attribute_answer", "attribute_ground_truth", "rank"} <= asked
    assert "fused" not in asked


async def test_where_there_is_nothing_to_split_the_reason_says_how_long_and_how_much_is_allowed(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    work = await judge_one(tmp_path, LONG_TEXT, context_window=500)
    outcomes = read_outcomes(work)
    assert (outcomes["extract_answer"], outcomes["rank"]) == ("judge_failed", "judge_failed")
    details = {row["detail"] for row in work.rows["outcomes"] if row["detail"]}
    assert all("too long for the model: about " in detail and "holds 500" in detail for detail in details)
    assert endpoint.stats.requests.total() == 0


ENGLISH = (
    "The lamp was lit in 1911. It burned oil, then gas; since 1962 it runs on tidal power. Who keeps it? Ode Varn."
)
CHINESE = "灯塔建于一九一一年。它先烧油，后来改用煤气；一九六二年起靠潮汐发电。谁在看守？是欧德。"
TABLE = "| Year | Fuel |\n| --- | --- |\n| 1911 | oil |\n| 1962 | tide |\n"
FENCE = "```python\nlamp = light()\n\nlamp.burn(oil=True)\n```\n"
LIST = "The keepers were:\n\n- Ode Varn, until 1911\n\n- Mira Solveng, since then\n\n  She came from the south.\n"
WRAPPED = (
    "The lamp was lit in 1911 by the first keeper of the northern cape and\nhas burned ever since, with a break of\n"
    "three nights in the winter of 1962.\n"
)
SCRAPS = st.sampled_from(
    [ENGLISH, CHINESE, TABLE, FENCE, LIST, WRAPPED, "# A heading\n\n", "\n\n", "\r\n", " \t", "：\n\n", "🗼", "é\u0301",
     "سُئلت الحارسة؟ نعم. ", "मीनार पुरानी है। ", "วันที่เปิดน้ำ", "ヶ月｡", "👩‍🚒", "🇩🇪",
     "x" * 90, "灯" * 70, "```\n", "1. ", "**Bold**\n", "a, b; c: ", "\u2028", "...", "“好！”他说。"]
)  # fmt: skip
TEXTS = st.lists(SCRAPS | st.text(max_size=30), max_size=14).map("".join)


def make_prose(n_paragraphs: int) -> str:
    return "\n\n".join(f"Paragraph {number} begins. It continues. It ends." for number in range(1, n_paragraphs + 1))


@given(text=TEXTS, most=st.integers(1, 120))
@example(text="", most=1)
@example(text="🗼" * 9, most=1)
@example(text="\n" * 50, most=3)
@example(text="word " * 40 + "é", most=10)
def test_joined_parts_are_the_text_and_each_of_them_fits(text: str, most: int) -> None:
    parts = split_text(text, most)
    assert "".join(parts) == text
    assert all(estimate_tokens(part) <= most for part in parts)
    assert all(parts) or parts == [""]


@given(text=TEXTS, most=st.integers(1, 120))
def test_a_text_that_fits_stays_whole_and_others_take_no_more_parts_than_they_must(text: str, most: int) -> None:
    parts = split_text(text, most)
    assert (len(parts) == 1) is (estimate_tokens(text) <= most)
    for one, other in pairwise(parts):
        assert estimate_tokens(one + other) > most


@pytest.mark.parametrize("text", ["x" * 5000, "灯" * 5000, "🗼" * 1000, "x" * 900 + " short words follow it"])
def test_one_giant_word_is_cut_between_characters(text: str) -> None:
    parts = split_text(text, 100)
    assert "".join(parts) == text
    assert all(estimate_tokens(part) <= 100 for part in parts)
    assert len(parts) <= estimate_tokens(text) // 100 + 2


@pytest.mark.parametrize("unit", [
    "word " * 40, *(pytest.param(unit, marks=pytest.mark.slow) for unit in ("灯" * 100, "a:\n\n" * 40, "- a\n\n" * 40,
                                                                          ":" * 200, "\n \n" * 60)),
])  # fmt: skip
def test_work_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    """Each of these takes hours otherwise."""
    text = unit * 1_000
    assert "".join(split_text(text, 500)) == text


def test_paragraphs_are_not_broken_while_one_fits() -> None:
    text = make_prose(30)
    parts = split_text(text, 60)
    assert len(parts) > 5
    assert all(part.startswith("Paragraph ") for part in parts)
    assert all(part.rstrip().endswith("It ends.") for part in parts)


@pytest.mark.parametrize(("text", "ends"), [
    (ENGLISH * 9, ".?"),
    (CHINESE * 9, "。？"),
    ("Die Lampe brannte ab 1911. Wer hütet sie? Frau Löwe z. B. wohnt dort. " * 9, ".?"),
    ("灯台は一九一一年に建てられた。誰が守るのか？オデである｡" * 9, "。？｡"),
    ("أضيئت المنارة عام ١٩١١. من يحرسها؟ إنه عدي. " * 9, ".؟"),
    ("मीनार १९११ में बनी। उसे कौन देखता है? वह पुरानी है॥ " * 9, "।?॥"),
    ("መብራቱ በ1911 ተሠራ። ማን ይጠብቀዋል፧ " * 9, "።፧"),
    ("the keeper, the lamp, the oil and the gulls, " * 20, ","),
    ("看守人、灯、油和海鸥，还有鱼，" * 30, "，"),
    ("| Year | Fuel |\n| --- | --- |\n" + "".join(f"| {year} | oil, then gas |\n" for year in range(1900, 1960)), "|"),
])  # fmt: skip
def test_what_has_no_room_is_cut_behind_sentences_or_else_commas_or_rows(text: str, ends: str) -> None:
    parts = split_text(text, 40)
    assert len(parts) > 3
    assert all(part.rstrip()[-1] in ends for part in parts)


CHARACTERS = {
    "accents": "e\u0301\u0323", "Hindi": "क्षि", "Tamil": "நி", "Thai": "น้ำ", "Arabic": "مُّ",
    "Korean": "\u1112\u1161\u11ab", "Hebrew": "שָׁ", "family": "👩\u200d👩\u200d👧", "skin": "👍🏽", "flag": "🇩🇪",
    "heart": "❤\ufe0f", "keycap": "1\ufe0f\u20e3",
}  # fmt: skip


@pytest.mark.parametrize("character", CHARACTERS.values(), ids=CHARACTERS)
def test_no_cut_falls_within_what_a_reader_sees_as_one_character(character: str) -> None:
    for most in range(estimate_tokens(character), 40):
        parts = split_text(character * 60, most)
        assert len(parts) > 1
        assert {part.replace(character, "") for part in parts} == {""}


def test_no_abbreviation_decimal_or_initial_is_taken_for_a_sentences_end() -> None:
    text = "Dr. M. Solveng measured 3.14 metres at approx. 5 a.m. on the pier of St. Tarn. " * 12
    assert {part.strip()[-9:] for part in split_text(text, 30)} == {"St. Tarn."}


def test_a_clause_without_room_is_cut_between_words() -> None:
    text = "lamp oil gull pier " * 60
    assert all(set(part.split()) <= {"lamp", "oil", "gull", "pier"} for part in split_text(text, 20))
    assert all(part.endswith("、") for part in split_text("灯塔、看守人、海鸥、" * 60, 20))


@pytest.mark.parametrize("block", [TABLE, FENCE, LIST], ids=["table", "fence", "list"])
def test_what_belongs_together_stays_together_while_it_fits(block: str) -> None:
    for n_before in range(1, 8):
        parts = split_text(f"{make_prose(n_before)}\n\n{block}\n{make_prose(5)}", 50)
        assert len(parts) > 1
        assert sum(block.strip() in part for part in parts) == 1


def test_a_fence_ends_only_with_the_mark_it_began_with() -> None:
    fence = "~~~\nlight()\n\n```\n\nwait()\n~~~\n"
    text = f"{make_prose(5)}\n\n{fence}\n{make_prose(5)}"
    for most in range(estimate_tokens(fence) + 5, 70):
        parts = split_text(text, most)
        assert len(parts) > 1
        assert sum(fence in part for part in parts) == 1


@pytest.mark.parametrize("lead", ["# Keepers", "**Keepers**", "The keepers were:", "看守人如下："])
def test_what_leads_on_goes_with_what_follows(lead: str) -> None:
    for n_before in range(1, 8):
        text = f"{make_prose(n_before)}\n\n{lead}\n\nOde Varn kept the lamp.\n\n{make_prose(4)}"
        (holding,) = [part for part in split_text(text, 40) if lead in part]
        assert f"{lead}\n\nOde Varn kept the lamp." in holding


LONG_LINE = "The lamp was lit on the northern cape in the winter of that year by"


def is_cut_between(line: str, following: str) -> bool:
    """Return True if some size of the parts puts a cut at the line break."""
    text = f"{line}\n{following}\n" * 12
    return any(part.endswith(f"{line}\n") for most in range(25, 90) for part in split_text(text, most))


@pytest.mark.parametrize(("line", "following"), [
    ("The lamp was lit by", "the keeper."),
    ("The lamp, the oil,", "Ode and Mira are gone."),
    ("灯塔建于一九一一年，", "由欧德看守。"),
    (LONG_LINE, "Ode Varn."),
    (LONG_LINE, "1911 at the latest."),
])  # fmt: skip
def test_a_sentence_wrapped_over_lines_is_one_sentence(line: str, following: str) -> None:
    assert not is_cut_between(line, following)


@pytest.mark.parametrize(("line", "following"), [
    ("Berth one is free", "Berth two is not."),
    ("It was lit in 1911.", "but not in 1912."),
    (LONG_LINE, "- keepers of the cape."),
    (LONG_LINE, "2. keepers of the cape."),
    (LONG_LINE, "（二）看守人。"),
    (LONG_LINE, "| a keeper | a cape |"),
    (LONG_LINE, "> keepers of the cape."),
])  # fmt: skip
def test_a_line_that_begins_something_new_may_begin_a_part(line: str, following: str) -> None:
    assert is_cut_between(line, following)


def test_blanks_send_no_request() -> None:
    text = "The lamp is lit." + " \n" * 400 + "The oil is low."
    parts = split_to_judge(text, 20)
    assert len(split_text(text, 20)) > 5
    assert [part.strip() for part in parts] == ["The lamp is lit.", "The oil is low."]


@pytest.mark.parametrize("text", ["", "  ", " \n" * 400])
def test_a_text_of_blanks_alone_is_asked_about_once(text: str) -> None:
    (part,) = split_to_judge(text, 20)
    assert not part.strip()


@given(texts=st.lists(TEXTS, max_size=8), most=st.integers(5, 200))
def test_items_come_in_groups_that_fit_and_never_twice_in_one(texts: list[str], most: int) -> None:
    items = [Item(id=f"C{rank}", text=text) for rank, text in enumerate(texts, start=1)]
    groups = split_items(items, most)
    assert all(groups)
    assert all(estimate_items(group) <= most for group in groups)
    assert all(len({item.id for item in group}) == len(group) for group in groups)
    for item in items:
        found = [piece.text for group in groups for piece in group if piece.id == item.id]
        if estimate_items([item]) <= most:
            assert found == [item.text]
        else:
            assert "".join("".join(found).split()) == "".join(item.text.split())
    ranks = [int(piece.id[1:]) for group in groups for piece in group]
    assert ranks == sorted(ranks)
