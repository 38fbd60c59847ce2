"""The steps of one sample: their verdicts, and the same ids out as in when the judge omits or invents some; steps
beside each other: handing statements over, being spared, being tried again, and ending together; and the tasks of a
shard over a bad provider.

Lists that are split are tested in `test_steps_split`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Endpoint, Inject
from endpoint_replies import Fault
from live_runs import (
    SAMPLE_STEPS,
    ScriptedJudge,
    judge_one,
    judge_samples,
    judge_with,
    lay_out_run,
    make_sample,
    make_settings,
    read_calls,
    read_detail,
    read_joint_ranks,
    read_labels,
    read_outcomes,
    read_ranks,
    read_useful,
    say_good,
    say_verdicts,
)

from evalhouse.flows import shards
from evalhouse.flows.shards import judge_shard, load_step
from evalhouse.tasks.asking.asker import LAST_CHANCE
from evalhouse.tasks.asking.usage import Price
from evalhouse.tasks.attribute import attribute, attribute_statements
from evalhouse.tasks.classify import classify, classify_statements
from evalhouse.tasks.extract import extract, extract_answer, extract_ground_truth
from evalhouse.tasks.judge.protocol import (
    EndpointDown,
    FatalJudgeError,
    JudgeFailed,
    Question,
    RefusedRequest,
    RunCancelled,
    TransientJudgeError,
)
from evalhouse.tasks.pipeline.live_run import (
    RETRIES,
    STEP_OPTIONS,
    LiveRun,
    Shard,
    make_work,
    registered,
    take_shard,
)
from evalhouse.tasks.rank import rank, rank_contexts
from evalhouse.tasks.similarity import compare_meaning, similarity
from evalhouse.warehouse import steps
from evalhouse.warehouse.store import VERDICT_TABLES

DOWN = TransientJudgeError("status 503: down")
# The functions under the tasks, as Prefect calls them.
TASKS = tuple(task.fn for task in (extract, classify, attribute, rank, similarity))
BY_IDS = ("precision_at_k", "mrr", "ndcg_at_k")


pytestmark = pytest.mark.usefixtures("quick_backoff")


@asynccontextmanager
async def lay_shard(
    folder: Path,
    judge: ScriptedJudge | None,
    *,
    n_samples: int = 3,
    **settings: Any,  # noqa: ANN401  # fields of RunSettings
) -> AsyncIterator[tuple[LiveRun, Shard]]:
    """A live run that steps find by its run's id, with one shard; without `judge` the endpoint is asked."""
    async with lay_out_run(folder, make_settings(**{"attempts": 2, **settings}), judge=judge) as live_run:
        works = [make_work(make_sample(number)) for number in range(1, n_samples + 1)]
        shard = live_run.shards[0] = Shard(number=0, first=1, last=n_samples, works=works)
        try:
            with registered(live_run):
                yield live_run, shard
        finally:
            LAST_CHANCE.set(True)


async def take_extraction(live_run: LiveRun, shard: Shard) -> None:
    """Take a step like its task."""
    await extract.fn(live_run.run_id, shard.number)


def break_when(fits: Callable[[Question], bool], error: Exception = DOWN) -> Callable[[Question], str | Exception]:
    return lambda question: error if fits(question) else say_good(question)


def count_rows(shard: Shard) -> dict[str, int]:
    return {table: sum(len(work.rows[table]) for work in shard.works) for table in VERDICT_TABLES}


@pytest.mark.parametrize("ids", [{"context_ids": ["a", "b", "c"], "reference_context_ids": ["b"]}, {}])
async def test_no_metric_by_ids_asks_the_judge(tmp_path: Path, ids: dict[str, Any]) -> None:
    judge = ScriptedJudge(say_good)
    work = await judge_one(tmp_path, make_sample(**ids), judge=judge, metrics=BY_IDS)
    assert judge.asked == []
    assert read_outcomes(work) == {}


