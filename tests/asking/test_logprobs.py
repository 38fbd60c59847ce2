"""Expected ratings: from the tokens of a reply to the mean over the scale, or to the reason why it is missing; over the
wire, back from the record, and the note where log-probabilities are missing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import judge_factories
import orjson
import pytest
from endpoint import Endpoint, Raw, make_error
from endpoint_replies import Asked
from grades import find_rubric, rate, read_row
from live_runs import PROMPTS, lay_out_run, make_sample, make_settings, read_calls
from token_replies import RATED, SEVEN, SEVEN_MEAN, Token, build_body, list_tokens, write_text

from evalhouse.prompts import Rating
from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.protocol import Judge, ModelReply, Question, hash_canonical
from evalhouse.tasks.measures.expected_ratings import expect_ratings, find_expectable, pack_logprobs
from evalhouse.tasks.models import chat as chat_model
from evalhouse.tasks.models.chat import make_openai_judge
from evalhouse.tasks.models.provider_judges import make_factory_judge
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work


def expect(*tokens: Token, rubric: str = "accuracy", packed: str | None = "") -> Rating:
    """Return the rating of the reply's only criterion; `packed` in place of the tokens' own log-probabilities."""
    text = write_text(*tokens)
    given = pack_logprobs({"content": list_tokens(*tokens)}, text) if packed == "" else packed
    name = next(iter(find_rubric(rubric).criteria))
    if "[[" in text:
        reply = rate(int(text.rpartition("[[")[2].partition("]]")[0]))
    else:
        reply = orjson.loads(text[text.index("{") : text.rindex("}") + 1])
    rated = {name: Rating(reason="So it is.", rating=5.0)}
    return expect_ratings(rated, reply, text, given, find_rubric(rubric))[name]


@pytest.mark.parametrize(
    ("tokens", "mean", "share"),
    [
        (SEVEN, SEVEN_MEAN, "90.0%"),
        ((*RATED, {"7": 0.5, "8": 0.25, " 8": 0.25}, "}}"), 7.5, "100.0%"),  # two ways to write one number
        ((*RATED, {"2": 0.6, "0": 0.2, "4": 0.2}, "}}"), 2.5, "80.0%"),  # 0 is not on the scale
        ((RATED[0], ' agrees.", "rating":', {" 7": 0.5, " 8": 0.5}, "}}"), 7.5, "100.0%"),
        ((RATED[0], ' agrees.", "rating"', {": 7": 0.5, ": 9": 0.5}, "}}"), 8, "100.0%"),
        ((*RATED, {"7}": 0.5, "8}": 0.3, "8": 0.2}, "}"), 7.5, "100.0%"),
        (("The year agrees. [[", {"7": 0.5, "8": 0.5}, "]]"), 7.5, "100.0%"),
        (("Between [[", {"2": 1.0}, "]] and [[", {"7": 0.5, "8": 0.5}, "]]"), 7.5, "100.0%"),
        (("\n <think>", "年份一致", "</think>", *RATED, {"7": 0.5, "8": 0.5}, "}}", "\n"), 7.5, "100.0%"),
        (('{"accuracy": {"reason": "It says \\"rating\\": 10 ', 'of itself.", "rating": ', {"3": 0.5, "2": 0.5}, "}}"),
         2.5, "100.0%"),
        # A ten of two tokens takes its share of the one by what follows it, and a one may have become a ten.
        ((*RATED, {"1": 0.9, "9": 0.1}, {"0": 0.8, "}": 0.2}, "}}"), 0.72 * 10 + 0.18 * 1 + 0.1 * 9, "100.0%"),
        ((*RATED, {"1": 0.9, "2": 0.1}, {"}}": 0.75, "0": 0.25}), 0.9 * 0.75 * 1 + 0.9 * 0.25 * 10 + 0.1 * 2, "100.0%"),
        # A ten of one token does not change the one.
        ((*RATED, {"9": 0.5, "10": 0.25, "1": 0.25}, "}}"), 7.25, "100.0%"),
    ],
)  # fmt: skip
def test_a_rating_is_the_mean_over_the_scale_at_its_place(tokens: tuple[Token, ...], mean: float, share: str) -> None:
    rated = expect(*tokens)
    assert rated.expected == pytest.approx(mean, abs=1e-5)
    assert rated.rating == 5.0, "the written rating stays recorded"
    assert rated.note == f"expected from log-probabilities; {share} of the probability lay on the scale"


def test_a_spread_weighs_the_means_of_its_scores_as_the_judge_did() -> None:
    rated = expect(
        '{"passage_recall": {"reason": "Half.", "scores": [{"score": ', {"3": 0.8, "2": 0.2}, ', "probability": 0.4}, ',
        '{"score": ', {"4": 0.9, "5": 0.05, "the": 0.05}, ', "probability": 0.6}]}}',
        rubric="passage_recall",
    )  # fmt: skip
    second = (4 * 0.9 + 5 * 0.05) / 0.95
    assert rated.expected == pytest.approx(0.4 * 2.8 + 0.6 * second, abs=1e-5)
    assert rated.note is not None
    assert f"{0.4 + 0.6 * 0.95:.1%}" in rated.note


def test_a_one_that_may_begin_a_ten_is_not_guessed_at() -> None:
    rated = expect(*RATED, {"9": 0.6, "1": 0.4}, "}}")
    assert rated.expected is None
    assert rated.note == "as written: 40.0% of the probability lay on digits that may begin a longer number"
    # So little of it moves no grade, and is left out.
    assert expect(*RATED, {"9": 0.995, "1": 0.005}, "}}").expected == pytest.approx(9)
    # On a scale that ends before ten it is a one.
    tokens = ('{"accuracy_5": {"reason": "Half.", "rating": ', {"3": 0.6, "1": 0.4}, "}}")
    assert expect(*tokens, rubric="accuracy_5").expected == pytest.approx(2.2, abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "note"),
    [
        ((*RATED, {"7": 0.3, "x": 0.4, "y": 0.3}, "}}"), "only 30.0% of the probability lay on the scale"),
        ((*RATED, "7.0}}"), "it is not clear where in the reply its number is"),
        (('{"accuracy": {"reason": "Half.", "rating": 2, "rating": ', {"7": 1.0}, "}}"), "it is not clear where"),
        (('{"accuracy": {"reason": "Half.", "rating": 7}, "x": {"accuracy": {"rating": 2}}}',), "it is not clear"),
    ],
)  # fmt: skip
def test_undetermined_rating_is_the_written_one(tokens: tuple[Token, ...], note: str) -> None:
    rated = expect(*tokens)
    assert (rated.rating, rated.expected) == (5.0, None)
    assert str(rated.note).startswith(f"as written: {note}")


def test_tokens_that_do_not_spell_the_reply_are_not_used() -> None:
    text = write_text(*SEVEN)
    packed = pack_logprobs({"content": list_tokens(RATED[0], {"7": 1.0})}, text)
    assert packed == "[]"
    assert expect(*SEVEN, packed=packed).note == "as written: its number could not be found among the tokens"
    # Thoughts or a final mark that an endpoint takes out of the text are around it.
    around = list_tokens("<think>2?</think>", *SEVEN, "<|end|>")
    found = expect(*SEVEN, packed=pack_logprobs({"content": around}, text))
    assert found.expected == pytest.approx(SEVEN_MEAN, abs=1e-5)


@pytest.mark.parametrize(
    "given",
    [None, {}, [], "none", {"content": None}, {"content": []}, {"content": ["7"]}, {"content": [{"token": "7"}]},
     {"content": [{"token": "7", "logprob": None}]}, {"content": [{"token": "7", "logprob": math.nan}]},
     {"tokens": ["7"], "token_logprobs": [-0.1], "top_logprobs": [{"7": -0.1}]}],
)  # fmt: skip
def test_log_probabilities_of_another_shape_are_none(given: object) -> None:
    assert pack_logprobs(given, write_text(*SEVEN)) is None
    assert expect(*SEVEN, packed=None).note == "as written: the endpoint gave no log-probabilities"


def test_tokens_without_alternatives_count_for_what_they_are() -> None:
    likely, unlikely = (
        [{"token": write_text(*SEVEN[:2]), "logprob": 0.0}, {"token": "7", "logprob": math.log(share)},
         {"token": "}}", "logprob": 0.0, "top_logprobs": None}]
        for share in (0.9, 0.4)
    )  # fmt: skip
    text = write_text(*SEVEN)
    assert expect(*SEVEN, packed=pack_logprobs({"content": likely}, text)).expected == 7
    assert expect(*SEVEN, packed=pack_logprobs({"content": unlikely}, text)).expected is None


def test_half_a_character_is_a_token_too() -> None:
    tokens = list_tokens('{"accuracy": {"reason": "', "年", '", "rating": ', {"7": 0.5, "8": 0.5}, "}}")
    halves = [
        {"token": "\\x", "logprob": 0.0, "bytes": list("年".encode()[:2])},
        {"token": "\\x", "logprob": 0.0, "bytes": list("年".encode()[2:])},
    ]
    text = '{"accuracy": {"reason": "年", "rating": 7}}'
    packed = pack_logprobs({"content": [tokens[0], *halves, *tokens[2:]]}, text)
    assert expect(text, packed=packed).expected == pytest.approx(7.5, abs=1e-5)


@pytest.mark.parametrize(
    ("rubric", "expectable"),
    [("accuracy", {"accuracy"}), ("passage_precision", {"passage_precision"}), ("relevance", set()),
     ("answer_validity", set()), ("accuracy_binary", set())],
)  # fmt: skip
def test_spreads_and_lone_ratings_are_expectable(rubric: str, expectable: set[str]) -> None:
    assert find_expectable(find_rubric(rubric)) == expectable


def test_rules_start_from_the_expected_rating() -> None:
    rubric = find_rubric("relevance")
    rated = {
        name: Rating(reason="So.", rating=0.0 if one.kind == "flag" else 9.0) for name, one in rubric.criteria.items()
    }
    rated["accuracy"] = Rating(reason="So.", rating=3.0, expected=1.8, note="expected from tokens")
    rated["comprehensiveness"] = Rating(reason="So.", rating=9.0, expected=8.5, note="expected from tokens")
    grades = {one.criterion: one for one in rubric.settle(rated, has_contexts=True, judged_totals={})}
    assert (grades["accuracy"].said, grades["accuracy"].rating) == (3.0, 1.8)
    assert grades["accuracy"].rule == "expected from tokens"
    assert grades["comprehensiveness"].rule == "expected from tokens; capped at 4: accuracy is 1.8, at most 2"
    assert grades["comprehensiveness"].rating == 4


def script(endpoint: Endpoint, says: Any) -> None:  # noqa: ANN401  # a reply, or a function that gives one
    # By its blocks a rubric looks like one of our steps or like none.
    reply = says if callable(says) else lambda _: says
    endpoint.configure(script={"other": reply, "rank": reply})


async def grade_all(
    folder: Path,
    rubric: str = "accuracy",
    *,
    n: int = 1,
    judge: Judge | None = None,
    run_id: str = "run-1",
    **settings: Any,  # noqa: ANN401
) -> list[SampleWork]:
    """Grade so many samples one after the other."""
    works = [make_work(make_sample(number)) for number in range(1, n + 1)]
    chosen = make_settings(**settings)
    async with lay_out_run(folder, chosen, judge=judge, run_id=run_id, metrics=["faithfulness"]) as live_run:
        live_run.rubrics = (PROMPTS[rubric],)
        for work in works:
            await grade_sample(live_run, work)
    return works


async def grade(folder: Path, rubric: str = "accuracy", **options: Any) -> SampleWork:  # noqa: ANN401
    return (await grade_all(folder, rubric, **options))[0]


async def test_the_grade_comes_from_the_tokens_and_again_from_the_record(endpoint: Endpoint, tmp_path: Path) -> None:
    script(endpoint, Raw(body=build_body(*SEVEN)))
    first = read_row(await grade(tmp_path, logprobs=True), "accuracy")
    assert (first["said"], first["rating"]) == (7, pytest.approx(SEVEN_MEAN, abs=1e-5))
    assert first["rule"] == "expected from log-probabilities; 90.0% of the probability lay on the scale"
    (body,) = endpoint.stats.bodies
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    again = read_row(await grade(tmp_path, logprobs=True, run_id="run-2"), "accuracy")
    assert len(endpoint.stats.bodies) == 1, "the reply is stored"
    assert {**again, "call_id": ""} == {**first, "call_id": "", **({"run_id": "run-2"} if "run_id" in first else {})}
    asked, reused = read_calls(tmp_path)
    assert (asked["status"], reused["status"]) == ("ok", "cached")
    assert orjson.loads(asked["logprobs"])[0]["tokens"] == ["7"]
    assert (reused["logprobs"], reused["reused_call_id"]) == (None, asked["call_id"])


async def test_off_by_default_and_then_nothing_changes(endpoint: Endpoint, tmp_path: Path) -> None:
    script(endpoint, Raw(body=build_body(*SEVEN)))
    row = read_row(await grade(tmp_path), "accuracy")
    assert (row["said"], row["rating"], row["rule"]) == (7, 7, None)
    (body,) = endpoint.stats.bodies
    assert body.keys().isdisjoint(("logprobs", "top_logprobs"))
    (call,) = read_calls(tmp_path)
    assert call["logprobs"] is None, "not even where the endpoint gives them unasked"


async def test_the_option_belongs_to_the_question_and_to_no_other(endpoint: Endpoint, tmp_path: Path) -> None:
    script(endpoint, Raw(body=build_body(*SEVEN)))
    for logprobs in (False, True, False):
        await grade(tmp_path, logprobs=logprobs)
    plain, weighed, reused = read_calls(tmp_path)
    assert plain["request_hash"] != weighed["request_hash"]
    assert reused["reused_call_id"] == plain["call_id"]
    script(endpoint, '{"answer_validity": {"reason": "It names the year.", "verdict": true}}')
    await grade(tmp_path, "answer_validity", logprobs=False)
    await grade(tmp_path, "answer_validity", logprobs=True)
    assert len(endpoint.stats.bodies) == 3, "a flag is the same question with the option"


@pytest.mark.parametrize(
    "parameters", [{}, {"temperature": 0.0}, {"temperature": 0.5, "max_tokens": 9}, {"reasoning_effort": "low"}]
)
def test_requests_keep_their_keys(endpoint: Endpoint, parameters: dict[str, object]) -> None:
    """A key made in another way would ask about everything stored again."""
    judge = make_openai_judge("openai:judge", "judge", make_settings(**parameters))
    data = {"question": "Q?", "text": "T."}
    question = Question(step="grade_x", sample_id="s1", prompt=PROMPTS["extract"], data=data)
    keyed: list[object] = [
        endpoint.base_url, "judge", parameters, None, PROMPTS["extract"].prompt_hash, 1, 1, [],
        PROMPTS["extract"].render(data)[-1].content,
    ]  # fmt: skip
    assert judge.prepare(question).request_hash == hash_canonical(keyed)
    assert judge.prepare(replace(question, logprobs=True)).request_hash == hash_canonical([*keyed, "logprobs"])


@pytest.mark.parametrize("refusal", [
    make_error(400, "Unrecognized request argument supplied: logprobs"),
    make_error(400, "Unsupported parameter.", param="top_logprobs", code="unsupported_parameter"),
    make_error(403, "You are not allowed to request logprobs from this model"),
    make_error(422, "body.logprobs: Extra inputs are not permitted"),
])  # fmt: skip
async def test_an_endpoint_that_refuses_the_option_is_asked_without_it(
    endpoint: Endpoint, tmp_path: Path, refusal: Raw
) -> None:
    def answer(asked: Asked) -> Raw:
        return refusal if "logprobs" in asked.body else Raw(body=build_body(*SEVEN, logprobs=None))

    script(endpoint, answer)
    for work in await grade_all(tmp_path, n=2, logprobs=True):
        row = read_row(work, "accuracy")
        assert (row["said"], row["rating"]) == (7, 7)
        assert row["rule"] == "as written: the endpoint gave no log-probabilities"
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "ok", "ok"]
    assert ["logprobs" in body for body in endpoint.stats.bodies] == [True, False, False]


async def test_a_reply_off_the_scale_is_asked_again_with_any_tokens(endpoint: Endpoint, tmp_path: Path) -> None:
    eleven = build_body(*RATED, {"11": 0.5, "7": 0.5}, "}}")
    endpoint.configure(script={"other": [Raw(body=eleven), Raw(body=build_body(*SEVEN))]})
    row = read_row(await grade(tmp_path, logprobs=True), "accuracy")
    assert (row["said"], row["rating"]) == (7, pytest.approx(SEVEN_MEAN, abs=1e-5))
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "ok"]


async def ask(endpoint: Endpoint, judge: Any) -> ModelReply:  # noqa: ANN401  # any chat model's judge
    script(endpoint, Raw(body=build_body(*SEVEN)))
    data = {"question": "Q?", "ground_truth": "G.", "answer": "A."}
    question = Question(step="grade_accuracy", sample_id="s1", prompt=PROMPTS["accuracy"], data=data, logprobs=True)
    try:
        reply: ModelReply = await judge.reply(judge.prepare(question))
    finally:
        await judge.close()
    return reply


async def test_both_ways_send_the_option_and_read_the_same(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    short = await ask(endpoint, make_openai_judge("openai:judge", "judge", make_settings()))
    monkeypatch.setattr(chat_model, "is_traced", lambda: True)
    long = await ask(endpoint, make_openai_judge("openai:judge", "judge", make_settings()))
    one, other = endpoint.stats.bodies
    assert one == {name: value for name, value in other.items() if name != "stream"}
    assert one["top_logprobs"] == 20
    assert short.logprobs is not None
    assert short.logprobs == long.logprobs


async def test_a_factorys_other_model_is_not_asked_for_them(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(judge_factories.settings, "replies", [orjson.dumps(rate(7)).decode()])
    judge = make_factory_judge("judge_factories:make_fake", make_settings())
    row = read_row(await grade(tmp_path, judge=judge, logprobs=True), "accuracy")
    assert (row["rating"], row["rule"]) == (7, "as written: the endpoint gave no log-probabilities")
    (call,) = read_calls(tmp_path)
    assert "logprobs" not in orjson.loads(call["request"])
    assert not endpoint.stats.bodies
