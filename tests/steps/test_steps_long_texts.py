"""Texts that no request holds: an answer, a ground truth or a single context is asked about in parts that are cut at
paragraphs, and comes out as if it had been asked about whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Asked, Endpoint, Raw, make_http_fault
from endpoint_replies import Choice, build_completion, compose_reply
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
)  # fmt: skip

from evalhouse.tasks.asking.usage import estimate_tokens
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