async def test_a_sample_is_judged_as_soon_as_its_own_statements_are_there(tmp_path: Path) -> None:
    """The second sample's answer is slow; the first one does not wait for it."""
    judge = ScriptedJudge(say_good)
    async with lay_shard(tmp_path, judge, n_samples=2) as (live_run, shard):
        first, second = shard.works
        steps = [asyncio.create_task(classify_statements(live_run, work)) for work in (first, second)]
        for step in (extract_answer, extract_ground_truth):
            await step(live_run, first)
        await asyncio.wait_for(steps[0], 5)
        assert set(read_labels(first)) == {"A1", "A2", "G1", "G2"}
        await extract_ground_truth(live_run, second)
        await asyncio.sleep(0.05)
        assert not steps[1].done()
        await extract_answer(live_run, second)
        await asyncio.wait_for(steps[1], 5)


async def test_a_cancelled_step_keeps_the_statements_for_others(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, ScriptedJudge(say_good), n_samples=1) as (live_run, shard):
        (work,) = shard.works
        classifying = asyncio.create_task(classify_statements(live_run, work))
        attributing = asyncio.create_task(attribute_statements(live_run, work))
        await asyncio.sleep(0.01)
        classifying.cancel()
        await take_extraction(live_run, shard)
        await asyncio.wait_for(attributing, 5)
    assert read_outcomes(work)["attribute_answer"] is None


@pytest.mark.parametrize(("error", "kind"), [
    (FatalJudgeError("refused the key"), FatalJudgeError),
    (RuntimeError("a bug"), RuntimeError),
    (asyncio.CancelledError(), RunCancelled),
])  # fmt: skip
async def test_any_error_of_splitting_ends_all_waits_for_statements(
    tmp_path: Path, error: BaseException, kind: type[Exception]
) -> None:
    def break_down(question: Question) -> str:
        raise error

    async with lay_shard(tmp_path, ScriptedJudge(break_down)) as (live_run, shard):
        waiting = [
            asyncio.create_task(step(live_run, work))
            for step in (classify_statements, attribute_statements)
            for work in shard.works
        ]
        async with asyncio.timeout(5):
            with pytest.raises(type(error)):
                await take_extraction(live_run, shard)
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {kind}
    assert count_rows(shard) == dict.fromkeys(VERDICT_TABLES, 0)


async def test_a_run_that_is_stopped_lets_no_step_wait(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good, latency_s=60)
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        extraction = asyncio.create_task(take_extraction(live_run, shard))
        others = [
            asyncio.create_task(take_shard(live_run.run_id, shard.number, step))
            for step in (classify_statements, rank_contexts)
        ]
        async with asyncio.timeout(5):
            while not judge.asked:
                await asyncio.sleep(0.01)
        live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=0.05)
        async with asyncio.timeout(5):
            results = await asyncio.gather(extraction, *others, return_exceptions=True)
    assert {(type(result), str(result)) for result in results} == {(RunCancelled, "stopped by SIGINT")}
    # What was in flight is noted as such, and no sample is called judged.
    assert {call["status"] for call in read_calls(tmp_path)} == {"error"}
    assert count_rows(shard)["outcomes"] == 0


async def test_a_second_try_resumes_where_the_first_one_ended(tmp_path: Path) -> None:
    """The endpoint is down for the second sample alone; the steps that wait for it keep waiting."""
    is_down = True
    judge = ScriptedJudge(break_when(lambda question: is_down and question.sample_id == "s2"))
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        waiting = asyncio.create_task(take_shard(live_run.run_id, shard.number, classify_statements))
        async with asyncio.timeout(10):
            with pytest.raises(EndpointDown, match="status 503: down"):
                await take_extraction(live_run, shard)
            assert not waiting.done()
            is_down = False
            judge.asked.clear()
            await take_extraction(live_run, shard)
            await waiting
    extracted = Counter(question.sample_id for question in judge.asked if question.step.startswith("extract"))
    assert extracted == {"s2": 2}
    rows = count_rows(shard)
    assert (rows["statements"], rows["classifications"]) == (12, 12)
    assert rows["outcomes"] == 3 * 3


