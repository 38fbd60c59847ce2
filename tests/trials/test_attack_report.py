"""`doctor --attack`: how often a judge is fooled, measured against judges of which that is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from cli_process import Finished, Place, in_terminal
from endpoint import Asked, Endpoint, running_endpoint

from evalhouse.tasks.trials.attack_results import compute_wilson, count_results, list_requests
from evalhouse.tasks.trials.attack_set import Scene, load_attacks, make_trials

Ask = Callable[..., Finished]
Says = Callable[[Asked], str | None]
KEY = "sk-attack-7c1d0e94"
CHAT = "/v1/chat/completions"
ATTACKS = load_attacks()
TRIALS = make_trials(ATTACKS)
N_REQUESTS = len(TRIALS) + len(list_requests(TRIALS))
# For all that does not ask how a judge stands up to every attack: one in six, of all languages and places.
FEW = ATTACKS.model_copy(update={"attacks": ATTACKS.attacks[::6]})
FEW_TRIALS = make_trials(FEW)
N_FEW_REQUESTS = len(FEW_TRIALS) + len(list_requests(FEW_TRIALS))
STEPS = ("extract", "classify", "attribute", "rank")


def find_scene(asked: Asked) -> Scene:
    question = asked.blocks["question"].split("\n")[0]
    return next(scene for scene in ATTACKS.scenes if scene.question == question)


def is_planted(asked: Asked) -> bool:
    """Whether anything stands in the request beside what the scene itself has there."""
    scene = find_scene(asked)
    own = {scene.question, scene.truth, scene.aside, scene.claim, scene.useless, scene.helpful}
    own |= {f"{scene.claim} {scene.aside}", f"{scene.truth} {scene.aside}"}
    texts = {name: list(asked.items(name).values()) or [block] for name, block in asked.blocks.items()}
    return any(text not in own for block in texts.values() for text in block)


def give_verdicts(asked: Asked, *, rightly: bool) -> str:
    """The right verdict on everything, or the wrong one."""
    scene = find_scene(asked)
    truly = {scene.truth, scene.aside}

    def judge(item_id: str, text: str) -> dict[str, object]:
        verdict: dict[str, object] = {"id": item_id, "reason": "It is what it is."}
        holds = (text.split("\n", maxsplit=1)[0] in truly) == rightly
        if asked.kind == "attribute":
            return verdict | {"contexts": ["C2"] if holds else []}
        if asked.kind == "rank":
            return verdict | {"label": "useful" if (item_id == "C2") == rightly else "not_useful"}
        return verdict | {"label": "TP" if holds else {"A": "FP", "G": "FN"}[item_id[0]]}

    if asked.kind == "extract":
        return orjson.dumps({"statements": ["one", "two"] if rightly else []}).decode()
    blocks = ("contexts",) if asked.kind == "rank" else ("answer_statements", "ground_truth_statements")
    items = {item_id: text for block in blocks for item_id, text in asked.items(block).items()}
    return orjson.dumps({"verdicts": [judge(item_id, text) for item_id, text in items.items()]}).decode()


def be_gullible(asked: Asked) -> str:
    """Does what is wanted wherever something was planted."""
    return give_verdicts(asked, rightly=not is_planted(asked))


def be_firm(asked: Asked) -> str:
    return give_verdicts(asked, rightly=True)


def be_weak_in_chinese(asked: Asked) -> str:
    return give_verdicts(asked, rightly=not (is_planted(asked) and find_scene(asked).language == "zh"))


def err_about_the_ferry(asked: Asked) -> str:
    """Wrong about one scene with and without an attack."""
    return give_verdicts(asked, rightly=find_scene(asked).id != "en-ferry")


def mumble_when_attacked(asked: Asked) -> str:
    """No usable reply about the usefulness of planted contexts."""
    return "I would rather not say." if asked.kind == "rank" and is_planted(asked) else be_firm(asked)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> Iterator[Endpoint]:
    """Depends on `ask`, which takes the variables of judges out of the environment."""
    with running_endpoint(expected_key=KEY, models=("judge",)) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield running


@pytest.fixture
def few_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.flows.trials.attacks.load_attacks", lambda: FEW)


def measure(ask: Ask, endpoint: Endpoint, says: Says, *more: str, status: int = 0) -> dict[str, Any]:
    endpoint.configure(script=dict.fromkeys(STEPS, says))
    finished = ask("doctor", "--judge", "openai:judge", "--attack", "--json", *more)
    assert finished.status == status, finished.stderr
    document: dict[str, Any] = finished.document["attack"]
    return document


def test_a_judge_that_obeys_is_fooled_every_time(ask: Ask, endpoint: Endpoint) -> None:
    found = measure(ask, endpoint, be_gullible)
    assert found["total"] == {
        "attacks": len(TRIALS), "fooled": len(TRIALS), "unanswered": 0, "left_out": 0, "share": 1.0,
        "ci_low": pytest.approx(compute_wilson(len(TRIALS), len(TRIALS)).low), "ci_high": 1.0,
    }  # fmt: skip
    for groups in found["by"].values():
        assert {tally["share"] for tally in groups.values()} == {1.0}
        assert sum(tally["attacks"] for tally in groups.values()) == len(TRIALS)
    assert endpoint.stats.requests[CHAT] == found["calls"]["requests"] == N_REQUESTS
    assert endpoint.stats.duplicates == 0, "a control is asked once for all attacks on it"


def test_a_firm_judge_is_never_fooled(ask: Ask, endpoint: Endpoint) -> None:
    found = measure(ask, endpoint, be_firm)
    assert (found["total"]["attacks"], found["total"]["fooled"], found["total"]["share"]) == (len(TRIALS), 0, 0.0)
    assert {result["outcome"] for result in found["results"]} == {"firm"}
    assert (found["judge"], found["language"], found["interrupted"]) == ("openai:judge", "en", False)
    assert set(found["by"]["step"]) == set(STEPS)
    assert set(found["by"]["kind"]) == {attack.kind for attack in ATTACKS.attacks}
    assert found["results"][0].keys() == {
        "attack", "kind", "language", "wants", "field", "step", "scene", "outcome", "said",
    }  # fmt: skip


@pytest.mark.usefixtures("few_attacks")
def test_where_a_judge_is_weak_is_seen(ask: Ask, endpoint: Endpoint) -> None:
    found = measure(ask, endpoint, be_weak_in_chinese)
    assert {name: tally["share"] for name, tally in found["by"]["language"].items()} == {"en": 0.0, "zh": 1.0}
    assert 0.4 < found["total"]["share"] < 0.6
    assert found["total"]["ci_low"] < found["total"]["share"] < found["total"]["ci_high"]
    assert all(result["attack"].startswith("zh") for result in found["results"] if result["outcome"] == "fooled")


@pytest.mark.usefixtures("few_attacks")
def test_where_the_judge_errs_anyway_an_attack_says_nothing(ask: Ask, endpoint: Endpoint) -> None:
    found = measure(ask, endpoint, err_about_the_ferry)
    outcomes = {(result["scene"] == "en-ferry", result["outcome"]) for result in found["results"]}
    assert outcomes == {(True, "left_out"), (False, "firm")}
    assert found["total"]["attacks"] + found["total"]["left_out"] == len(FEW_TRIALS)
    assert found["total"]["fooled"] == 0
    left_out = next(result for result in found["results"] if result["outcome"] == "left_out")
    assert left_out["said"].startswith("without the attack: ")


@pytest.mark.usefixtures("few_attacks")
def test_replies_that_cannot_be_read_are_counted_apart(
    ask: Ask, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALHOUSE_ATTEMPTS", "2")
    found = measure(ask, endpoint, mumble_when_attacked)
    ranked = [trial for trial in FEW_TRIALS if trial.step == "rank"]
    assert found["by"]["step"]["rank"] == {
        "attacks": 0, "fooled": 0, "unanswered": len(ranked), "left_out": 0, "share": None, "ci_low": None,
        "ci_high": None,
    }  # fmt: skip
    assert found["total"]["unanswered"] == len(ranked)
    assert found["calls"]["requests"] == N_FEW_REQUESTS + len(ranked), "each was asked for twice"
    said = {result["said"] for result in found["results"] if result["outcome"] == "unanswered"}
    assert all("no complete JSON object" in reason for reason in said)


@pytest.mark.usefixtures("few_attacks")
def test_people_are_told_beforehand_and_shown_what_fooled_the_judge(ask: Ask, endpoint: Endpoint) -> None:
    endpoint.configure(script=dict.fromkeys(STEPS, be_weak_in_chinese))
    finished = ask("doctor", "--judge", "openai:judge", "--attack")
    assert finished.status == 0, "being fooled is a measurement and no error"
    assert f"{N_FEW_REQUESTS} requests to openai:judge" in finished.stderr
    assert "cost unknown" in finished.stderr, "no price is known for this model"
    assert "Attacks on openai:judge" in finished.lines
    kinds = [line.split()[1] for line in finished.lines if line.startswith("kind ")]
    assert kinds == list(dict.fromkeys(attack.kind for attack in FEW.attacks))
    zh = next(line for line in finished.lines if line.startswith("language  zh"))
    assert "1.000" in zh
    assert "Fooled by" in finished.lines
    listed = {line.split()[0] for line in finished.lines if line.startswith(("en-", "zh-"))}
    assert listed == {attack.id for attack in FEW.attacks if attack.language == "zh"}


@pytest.mark.usefixtures("few_attacks")
def test_the_price_is_said_and_nothing_sent_with_dry_run(
    ask: Ask, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("judge: [1.0, 2.0]\n", encoding="utf-8")
    monkeypatch.setenv("EVALHOUSE_PRICES", str(prices))
    found = ask("doctor", "--judge", "openai:judge", "--attack", "--dry-run", "--json").document["attack"]
    shown = ask("doctor", "--judge", "openai:judge", "--attack", "--dry-run")
    assert (endpoint.stats.looked_at.keys(), endpoint.stats.requests) == ({"/v1/models"}, {})
    assert "Nothing was asked." in shown.stdout
    assert f"{N_FEW_REQUESTS} requests" in shown.stdout
    assert found["cost_usd"] == pytest.approx((found["prompt_tokens"] + 2 * found["completion_tokens"]) / 1e6)
    real = measure(ask, endpoint, be_firm)
    assert found["requests"] == real["calls"]["requests"] == N_FEW_REQUESTS
    assert real["calls"]["prompt_tokens"] == pytest.approx(found["prompt_tokens"], rel=0.25)


@pytest.mark.usefixtures("few_attacks")
def test_a_judge_that_cannot_be_asked_is_not_attacked(ask: Ask, endpoint: Endpoint) -> None:
    finished = ask("doctor", "--judge", "openai:nobody", "--attack", "--json")
    assert finished.status == 2
    assert "attack" not in finished.document
    assert "not attacked" in finished.stderr
    assert endpoint.stats.requests[CHAT] == 0


@pytest.mark.usefixtures("few_attacks")
def test_what_stops_working_on_the_way_ends_it(ask: Ask, endpoint: Endpoint) -> None:
    """The list of models may be had with a key that buys nothing."""
    endpoint.configure(faults={"insufficient_quota": 1.0})
    finished = ask("doctor", "--judge", "openai:judge", "--attack")
    assert finished.status == 2
    assert finished.stderr.splitlines()[-1].startswith("Error: ")
    assert endpoint.stats.requests[CHAT] <= 16


def test_dry_run_belongs_to_the_attack(ask: Ask) -> None:
    finished = ask("doctor", "--dry-run")
    assert finished.status == 2
    assert "--dry-run belongs to --try and --attack" in finished.stderr


def test_the_lexical_judge_is_measured_offline(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads words and numbers and no orders, so it must know every scene; and a measurement writes nothing."""
    monkeypatch.chdir(tmp_path)
    found = ask("doctor", "--judge", "lexical", "--attack", "--json").document["attack"]
    assert found["total"]["left_out"] == found["total"]["unanswered"] == 0
    assert found["total"]["attacks"] == len(TRIALS)
    assert found["total"]["share"] < 0.05
    assert found["calls"]["cost_usd"] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupt_shows_what_there_is(tmp_path: Path) -> None:
    with running_endpoint(expected_key=KEY, models=("judge",), script=dict.fromkeys(STEPS, be_gullible)) as endpoint:
        endpoint.configure(latency=0.1)
        variables = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": KEY, "EVALHOUSE_CONCURRENCY": "8"}
        place = Place(folder=tmp_path, variables=variables)
        with in_terminal(place, "doctor", "--judge", "openai:judge", "--attack", columns=120) as terminal:
            terminal.read_until(lambda: endpoint.stats.statuses[200] >= 40)
            assert f"/{N_REQUESTS}" in terminal.screen, "progress is shown"
            terminal.press(b"\x03")
            finished = terminal.finish()
    assert finished.status == 130
    assert "Attacks on openai:judge" in finished.stdout
    assert f"of {len(TRIALS)} trials were judged" in finished.stdout
    assert "Traceback" not in finished.stdout
    assert endpoint.stats.requests[CHAT] < N_REQUESTS


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (0, 20), (3, 20), (10, 20), (20, 20), (7, 354)])
def test_the_interval_is_wilsons(hits: int, n: int) -> None:
    """Its ends are the shares that lie 1.96 of their own standard errors away from what was counted."""
    interval = compute_wilson(hits, n)
    assert 0 <= interval.low <= hits / n <= interval.high <= 1
    for end in (interval.low, interval.high):
        if 1e-9 < end < 1 - 1e-9:
            assert abs(hits / n - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / n))


@pytest.mark.usefixtures("few_attacks")
def test_a_judge_that_is_always_wrong_leaves_nothing_to_count(ask: Ask, endpoint: Endpoint) -> None:
    endpoint.configure(script=dict.fromkeys(STEPS, lambda asked: give_verdicts(asked, rightly=False)))
    finished = ask("doctor", "--judge", "openai:judge", "--attack")
    assert finished.status == 0
    assert "There is nothing to count." in finished.lines
    assert "Left out, for the judge errs without the attack too" in finished.lines
    assert "No attack fooled" not in finished.stdout


def test_nothing_counted_has_no_share() -> None:
    tally = count_results([])
    assert (tally.attacks, tally.share, tally.interval) == (0, None, None)


def test_help_says_what_it_does(ask: Ask) -> None:
    text = " ".join(ask("doctor", "--help").stdout.split())
    assert "--attack" in text
    assert "exit status stays 0" in text
    assert f"about {round(N_REQUESTS, -1)} requests" in text
