"""The number of requests of an evaluation, counted at the endpoint: six a sample, five with a stored ground truth,
three where the contexts stay as well, none for a dataset that has not changed, and never one twice; and the fused plan:
one request for classify, attribute and rank, with the verdicts, rules and record of the three.

What is right by the fused plan is what the separate plan does with the same judge: with the lexical one each row must
be the same.
"""

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from cli_house import make_rows, place_at, write_dataset
from endpoint import Asked, Endpoint, Inject, Raw
from endpoint_replies import Choice, build_completion, compose_reply, parse_blocks
from live_runs import (
    ScriptedJudge,
    ask_fully,
    judge_one,
    judge_samples,
    judge_with,
    lay_out_run,
    make_sample,
    make_settings,
    point_to,
    read_calls,
    read_detail,
    read_labels,
    read_outcomes,
    read_ranks,
    read_useful,
    say_good,
    say_rows,
)
from prompt_files import read_content, write_prompt
from warehouse_runs import make_run

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import prepare_run
from evalhouse.flows.preparing.request import RunRequest, resolve_settings
from evalhouse.prompts import BlockValue, Item, Prompt, list_ids, list_languages, load_prompts
from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.judge.protocol import FatalJudgeError, Question
from evalhouse.tasks.lexical.judge import LexicalJudge
from evalhouse.tasks.models import make
from evalhouse.tasks.models.chat import ChatModelJudge, make_openai_judge
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.pipeline.live_run import SampleWork
from evalhouse.warehouse.metric_files import load_metrics, plan_run
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

MORE_THAN_ONE = ("several right answers", "a refusal", "no answer", "silent answer")
TABLES = ("statements", "classifications", "attributions", "context_verdicts", "outcomes", "votes")
EDGES: Mapping[str, dict[str, Any]] = {
    "nothing retrieved": {"contexts": []},
    "no contexts": {"contexts": None},
    "no answer": {"answer": None},
    "silent answer": {"answer": ""},
    "no ground truth": {"ground_truth": None},
    "silent ground truth": {"ground_truth": ""},
    "silence on both sides": {"answer": "", "ground_truth": ""},
    "several right answers": {
        "metadata_json": orjson.dumps({"ground_truths": [make_sample().ground_truth, "It is of 1911."]}).decode()
    },
    "a refusal": {"answer": "I am sorry, I cannot answer that."},
    "larger than a request": {"contexts": ["Lighthouse 1 was built in 1911. Fish soup is good. " * 40]},
}  # fmt: skip


def read_rows(works: Sequence[SampleWork]) -> dict[str, list[str]]:
    """All rows by table, but for the calls, which are others by their nature."""
    return {
        table: sorted(
            orjson.dumps({name: value for name, value in row.items() if name != "call_id"}).decode()
            for work in works
            for row in work.rows[table]
            if row.get("step") != "fused"
        )
        for table in TABLES
    }


async def judge_by(folder: Path, plan: str, samples: Sequence[StoredSample], **settings: Any) -> list[SampleWork]:  # noqa: ANN401
    settings = {"judge": "lexical", "plan": plan, **settings}
    async with lay_out_run(folder / plan, make_settings(**settings), judge=LexicalJudge()) as live_run:
        return await judge_samples(live_run, samples)


async def test_the_sample_dataset_gets_the_same_rows_by_both_plans(tmp_path: Path) -> None:
    staged = stage_dataset("sample", mapping={}, limit=None)
    samples = [sample for some in staged.staging.read_parts() for sample in some]
    staged.staging.discard()
    separate = await judge_by(tmp_path, "separate", samples)
    fused = await judge_by(tmp_path, "fused", samples)
    assert len(samples) == 81
    assert read_rows(fused) == read_rows(separate)
    calls = read_calls(tmp_path / "fused")
    by_id = {call["call_id"]: call["step"] for call in calls}
    for table in ("classifications", "attributions", "context_verdicts"):
        steps = [by_id.get(row["call_id"]) for work in fused for row in work.rows[table]]
        assert steps.count("fused") > 0.8 * len(steps), "each verdict has the call of the reply that gave it"
    assert sum(call["step"] == "fused" for call in calls) >= 60