@pytest.mark.parametrize("step", [classify_statements, attribute_statements, rank_contexts])
async def test_no_row_is_doubled_by_a_try_that_failed_halfway(tmp_path: Path, step: Callable[..., Any]) -> None:
    is_down = True
    kind = step.__name__.partition("_")[0]
    judge = ScriptedJudge(
        break_when(lambda question: is_down and question.step.startswith(kind) and question.sample_id != "s1")
    )
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        await take_extraction(live_run, shard)
        with pytest.raises(EndpointDown):
            await take_shard(live_run.run_id, shard.number, step)
        is_down = False
        for again in SAMPLE_STEPS[1:]:
            await take_shard(live_run.run_id, shard.number, again)
        assert live_run.progress.n_done == 3
    for work in shard.works:
        assert Counter(str(row["step"]) for row in work.rows["outcomes"]).most_common(1)[0][1] == 1
        assert set(read_outcomes(work).values()) == {None}
        assert len(work.done) == len(live_run.tasks)
    assert {name: count_rows(shard)[name] for name in ("statements", "classifications", "attributions")} == {
        "statements": 12, "classifications": 12, "attributions": 12,
    }  # fmt: skip


@pytest.mark.parametrize("down", ["attribute_answer", "attribute_ground_truth"])
async def test_one_text_attributed_while_the_endpoint_was_down_for_the_other_is_left_as_it_is(
    tmp_path: Path, down: str
) -> None:
    is_down = True
    judge = ScriptedJudge(break_when(lambda question: is_down and question.step == down))
    async with lay_shard(tmp_path, judge, n_samples=1) as (live_run, shard):
        await take_extraction(live_run, shard)
        with pytest.raises(EndpointDown):
            await take_shard(live_run.run_id, shard.number, attribute_statements)
        is_down = False
        judge.asked.clear()
        await take_shard(live_run.run_id, shard.number, attribute_statements)
    assert {question.step for question in judge.asked} == {down}
    (work,) = shard.works
    assert sorted(str(row["statement_id"]) for row in work.rows["attributions"]) == ["A1", "A2", "G1", "G2"]
    steps = [row["step"] for row in work.rows["outcomes"] if str(row["step"]).startswith("attribute")]
    assert sorted(map(str, steps)) == ["attribute_answer", "attribute_ground_truth"]


async def test_after_the_last_try_the_samples_have_failed_and_the_run_continues(tmp_path: Path) -> None:
    judge = ScriptedJudge(break_when(lambda question: question.step == "rank" and question.sample_id == "s2"))
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        await take_extraction(live_run, shard)
        for _ in range(2):
            with pytest.raises(EndpointDown):
                await take_shard(live_run.run_id, shard.number, rank_contexts)
        await take_shard(live_run.run_id, shard.number, rank_contexts)
    assert [read_outcomes(work)["rank"] for work in shard.works] == [None, "judge_failed", None]
    assert [len(read_useful(work)) for work in shard.works] == [3, 0, 3]
    assert shard.tries == {"extract_statements": 1, "rank_contexts": 3}


async def test_a_step_without_requests_is_not_done_in_a_stopped_run(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, ScriptedJudge(say_good)) as (live_run, shard):
        live_run.stop(RunCancelled("stopped by SIGTERM"), drain_s=0.0)
        with pytest.raises(RunCancelled, match="SIGTERM"):
            await take_shard(live_run.run_id, shard.number, compare_meaning)


async def run_all(live_run: LiveRun) -> list[Any]:
    """All tasks of the shard side by side, as the flow runs them."""
    async with asyncio.timeout(20):
        return await asyncio.gather(*(task(live_run.run_id, 0) for task in TASKS), return_exceptions=True)


@pytest.mark.parametrize("name", steps.TASKS)
def test_each_step_is_a_task_that_is_tried_again(name: str) -> None:
    task = load_step(name).task
    assert (task.name, task.task_run_name) == (name, f"{name} shard {{shard}}")
    assert (task.retries, task.retry_delay_seconds) == (RETRIES, [5, 30])
    assert task.retry_condition_fn is STEP_OPTIONS["retry_condition_fn"]
    assert task.persist_result is False


async def test_prefect_tries_again_for_an_endpoint_that_is_down_and_for_nothing_else() -> None:
    class State:
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def aresult(self, *, raise_on_failure: bool) -> Exception:
            return self.error

    is_down = STEP_OPTIONS["retry_condition_fn"]
    assert await is_down(None, None, State(EndpointDown("gone")))
    for error in (JudgeFailed("no"), FatalJudgeError("key"), ValueError("bug")):
        assert not await is_down(None, None, State(error))


