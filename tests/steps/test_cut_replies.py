"""A reply that the model's output limit cuts off keeps the verdicts that are complete in it; the rest is asked for."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Asked, Endpoint, Raw, running_endpoint
from endpoint_replies import Choice, build_completion, compose_reply
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to, read_calls, read_outcomes

from evalhouse.tasks.judge.errors import COPIED
from evalhouse.tasks.pipeline.live_run import SampleWork
from evalhouse.warehouse.rows.samples import StoredSample

N = 9
MANY = make_sample(
    answer=" ".join(f"Lamp {number} burns oil." for number in range(N)),
    ground_truth=" ".join(f"Lamp {number} burns oil." for number in range(N)),
    contexts=[f"Lamp {number} burns oil." for number in range(N)],
)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(keep_bodies=True) as running:
        point_to(running.base_url)
        yield running


def limit_replies(endpoint: Endpoint, most: int, kinds: Sequence[str] = ("classify", "attribute", "rank")) -> None:
    """From now on no reply of these kinds is longer than so many characters."""

    def cut(asked: Asked) -> Raw:
        # Asked for some ids it answers for these alone, as a model does.
        said = orjson.dumps(compose_reply(asked)).decode()
        reply: Any = orjson.loads(said)
        only = asked.texts[-1].rpartition("for these ids only: ")[2].partition(".")[0].split(", ")
        if "verdicts" in reply and "for these ids only" in asked.texts[-1]:
            said = orjson.dumps({"verdicts": [one for one in reply["verdicts"] if one["id"] in only]}).decode()
        choice = Choice(content=said[:most], finish_reason="length" if len(said) > most else "stop")
        return Raw(body=build_completion(asked, choice, 1, 0))

    endpoint.configure(script=dict.fromkeys(kinds, cut))


async def judge(folder: Path, sample: StoredSample = MANY, **settings: Any) -> SampleWork:  # noqa: ANN401
    async with lay_out_run(folder, make_settings(**settings)) as live_run:
        (work,) = await judge_samples(live_run, [sample])
    return work


def read_verdicts(work: SampleWork) -> dict[str, list[Any]]:
    """In order of their ids: which of a sample's requests is answered first is nobody's affair."""
    return {
        "labels": sorted((row["statement_id"], row["label"]) for row in work.rows["classifications"]),
        "supports": sorted((row["statement_id"], row["context_ranks"]) for row in work.rows["attributions"]),
        "useful": sorted((row["context_rank"], row["useful"]) for row in work.rows["context_verdicts"]),
    }


async def test_a_small_output_limit_changes_no_verdict_and_pays_for_none_twice(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    whole = read_verdicts(await judge(tmp_path / "whole"))
    endpoint.reset()
    limit_replies(endpoint, 400)
    work = await judge(tmp_path / "cut", attempts=2)
    assert set(read_outcomes(work).values()) == {None}
    assert read_verdicts(work) == whole
    asked = sum(endpoint.stats.kinds.values())
    cut = [call for call in read_calls(tmp_path / "cut") if "cut off" in str(call["error"])]
    assert cut, "what is on record of a reply that was cut off says so"
    endpoint.reset()
    again = await judge(tmp_path / "cut", attempts=2)
    assert read_verdicts(again) == read_verdicts(work)
    assert (asked > 0, sum(endpoint.stats.kinds.values())) == (True, 0), "what was cut off is on record as well"


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
    work = await judge(tmp_path, attempts=5)
    assert read_outcomes(work)["rank"] is None
    assert len(work.rows["context_verdicts"]) == N


async def test_one_that_never_ends_is_given_up_after_the_runs_attempts(endpoint: Endpoint, tmp_path: Path) -> None:
    limit_replies(endpoint, 30, ["rank"])
    work = await judge(tmp_path, attempts=3)
    assert read_outcomes(work)["rank"] == "judge_failed"
    assert endpoint.stats.kinds["rank"] <= 6


async def test_a_text_whose_statements_are_cut_off_is_split(endpoint: Endpoint, tmp_path: Path) -> None:
    text = " ".join(f"Lamp number {number} of the north harbour burns nothing but whale oil." for number in range(40))
    sample = make_sample(answer=text, ground_truth="Lamp 1 burns oil.", contexts=["Lamp 1 burns oil."])
    limit_replies(endpoint, 1000, ["extract"])
    work = await judge(tmp_path, sample)
    said = [row["text"] for row in work.rows["statements"] if row["source"] == "answer"]
    assert len(said) == 40
    assert read_outcomes(work)["extract_answer"] is None


async def test_a_draft_in_a_cut_reply_is_not_an_answer(endpoint: Endpoint, tmp_path: Path) -> None:
    draft = '<think>{"verdicts": [{"id": "C1", "reason": "x", "label": "useful"}, {"id": "C2", "reason": "x", "la'
    once = iter([Choice(content=draft, finish_reason="length")])

    def think(asked: Asked) -> Raw | None:
        choice = next(once, None)
        return Raw(body=build_completion(asked, choice, 1, 0)) if choice else None

    endpoint.configure(script={"rank": think})
    work = await judge(tmp_path)
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
    work = await judge(tmp_path, make_sample())
    assert copied not in [row["reason"] for row in work.rows["classifications"]]
    assert endpoint.stats.kinds["classify"] == 2
    errors = [str(call["error"]) for call in read_calls(tmp_path) if call["step"] == "classify"]
    assert COPIED in errors[0]