@pytest.mark.parametrize("edge", EDGES)
async def test_what_is_odd_about_a_sample_is_settled_by_the_same_rules(tmp_path: Path, edge: str) -> None:
    sample = make_sample(**EDGES[edge])
    separate = await judge_by(tmp_path, "separate", [sample], request_tokens=500)
    fused = await judge_by(tmp_path, "fused", [sample], request_tokens=500)
    assert read_rows(fused) == read_rows(separate)
    n_fused = sum(call["step"] == "fused" for call in read_calls(tmp_path / "fused"))
    assert n_fused == (edge in MORE_THAN_ONE), "of the others one step is open, or none, or they are split"
    why = [row["detail"] for work in fused for row in work.rows["outcomes"] if row["step"] == "fused"]
    assert ["go into one request: asked by the separate steps" in detail for detail in why] == [True] * edge.startswith(
        "larger"
    )


async def count_steps(
    folder: Path, samples: Sequence[StoredSample], *, run_id: str = "run-1", metrics: Sequence[str] = ()
) -> dict[str, float]:
    """Requests a sample by step, of one run by the fused plan."""
    async with lay_out_run(folder, make_settings(plan="fused"), run_id=run_id, metrics=metrics) as live_run:
        works = await judge_samples(live_run, samples)
    assert {row["reason"] for work in works for row in work.rows["outcomes"]} == {None}
    sent = [call for call in read_calls(folder) if call["run_id"] == run_id and call["reused_call_id"] is None]
    steps = [call["step"] for call in sent]
    return {step: steps.count(step) / len(samples) for step in dict.fromkeys(sorted(steps))}