async def test_a_bug_beside_an_endpoint_that_is_down_lets_go_as_well(tmp_path: Path) -> None:
    """Prefect does not try again after a bug, so no step may keep waiting for the sample that only failed by chance."""

    def says(question: Question) -> str | Exception:
        if question.step != "extract_answer":
            return say_good(question)
        return ValueError("a bug") if question.sample_id == "s1" else TransientJudgeError("status 503")

    async with lay_shard(tmp_path, ScriptedJudge(says), attempts=1) as (live_run, _):
        ended = await run_all(live_run)
        assert type(ended[0]) is ValueError
        assert all(isinstance(result, Exception) for result in ended[1:3])


async def test_stopping_ends_prefects_wait_before_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is here what Prefect makes of it: one that sleeps for the delay and is then called again."""
    waits: list[float] = []

    async def extract_with_retries(run_id: str, number: int) -> None:
        for delay_s in extract.retry_delay_seconds:
            try:
                return await extract.fn(run_id, number)
            except EndpointDown:
                waits.append(delay_s)
                await asyncio.sleep(delay_s)

    def says(question: Question) -> str | Exception:
        return TransientJudgeError("status 503") if question.step == "extract_answer" else say_good(question)

    async def leave_out(*_: object) -> None:
        """Neither load nor write: the shard is laid out by hand."""

    async def call_plainly(called: Any, _id: object, _run: object, parameters: dict[str, Any], *_: object) -> None:  # noqa: ANN401
        await called(*parameters.values())

    tasks: dict[str, Any] = {"extract": extract_with_retries, "classify": classify.fn}
    steps_here = {name: replace(load_step(name), task=task) for name, task in tasks.items()}
    monkeypatch.setattr(shards, "load_step", steps_here.__getitem__)
    monkeypatch.setattr(shards, "write", leave_out)
    monkeypatch.setattr(shards, "run_task_async", call_plainly)
    monkeypatch.setattr(LiveRun, "open_shard", leave_out)
    async with lay_shard(tmp_path, ScriptedJudge(says), attempts=1) as (live_run, shard):
        vars(live_run)["tasks"] = tuple(steps_here)
        judging = asyncio.create_task(judge_shard(live_run, 0))
        await asyncio.sleep(0.2)
        assert waits == [5]
        live_run.stop(RunCancelled("stopped by SIGTERM"), drain_s=1.0)
        with pytest.raises(RunCancelled, match="SIGTERM"):
            async with asyncio.timeout(1):
                await judging
        assert all(work.extractions["answer"].done() for work in shard.works)


FAULTS = (
    "rate_limit", "server_error", "unavailable", "reset", "truncated", "fence", "prose", "missing_id", "doubled_id",
    "invented_id", "unknown_label", "empty", "length",
)  # fmt: skip


async def test_a_bad_provider_costs_no_sample_its_scores_and_nothing_twice(endpoint: Endpoint, tmp_path: Path) -> None:
    faults = dict.fromkeys(FAULTS, 0.3 / len(FAULTS))
    endpoint.configure(latency=0.005, faults=faults, retry_after=0.02, seed=7)
    async with lay_shard(tmp_path, None, n_samples=60, concurrency=16, attempts=8) as (live_run, shard):
        assert await run_all(live_run) == [None] * 5
        reasons = Counter(reason for work in shard.works for reason in read_outcomes(work).values())
        counts = live_run.asker.counts
    assert reasons == {None: 60 * 7}
    assert endpoint.stats.duplicates_answered == 0
    assert endpoint.stats.faults.total() > 300 * 0.3 * 0.6
    sent = endpoint.stats.requests["/v1/chat/completions"]
    calls = read_calls(tmp_path)
    assert len(calls) == counts.requests == sent
    assert all(call["error"] for call in calls if call["status"] != "ok")


ALL_STEPS = (
    "extract_answer", "extract_ground_truth", "classify", "attribute_answer", "attribute_ground_truth", "rank",
    "similarity",
)  # fmt: skip
DONE: dict[str, str | None] = dict.fromkeys(ALL_STEPS)
# By table the steps whose calls its rows name.
CALLED = {
    "statements": {"extract_answer", "extract_ground_truth"}, "classifications": {"classify"},
    "attributions": {"attribute_answer", "attribute_ground_truth"}, "context_verdicts": {"rank"},
}  # fmt: skip
LABELS = {"A1": "TP", "A2": "FP", "G1": "TP", "G2": "FN"}


def read_names(body: Mapping[str, Any]) -> str:
    """Return the ids that a request asks for behind its data."""
    last: str = body["messages"][-1]["content"]
    return last.partition("for these ids only: ")[2].partition(".")[0]


async def test_contexts_that_carry_a_statement_only_together_support_it(tmp_path: Path) -> None:
    def say_joint(question: Question) -> str:
        supports = {
            "A1": {"contexts": ["C2"], "together": ["C1", "C3"]},
            "A2": {"contexts": [], "together": ["C3", "C1"]},
            "G1": {"contexts": [], "together": []},
            "G2": {"contexts": [], "together": ["C1", "C2"]},
        }
        side = "answer_statements" if question.step == "attribute_answer" else "ground_truth_statements"
        return say_verdicts(*({"id": item.id, **supports[item.id]} for item in question.data[side]))  # type: ignore[union-attr]

    _, work = await judge_with(tmp_path, {"attribute": say_joint})
    assert read_ranks(work) == {"A1": [2], "A2": [], "G1": [], "G2": []}
    assert read_joint_ranks(work) == {"A1": [], "A2": [1, 3], "G1": [], "G2": [1, 2]}
    assert {row["statement_id"]: row["supported"] for row in work.rows["attributions"]} == {
        "A1": True, "A2": True, "G1": False, "G2": True,
    }  # fmt: skip


async def test_a_single_context_together_is_asked_about_again_alone(tmp_path: Path) -> None:
    def say_half(question: Question) -> str:
        if question.step == "attribute_ground_truth" or question.number > 1:
            return say_good(question)
        return say_verdicts(
            {"id": "A1", "contexts": [], "together": ["C2"]}, {"id": "A2", "contexts": [], "together": []}
        )

    judge, work = await judge_with(tmp_path, {"attribute": say_half})
    assert [question.only for question in judge.asked if question.step == "attribute_answer"] == [(), ("A1",)]
    assert read_ranks(work)["A1"] == [1]
    assert read_joint_ranks(work)["A1"] == []


async def test_a_sample_takes_six_requests_and_brings_every_verdict_with_its_call(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    work = await judge_one(tmp_path)
    assert endpoint.stats.kinds == {"extract": 2, "classify": 1, "attribute": 2, "rank": 1}
    assert read_outcomes(work) == DONE
    rows = work.rows["statements"]
    statements = sorted((row["statement_id"], row["source"], row["ordinal"], row["text"]) for row in rows)
    assert statements == [
        ("A1", "answer", 1, "Lighthouse 1 was built in 1911."),
        ("A2", "answer", 2, "The architect was Ode Varn1."),
        ("G1", "ground_truth", 1, "Lighthouse 1 was built in 1911."),
        ("G2", "ground_truth", 2, "The builder was Mira Solveng1."),
    ]
    assert read_labels(work) == LABELS
    assert read_ranks(work) == {"A1": [1], "A2": [], "G1": [1], "G2": [2]}
    assert {row["statement_id"]: row["supported"] for row in work.rows["attributions"]} == {
        "A1": True, "A2": False, "G1": True, "G2": True,
    }  # fmt: skip
    assert read_useful(work) == {1: True, 2: True, 3: False}
    assert 0.4 < work.rows["similarities"][0]["value"] < 1.0  # type: ignore[operator]
    steps = {call["call_id"]: call["step"] for call in read_calls(tmp_path)}
    for table, names in CALLED.items():
        assert {steps[str(row["call_id"])] for row in work.rows[table]} == names
        assert all("reason" not in row or row["reason"] for row in work.rows[table])


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"answer": None}, {"extract_answer": "no_answer", "classify": "no_answer", "attribute_answer": "no_answer",
                            "similarity": "no_answer"}),
        ({"ground_truth": None}, {"extract_ground_truth": "no_ground_truth", "classify": "no_ground_truth",
                                  "attribute_ground_truth": "no_ground_truth", "rank": "no_ground_truth",
                                  "similarity": "no_ground_truth"}),
        ({"contexts": None}, dict.fromkeys(["attribute_answer", "attribute_ground_truth", "rank"], "no_contexts")),
        ({"contexts": []}, {}),
        ({"contexts": [], "answer": ""}, {"attribute_answer": "no_statements"}),
        ({"answer": ""}, {"attribute_answer": "no_statements"}),
        ({"answer": "...", "ground_truth": "!"}, dict.fromkeys(
            ["classify", "attribute_answer", "attribute_ground_truth", "rank"], "no_statements")),
        ({"answer": None, "ground_truth": None, "contexts": None}, {
            "extract_answer": "no_answer", "extract_ground_truth": "no_ground_truth", "classify": "no_ground_truth",
            "attribute_answer": "no_answer", "attribute_ground_truth": "no_ground_truth", "rank": "no_ground_truth",
            "similarity": "no_ground_truth"}),
    ],
)  # fmt: skip
async def test_missing_texts_are_noted_once_for_each_step(
    endpoint: Endpoint, tmp_path: Path, changes: dict[str, Any], reasons: dict[str, str]
) -> None:
    work = await judge_one(tmp_path, make_sample(**changes))
    assert Counter(str(row["step"]) for row in work.rows["outcomes"]) == Counter(ALL_STEPS)
    assert read_outcomes(work) == DONE | reasons


async def test_an_empty_retrieval_supports_nothing_without_a_request(endpoint: Endpoint, tmp_path: Path) -> None:
    work = await judge_one(tmp_path, make_sample(contexts=[]))
    assert endpoint.stats.kinds == {"extract": 2, "classify": 1}
    assert read_ranks(work) == {"A1": [], "A2": [], "G1": [], "G2": []}
    rows = work.rows["attributions"]
    assert {(row["supported"], row["reason"], row["call_id"]) for row in rows} == {
        (False, "no context was retrieved", None)
    }
    assert work.rows["context_verdicts"] == []


async def test_an_empty_answer_is_a_refusal_without_a_request(endpoint: Endpoint, tmp_path: Path) -> None:
    work = await judge_one(tmp_path, make_sample(answer=""))
    assert endpoint.stats.kinds == {"extract": 1, "attribute": 1, "rank": 1}
    assert read_labels(work) == {"G1": "FN", "G2": "FN"}
    assert [row["value"] for row in work.rows["similarities"]] == [0]


@pytest.mark.parametrize("metadata", ['{"kind": "unanswerable"}', '{"answerable": false}', '{"answerable": "No"}'])
async def test_the_ground_truth_of_a_question_without_an_answer_states_nothing(
    endpoint: Endpoint, tmp_path: Path, metadata: str
) -> None:
    """evalhouse's own test sets have such questions; an invented answer to one counted in no metric."""
    marked = make_sample(ground_truth=None, metadata_json=metadata)
    work = await judge_one(tmp_path, marked)
    assert set(read_labels(work).values()) == {"FP"}
    assert read_outcomes(work)["classify"] is None
    other = await judge_one(tmp_path, make_sample(ground_truth=None, metadata_json='{"kind": "fact"}'))
    assert read_outcomes(other)["classify"] == "no_ground_truth"


@pytest.mark.parametrize(("changes", "labels", "reasons"), [
    ({"answer": "..."}, {"G1": "FN", "G2": "FN"}, {"attribute_answer": "no_statements"}),
    ({"ground_truth": "..."}, {"A1": "FP", "A2": "FP"},
     {"attribute_ground_truth": "no_statements", "rank": "no_statements"}),
])  # fmt: skip
async def test_where_one_text_says_nothing_all_of_the_other_is_missing_or_unfounded_without_asking(
    endpoint: Endpoint, tmp_path: Path, changes: dict[str, Any], labels: dict[str, str], reasons: dict[str, str]
) -> None:
    work = await judge_one(tmp_path, make_sample(**changes))
    assert read_labels(work) == labels
    assert read_outcomes(work) == DONE | reasons
    assert endpoint.stats.kinds["classify"] == 0
    assert all(row["call_id"] and row["reason"] for row in work.rows["classifications"])


@pytest.mark.parametrize("fault", ["missing_id", "doubled_id", "unknown_label"])
async def test_what_is_missing_is_asked_for_again_alone(endpoint: Endpoint, tmp_path: Path, fault: Fault) -> None:
    """The endpoint spoils the first verdict of each kind, and answers the second request for all items it is shown."""
    spoiled = {kind: [Inject(fault=fault)] for kind in ("classify", "attribute", "rank")}
    endpoint.configure(script=spoiled)
    work = await judge_one(tmp_path)
    assert read_outcomes(work) == DONE
    assert read_labels(work) == LABELS
    assert read_ranks(work) == {"A1": [1], "A2": [], "G1": [1], "G2": [2]}
    assert read_useful(work) == {1: True, 2: True, 3: False}
    assert endpoint.stats.kinds == {"extract": 2, "classify": 2, "attribute": 3, "rank": 2}
    again = {body["response_format"]["json_schema"]["name"]: body for body in endpoint.stats.bodies if read_names(body)}
    # The requests of both texts come in any order.
    first, other = ("A1", "G") if read_names(again["attribute"]) == "A1" else ("G1", "A")
    assert {kind: read_names(body) for kind, body in again.items()} == {
        "classify": "A1", "attribute": first, "rank": "C1",
    }  # fmt: skip
    last = {kind: body["messages"][-1]["content"] for kind, body in again.items()}
    assert "[A2]" not in last["classify"]
    assert "[G2]" in last["classify"]  # what A1 is judged against
    assert f"[{first}]" in last["attribute"]
    assert f"[{first[0]}2]" not in last["attribute"]
    assert f"[{other}" not in last["attribute"]
    assert "[C3]" in last["attribute"]
    assert "[C2]" not in last["rank"]