async def test_the_first_night_takes_two_requests_a_sample_a_changed_answer_two_shorter_ones_and_the_same_again_none(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    samples = [make_sample(number) for number in range(1, 7)]
    first = await count_steps(tmp_path, samples)
    assert first == {"extract_answer": 1, "fused": 1}
    changed = [replace(sample, answer=f"It was built in 191{sample.ordinal}.") for sample in samples]
    assert await count_steps(tmp_path, changed, run_id="run-2") == {"extract_answer": 1, "fused": 1}
    assert await count_steps(tmp_path, changed, run_id="run-3") == {}
    assert endpoint.stats.duplicates == 0


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (["factual_f1"], {"extract_answer", "extract_ground_truth", "classify"}),
        (["faithfulness", "context_recall"], {"extract_answer", "extract_ground_truth", "attribute_answer",
                                              "attribute_ground_truth"}),
        (["context_precision", "context_recall"], {"extract_ground_truth", "fused"}),
        (["factual_f1", "context_precision"], {"extract_answer", "fused"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)  # fmt: skip
async def test_only_what_the_metrics_rest_on_is_asked(
    tmp_path: Path, metrics: list[str], expected: set[str], endpoint: Endpoint
) -> None:
    assert set(await count_steps(tmp_path, [make_sample()], metrics=metrics)) == expected


async def test_a_part_is_asked_for_by_name_and_with_no_more_than_it_rests_on(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good)
    work = await judge_one(tmp_path, judge=judge, metrics=("context_precision", "context_recall"), plan="fused")
    (asked,) = [question for question in judge.asked if question.step == "fused"]
    assert asked.only == ("supports G1", "supports G2", "C1", "C2", "C3")
    assert asked.data["answer_statements"] == []
    assert set(read_outcomes(work)) == {"extract_ground_truth", "attribute_ground_truth", "rank"}
    assert read_labels(work) == {}


async def test_the_ground_truth_is_not_sent_where_no_context_is_rated(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good)
    await judge_one(tmp_path, judge=judge, metrics=("factual_f1", "faithfulness"), plan="fused")
    assert [question.data["ground_truth"] for question in judge.asked if question.step == "fused"] == [""]


async def test_what_a_reply_lacks_is_asked_for_alone(tmp_path: Path) -> None:
    lost = {"A2", "supports G1", "C3"}

    def forget(question: Question) -> str:
        if question.only:
            return say_good(question)
        message = [name for name in ask_fully(question) if name not in lost]
        return say_good(replace(question, only=tuple(message)))

    judge, work = await judge_with(tmp_path, {"fused": forget}, plan="fused")
    first, second = [question for question in judge.asked if question.step == "fused"]
    assert (first.only, set(second.only)) == ((), lost)
    assert set(read_outcomes(work).values()) == {None}
    # The label of A2 rests on all of the other side, the support of G1 on all contexts, C3 on the ground truth.
    ids = {name: [item.id for item in value] for name, value in second.data.items() if not isinstance(value, str)}
    assert ids == {"contexts": ["C1", "C2", "C3"], "answer_statements": ["A2"], "ground_truth_statements": ["G1", "G2"]}
    assert len({row["call_id"] for row in work.rows["classifications"]}) == 2


async def test_a_part_that_is_never_given_fails_its_step_alone(tmp_path: Path) -> None:
    def withhold(question: Question) -> str:
        named = [name for name in question.only or ask_fully(question) if name != "C3"]
        return say_rows(named, support="C1")

    _, work = await judge_with(tmp_path, {"fused": withhold}, plan="fused", attempts=2)
    assert read_outcomes(work) | {"similarity": None} == {
        "extract_answer": None, "extract_ground_truth": None, "classify": None, "attribute_answer": None,
        "attribute_ground_truth": None, "rank": "judge_failed", "similarity": None,
    }  # fmt: skip
    assert read_useful(work) == {}
    assert set(read_labels(work)) == set(read_ranks(work)) == {"A1", "A2", "G1", "G2"}


async def test_a_cut_reply_keeps_what_is_complete_and_the_rest_is_asked_for(endpoint: Endpoint, tmp_path: Path) -> None:
    sample = make_sample(contexts=[f"Lighthouse 1 was built in 1911, says page {page}." for page in range(8)])
    whole = await judge(tmp_path / "whole", sample)

    def cut(asked: Asked) -> Raw:
        written = orjson.dumps(compose_reply(asked)).decode()
        choice = Choice(content=written[:300], finish_reason="length" if len(written) > 300 else "stop")
        return Raw(body=build_completion(asked, choice, 1, 0))

    endpoint.configure(script={"fused": cut})
    work = await judge(tmp_path / "cut", sample, attempts=2)
    assert set(read_outcomes(work).values()) == {None}
    assert read_rows([work]) == read_rows([whole])
    assert sum("cut off" in str(call["error"]) for call in read_calls(tmp_path / "cut")) > 0


async def test_ids_stand_in_the_place_of_reasons_in_favour_and_words_behind_all_others(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    contexts = ["Lighthouse 1 was built in 1911 by Ode Varn.", "Fish soup needs fresh dill."]
    work = await judge(tmp_path, make_sample(answer="It was painted blue by Ode Varn.", contexts=contexts))
    reply = orjson.loads(next(call["reply"] for call in read_calls(tmp_path) if call["step"] == "fused"))
    rows = {row[0]: row for row in reply["verdicts"]}
    columns = {"classifications": "label", "attributions": "supported", "context_verdicts": "useful"}
    written = {
        (table, row.get("statement_id") or f"C{row['context_rank']}"): (row[column], str(row["reason"]))
        for table, column in columns.items()
        for row in work.rows[table]
    }
    assert {verdict for verdict, _ in written.values()} >= {"FP", "FN", True, False}
    for (table, item), (verdict, reason) in written.items():
        assert bool(list_ids(reason)) == (verdict in ("TP", True)), "ids in favour, and words against"
        cell = rows[item][3 if table == "attributions" else 1]
        assert reason.replace(", ", " ") in cell, "and as in the reply"


async def test_votes_decide_on_each_verdict_and_are_kept_for_its_step(tmp_path: Path) -> None:
    def waver(question: Question) -> str:
        written: Any = orjson.loads(say_good(question))
        for row in written["verdicts"]:
            if row[0] == "A1" and question.vote == 2:
                row[2] = "FP"
            if row[0] == "C2" and question.vote != 2:
                row[2] = "not_useful"
            if row[0] == "G1" and question.vote == 1:
                row[3] = "none: no context states it"
        return orjson.dumps(written).decode()

    _, work = await judge_with(tmp_path, {"fused": waver}, plan="fused", votes=3)
    assert read_labels(work)["A1"] == "TP"
    assert read_useful(work) == {1: True, 2: False, 3: True}
    assert read_ranks(work)["G1"] == [1]
    against = {(row["step"], row["item_id"], row["vote"]) for row in work.rows["votes"] if not row["agrees"]}
    assert against == {("classify", "A1", 2), ("rank", "C2", 2), ("attribute", "G1", 1)}
    assert len(work.rows["votes"]) == 3 * (4 + 4 + 3)


def test_a_request_for_all_contexts_and_one_for_each_exclude_each_other() -> None:
    with pytest.raises(SettingsError, match="one request for all contexts is the opposite of one for each"):
        resolve_settings({"plan": "fused", "contexts_alone": True})
    with pytest.raises(SettingsError, match=r"plan.*separate.*fused"):
        resolve_settings({"plan": "both"})


@pytest.mark.parametrize(("own", "metrics", "message"), [
    (("classify",), (), "your own classify.yaml; write your words into extract_both.yaml, fused.yaml there"),
    (("extract", "fused"), (), "your own extract.yaml; write your words into extract_both.yaml there"),
    (("extract", "rank", "fused", "extract_both"), (), None),
    (("extract", "classify"), ("context_recall", "context_precision"), None),
])  # fmt: skip
def test_words_that_a_plan_does_not_ask_with_are_named(
    tmp_path: Path, own: Sequence[str], metrics: Sequence[str], message: str | None
) -> None:
    """The last case's metrics need neither the answer nor labels, so that `extract` asks by itself."""
    point_to("http://127.0.0.1:9/v1")
    for name in own:
        write_prompt(tmp_path / "words", read_content(name) | {"version": 99})
    dataset = write_dataset(tmp_path, [{"question": "When?", "answer": "At 9.", "ground_truth": "At 9."}])
    written = {}
    for plan in ("separate", "fused"):
        settings = make_settings(
            dataset=str(dataset), plan=plan, prompts=str(tmp_path / "words"), metrics=tuple(metrics)
        )
        request = RunRequest(settings=settings, source=str(dataset))
        prepared = prepare_run(request, Warehouse(str(tmp_path / "none.duckdb")))
        written[plan] = prepared.notices
    assert written["separate"] == ()
    assert written["fused"] == (() if message is None else (f"plan 'fused': it does not ask with {message}",))


def test_one_request_goes_to_one_judge_that_can_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan_run((), load_metrics())
    with pytest.raises(FatalJudgeError, match="asks classify, attribute, rank in one request, which goes to one judge"):
        make_judges(make_settings(judge="lexical,rank=openai:judge", plan="fused"), whole)

    class PairJudge(LexicalJudge):
        tasks = LexicalJudge.tasks - {"fused"}

    monkeypatch.setattr(make, "make_judge", lambda _: PairJudge())
    with pytest.raises(FatalJudgeError, match="the judge 'lexical' takes one step at a time; leave plan 'fused' out"):
        make_judges(make_settings(judge="lexical", plan="fused"), whole)


STEPS = ("extract_answer", "extract_ground_truth")


async def judge(folder: Path, sample: StoredSample, **further: Any) -> SampleWork:  # noqa: ANN401  # a run's id, settings
    return await judge_one(folder, sample, plan="fused", **further)


def read_statements(work: SampleWork) -> dict[str, list[str]]:
    rows = work.rows["statements"]
    return {
        source: [str(row["text"]) for row in rows if row["source"] == source] for source in ("answer", "ground_truth")
    }


def list_sent(folder: Path, run_id: str = "run-1") -> list[dict[str, Any]]:
    """The requests that split texts, less the halves of a reply that have separate rows."""
    return [
        call
        for call in read_calls(folder)
        if call["run_id"] == run_id and call["step"] in STEPS and call["reused_call_id"] is None
    ]


async def test_one_request_gives_the_statements_of_both_texts(endpoint: Endpoint, tmp_path: Path) -> None:
    sample = make_sample(answer="It is red. It is 40 m high.", ground_truth="It is red. It was built in 1911.")
    work = await judge(tmp_path, sample)
    assert read_statements(work) == {
        "answer": ["It is red.", "It is 40 m high."],
        "ground_truth": ["It is red.", "It was built in 1911."],
    }
    (sent,) = list_sent(tmp_path)
    assert {row["call_id"] for row in work.rows["statements"]} == {sent["call_id"]}
    assert (sent["prompt"], orjson.loads(sent["reply"]).keys()) == ("extract_both", {"answer", "ground_truth"})
    assert endpoint.stats.kinds == {"extract_both": 1, "fused": 1}


@pytest.mark.parametrize("changed", ["answer", "ground_truth"])
async def test_where_one_text_is_new_the_other_ones_statements_are_those_on_record(
    changed: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    kept = "ground_truth" if changed == "answer" else "answer"
    sample = make_sample()
    first = await judge(tmp_path, sample)
    (both,) = list_sent(tmp_path)

    def split_otherwise(asked: Asked) -> dict[str, Any]:
        return {name: [f"Another statement of the {name}."] for name in ("answer", "ground_truth")}

    endpoint.configure(script={"extract_both": split_otherwise})
    later = await judge(tmp_path, replace(sample, **{changed: "It is a new one."}), run_id="run-2")
    assert read_statements(later) == {
        kept: read_statements(first)[kept],
        changed: [f"Another statement of the {changed}."],
    }
    (sent,) = list_sent(tmp_path, "run-2")
    assert f"<{kept} " in (message := orjson.loads(sent["request"])["messages"][-1]["content"])
    assert str(getattr(sample, kept)) not in message, "the stored text is not sent"
    (reused,) = [call for call in read_calls(tmp_path) if call["run_id"] == "run-2" and call["status"] == "cached"]
    assert reused["reused_call_id"] == both["call_id"], "lineage leads to the request that asked for both"
    assert {row["call_id"] for row in later.rows["statements"]} == {sent["call_id"], reused["call_id"]}


async def test_a_run_that_was_killed_before_the_halves_were_on_record_finds_the_whole(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(Asker, "keep_part", lambda *_, **__: None)
        first = await judge(tmp_path, make_sample())
    n_asked = endpoint.stats.requests
    again = await judge(tmp_path, make_sample(), run_id="run-2")
    assert endpoint.stats.requests == n_asked
    assert read_statements(again) == read_statements(first)
    later = await judge(tmp_path, make_sample(answer="It is a new one."), run_id="run-3")
    assert read_statements(later)["ground_truth"] == read_statements(first)["ground_truth"]
    assert len(list_sent(tmp_path, "run-3")) == 1


async def test_one_ground_truth_of_several_samples_is_split_once(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(latency=0.05)
    samples = [make_sample(1), replace(make_sample(1), sample_id="s2", ordinal=2, answer="It is a new one.")]
    async with lay_out_run(tmp_path, make_settings(plan="fused")) as live_run:
        first, second = await judge_samples(live_run, samples)
    assert read_statements(first)["ground_truth"] == read_statements(second)["ground_truth"]
    assert read_statements(second)["answer"] == ["It is a new one."]
    asked = [parse_blocks(orjson.loads(call["request"])["messages"][-1]["content"]) for call in list_sent(tmp_path)]
    assert sorted(bool(blocks["ground_truth"]) for blocks in asked) == [False, True]


def cut_off(asked: Asked) -> Raw | None:
    """Replies about both texts are cut off, those about one are not."""
    if not all(asked.blocks[name] for name in ("answer", "ground_truth")):
        return None
    written = orjson.dumps(compose_reply(asked)).decode()
    return Raw(body=build_completion(asked, Choice(content=written[:-20], finish_reason="length"), 1, 0))


def leave_one_out(asked: Asked) -> dict[str, Any] | None:
    return {"answer": ["It is red."]} if asked.blocks["answer"] and asked.blocks["ground_truth"] else None


def refuse_both(asked: Asked) -> Inject | None:
    return Inject(fault="refusal") if asked.blocks["answer"] and asked.blocks["ground_truth"] else None


@pytest.mark.parametrize("trouble", [cut_off, leave_one_out, refuse_both])
async def test_an_unusable_joint_reply_is_asked_text_by_text(
    trouble: Any,  # noqa: ANN401
    endpoint: Endpoint,
    tmp_path: Path,
) -> None:
    whole = await judge(tmp_path / "whole", make_sample())
    endpoint.configure(script={"extract_both": trouble})
    work = await judge(tmp_path / "odd", make_sample(), attempts=2)
    assert set(read_outcomes(work).values()) == {None}
    assert read_statements(work) == read_statements(whole)
    assert read_detail(work, "extract_answer").startswith("both texts in one request: ")
    usable = [call["step"] for call in list_sent(tmp_path / "odd") if call["status"] == "ok"]
    assert sorted(usable) == list(STEPS)


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_a_text_that_was_given_the_words_of_the_other_is_asked_for_again_alone(
    language: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    texts = {
        "en": ("It reaches about as far as one can see. Fishermen paid for it.", "Its light carries 30 km over water."),
        "zh": ("灯光照得到目力所及之处，由渔民出资。", "光程三十公里，一九六二年点亮。"),
    }[language]
    sample = make_sample(answer=texts[0], ground_truth=texts[1])

    def mix(asked: Asked) -> dict[str, Any] | None:
        is_both = asked.blocks["answer"] and asked.blocks["ground_truth"]
        return {"answer": [texts[1]], "ground_truth": [texts[1]]} if is_both else None

    endpoint.configure(script={"extract_both": mix})
    work = await judge(tmp_path, sample)
    assert texts[1] not in read_statements(work)["answer"]
    assert read_statements(work)["ground_truth"] == [text for text in texts[1:] if text]
    assert "a statement of the answer has words of the ground_truth" in read_detail(work, "extract_answer")
    assert len(list_sent(tmp_path)) == 3
    n_asked = endpoint.stats.requests
    await judge(tmp_path, sample, run_id="run-2")
    assert endpoint.stats.requests == n_asked, "statements of both texts are not asked for again either"


async def test_statements_of_both_texts_are_not_mixing(endpoint: Endpoint, tmp_path: Path) -> None:
    both = "The light of the tower at Cape Tarn carries 30 km over water."
    work = await judge(tmp_path, make_sample(answer=both, ground_truth=both))
    assert read_statements(work) == {"answer": [both], "ground_truth": [both]}
    assert len(list_sent(tmp_path)) == 1


async def test_texts_that_are_too_long_for_one_request_are_asked_for_in_parts(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    long = " ".join(f"Lamp {number} burns oil and nothing else." for number in range(90))
    work = await judge(tmp_path, make_sample(answer=long), request_tokens=500)
    assert len(read_statements(work)["answer"]) == 90
    assert set(read_outcomes(work).values()) == {None}
    asked = [parse_blocks(orjson.loads(call["request"])["messages"][-1]["content"]) for call in list_sent(tmp_path)]
    assert len(asked) >= 3
    assert not any(blocks["answer"] and blocks["ground_truth"] for blocks in asked)


CHAT = "/v1/chat/completions"
METRICS = ("answer_correctness", "context_recall", "context_precision", "faithfulness")
N = 4
SIX = {"extract": 2, "classify": 1, "attribute": 2, "rank": 1}


async def count_requests(
    endpoint: Endpoint,
    folder: Path,
    samples: Sequence[StoredSample],
    *,
    run_id: str = "run-1",
    metrics: Sequence[str] = METRICS,
    **settings: Any,  # noqa: ANN401  # fields of RunSettings
) -> Mapping[str, float]:
    """Requests a sample by kind, of one run over samples in the warehouse of `folder`."""
    before = endpoint.stats.kinds.copy()
    async with lay_out_run(folder, make_settings(**settings), run_id=run_id, metrics=metrics) as live_run:
        works = await judge_samples(live_run, samples)
        asked = endpoint.stats.kinds - before
        assert live_run.asker.counts.requests == asked.total()
    assert all(row["reason"] is None for work in works for row in work.rows["outcomes"])
    assert endpoint.stats.duplicates == 0
    return {kind: count / len(samples) for kind, count in asked.items()}


@pytest.mark.parametrize(("metrics", "n_contexts"), [(METRICS, 3), ((), 40)])
async def test_any_metrics_and_contexts_take_six_requests_a_sample(
    endpoint: Endpoint, tmp_path: Path, metrics: tuple[str, ...], n_contexts: int
) -> None:
    contexts = [f"Lighthouse {place} was built on a cape." for place in range(n_contexts)]
    samples = [make_sample(number, contexts=contexts) for number in range(1, N + 1)]
    assert await count_requests(endpoint, tmp_path, samples, metrics=metrics) == SIX
    assert endpoint.stats.requests == {CHAT: 6 * N}


@pytest.mark.parametrize(("changes", "expected"), [
    ({"answer": "It was built in 1911 by Ode Varn."}, {"extract": 1, "classify": 1, "attribute": 1}),
    ({"contexts": ["Fish soup is served on Mondays."]}, {"attribute": 2, "rank": 1}),
    ({"ground_truth": "It was built in 1912."}, {"extract": 1, "classify": 1, "attribute": 1, "rank": 1}),
    ({"question": "Who built it?"}, SIX),
], ids=["answer", "contexts", "ground truth", "question"])  # fmt: skip
async def test_a_change_costs_what_rests_on_it(
    endpoint: Endpoint, tmp_path: Path, changes: dict[str, Any], expected: dict[str, int]
) -> None:
    await count_requests(endpoint, tmp_path, [make_sample()])
    assert await count_requests(endpoint, tmp_path, [make_sample(**changes)], run_id="run-2") == expected


@pytest.mark.slow
def test_the_command_takes_six_then_none_then_five(endpoint: Endpoint, tmp_path: Path, prefect_home: Path) -> None:
    place = place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=N)
    changed = [
        {**row, "answer": f"{row['answer']} It came by night.", "contexts": [*row["contexts"], "Nets dry here."]}
        for row in make_rows(N)
    ]
    write_dataset(tmp_path, changed, "changed.jsonl")
    for dataset, expected in (("berths", 6 * N), ("berths", 0), ("changed", 5 * N)):
        before = endpoint.stats.requests.total()
        finished = place.call(
            "run", f"{dataset}.jsonl", "--judge", "openai:judge", "--metrics", ",".join(METRICS), "--json"
        )
        assert finished.document["status"] == "completed", finished.stderr
        assert endpoint.stats.requests.total() - before == expected == finished.document["calls"]["requests"]
    assert endpoint.stats.duplicates == 0


PROMPTS = [prompt for language in list_languages() for prompt in load_prompts(language).values()]
IDS = [f"{prompt.language} {prompt.name}" for prompt in PROMPTS]
_PREFIXES = {
    "conversation": "T", "contexts": "C", "old_contexts": "O", "answer_statements": "A", "ground_truth_statements": "G",
    "questions": "Q",
}  # fmt: skip


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "sk-test-0123456789")


@functools.cache
def make_judge() -> ChatModelJudge:
    return make_openai_judge("openai:judge", "judge", make_settings())


def prepare(prompt: Prompt, word: str, n_items: int = 2, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of Question
    """Return the messages of a question about a sample: texts about a word, lists of so many items."""
    data: dict[str, BlockValue] = {
        name: f"About the {word}: {name}."
        if kind == "text"
        else [Item(id=f"{_PREFIXES[name]}{place}", text=f"{word} {place}") for place in range(1, n_items + 1)]
        for name, kind in prompt.variables.items()
    }
    return dict(make_judge().prepare(Question(step="any", sample_id=word, prompt=prompt, data=data, **changes)).payload)


def join(payload: dict[str, Any]) -> str:
    """The messages as one text, in their order, as a provider reads them."""
    return "".join(f"<{message['role']}>{message['content']}" for message in payload["messages"])


def count_shared(payloads: Sequence[dict[str, Any]]) -> int:
    """Return how many characters the messages of all requests begin with in common."""
    columns = zip(*(join(payload) for payload in payloads), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda characters: len(set(characters)) == 1, columns))


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_requests_about_different_samples_differ_in_their_data_alone(prompt: Prompt) -> None:
    payloads = [prepare(prompt, word, n) for word, n in (("lamp", 1), ("灯塔", 3), ("harbour", 12))]
    beginnings = [payload["messages"][:-1] for payload in payloads]
    assert beginnings[0] == beginnings[1] == beginnings[2]
    # All that is there before the first block of data, and the block's name.
    opening = sum(len(message["content"]) for message in beginnings[0])
    assert count_shared(payloads) > opening + len(next(iter(prompt.variables)))
    rest = [{name: payload[name] for name in payload if name != "messages"} for payload in payloads]
    assert orjson.dumps(rest[0]) == orjson.dumps(rest[1]) == orjson.dumps(rest[2])
    usual = [prepare(prompt, "lamp"), prepare(prompt, "harbour")]
    assert count_shared(usual) > 0.8 * max(len(join(payload)) for payload in usual)


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_a_request_that_is_repeated_shares_all_but_what_is_added(prompt: Prompt) -> None:
    plain = prepare(prompt, "lamp")
    for changes in ({"note": "Reply again."}, {"only": ("A1", "C1")}):
        assert count_shared([plain, prepare(prompt, "lamp", **changes)]) == len(join(plain))
    assert prepare(prompt, "lamp", vote=1)["messages"] == prepare(prompt, "lamp", vote=2)["messages"]


async def test_cached_tokens_are_counted_by_call_by_step_and_in_all(endpoint: Endpoint, tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, make_settings(concurrency=1)) as live_run:
        await judge_samples(live_run, [make_sample(number) for number in range(1, 9)])
        counts = live_run.asker.counts
    warehouse = Warehouse(str(tmp_path / "w.duckdb"))
    insert_run(warehouse, make_run("run-1"))  # only stored runs have costs
    (calls,) = warehouse.read_rows("select sum(cached_tokens)::bigint as cached, count(*) as n_calls from llm_calls")
    steps = warehouse.read_rows("select step, prompt_tokens, cached_tokens from run_costs")
    assert counts.cached_tokens == endpoint.stats.cached_tokens == calls["cached"]
    assert sum(int(str(step["cached_tokens"])) for step in steps) == counts.cached_tokens
    # Eight samples: each beginning is new once.
    assert counts.cached_tokens > 0.6 * counts.prompt_tokens
    assert all(0 < int(str(step["cached_tokens"])) < int(str(step["prompt_tokens"])) for step in steps)