@pytest.mark.parametrize("step", ["classify", "attribute_ground_truth", "rank"])
async def test_what_stays_missing_fails_the_step_and_is_named(tmp_path: Path, step: str) -> None:
    lost = "C2" if step == "rank" else "G2"

    def leave_out(question: Question) -> str:
        verdicts = [entry for entry in orjson.loads(say_good(question))["verdicts"] if entry["id"] != lost]
        return say_verdicts(*verdicts)

    judge, work = await judge_with(tmp_path, {step: leave_out}, attempts=3)
    outcomes = read_outcomes(work)
    failed = [name for name, reason in outcomes.items() if reason == "judge_failed"]
    assert failed == [step]
    assert lost in read_detail(work, failed[0])
    tables = ("classifications", "attributions", "context_verdicts")
    kept = {table: {str(row.get("statement_id", "C"))[0] for row in work.rows[table]} for table in tables}
    whole = {"classifications": {"A", "G"}, "attributions": {"A", "G"}, "context_verdicts": {"C"}}
    # Nothing is padded, and half a verdict does not count.
    less = {"classify": ("classifications", set()), "rank": ("context_verdicts", set())}
    table, left = less.get(step, ("attributions", {"A"}))
    assert kept == {**whole, table: left}
    assert [question.only for question in judge.asked if question.step == step] == [(), (lost,), (lost,)]


async def test_a_failed_extraction_fails_what_rests_on_it_with_the_same_reason(tmp_path: Path) -> None:
    def refuse(question: Question) -> RefusedRequest:
        return RefusedRequest("content filter")

    _, work = await judge_with(tmp_path, {"extract_answer": refuse})
    assert read_outcomes(work) == DONE | dict.fromkeys(
        ["extract_answer", "classify", "attribute_answer"], "judge_failed"
    )
    assert read_detail(work, "extract_answer") == "content filter"
    assert set(read_ranks(work)) == {"G1", "G2"}


async def test_a_failed_embedding_is_named_as_such(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"embeddings": lambda asked: Inject(fault="context_length_exceeded")})
    work = await judge_one(tmp_path, embeddings="openai:embedder")
    assert read_outcomes(work) == DONE | {"similarity": "embedding_failed"}


async def test_a_spent_budget_is_the_reason_of_all_that_was_not_asked(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good)
    settings = make_settings(budget_usd=0.02, concurrency=1)
    async with lay_out_run(tmp_path, settings, judge=judge, price=Price(input_usd=100.0, output_usd=0.0)) as live_run:
        works = await judge_samples(live_run, [make_sample(number) for number in range(1, 6)])
    assert len(judge.asked) == 2
    reasons = Counter(reason for work in works for reason in read_outcomes(work).values())
    assert reasons["budget_exhausted"] == 5 * 6 - 2
    assert reasons[None] == 5 + 2  # the similarities cost nothing, and two extractions were paid for
