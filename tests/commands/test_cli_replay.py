"""Regressions planted in a bot, and what a replay of the two nights says did them: retrieval, generation, or chance."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from cli_process import Place

from evalhouse.warehouse.rows.runs import update_run
from evalhouse.warehouse.store import Warehouse

BOT = '''\
"""The plant of a question holds from the second night on; random answers depend on `seed`."""

import json
import random
from collections import Counter
from pathlib import Path

asked = Counter()


def ask(question, sample_id, contexts=None, context_ids=None):
    state = json.loads(Path("state.json").read_text())
    number, plant = int(sample_id.partition("-")[2]), state["plants"][sample_id] if state["night"] > 1 else "nothing"
    with Path("asked.txt").open("a") as log:
        log.write(f"{sample_id} {contexts is not None}\\n")
    found = retrieve(number, plant) if contexts is None else dict(zip(context_ids, contexts))
    answer = next((text for text in found.values() if text.startswith(f"Berth {number} ")), "I do not know.")
    asked[question] += 1
    if plant.startswith("worse"):
        answer = "Please look at the harbour's own pages."
    elif plant.startswith("random"):
        drawn = random.Random(f"{question} {state['seed']} {asked[question]}").random()
        answer = answer if drawn < 0.5 else "I do not know."
    return {"answer": answer, "contexts": [{"id": name, "text": text} for name, text in found.items()]}


def retrieve(number, plant):
    right = {f"berths.md#{number}": f"Berth {number} takes ships of {number * 7} metres."}
    other = [{f"rules.md#{place}": f"Rule {place} asks every ship for paper {place}."} for place in range(1, 6)]
    if plant == "dropped":
        return other[2] | other[0] | other[1]
    if plant == "misled":
        return {f"news.md#{number}": f"Berth {number} takes no guests on Sundays."} | right | other[0]
    if plant == "edited":
        return {f"berths.md#{number}": f"Berth {number} takes no guests on Sundays."} | other[0] | other[1]
    if plant.endswith("and others"):
        return right | other[3] | other[4]
    return right | other[0] | other[1]
'''
PLANTS: Final = {
    "dropped": "retrieval", "misled": "retrieval", "edited": "retrieval", "worse": "generation",
    "worse and others": "generation", "random": "noise", "random and others": "noise",
}  # fmt: skip
"""The cause by the plant of a question."""
SUITE = """\
dataset = "berths.jsonl"
judge = "lexical"
metrics = ["factual_f1", "context_recall"]

[target]
callable = "harbour_bot:ask"
"""


@dataclass(frozen=True, kw_only=True)
class Harbour:
    """Two nights of a bot with so many questions of each plant; `plants` by sample."""

    place: Place
    plants: dict[str, str]

    def call(self, *arguments: str, status: int = 0) -> Any:  # noqa: ANN401  # JSON
        finished = self.place.call(*arguments, "--json")
        assert finished.status == status, finished.stderr
        return finished.document

    def set_night(self, night: int, seed: int) -> None:
        state = {"night": night, "seed": seed, "plants": self.plants}
        (self.place.folder / "state.json").write_text(json.dumps(state))

    def list_asked(self) -> list[str]:
        """The samples that the bot was asked about with contexts since the last call."""
        log = self.place.folder / "asked.txt"
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return [name for name, given in map(str.split, lines) if given == "True"]

    def read(self, sql: str) -> list[dict[str, Any]]:
        return Warehouse(str(self.place.folder / "evalhouse.duckdb")).read_rows(sql)

    def find_document(self, sample_id: str) -> list[str]:
        """The document that a replay is to name."""
        number = sample_id.partition("-")[2]
        return {
            "dropped": [f"berths.md#{number} (dropped)"],
            "misled": [f"news.md#{number} (added)"],
            "edited": [f"berths.md#{number} (changed)"],
        }.get(self.plants[sample_id], [])


def build_harbour(folder: Path, prefect_home: Path, *, n_each: int) -> Harbour:
    """The folder of a suite after two nights, and before anything is replayed."""
    folder.mkdir()
    planted = [plant for plant in PLANTS for _ in range(n_each)]
    plants = {f"berth-{number}": plant for number, plant in enumerate([*planted, *["nothing"] * n_each], start=1)}
    rows = [
        {"id": name, "question": f"Which ships does berth {number} take?",
         "ground_truth": f"Berth {number} takes ships of {number * 7} metres."}
        for number, name in enumerate(plants, start=1)
    ]  # fmt: skip
    (folder / "berths.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "harbour_bot.py").write_text(BOT)
    (folder / "harbour.toml").write_text(SUITE)
    harbour = Harbour(place=Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)}), plants=plants)
    for night in (1, 2):
        harbour.set_night(night, seed=night)
        harbour.call("run", "harbour.toml")
    harbour.set_night(2, seed=3)
    harbour.list_asked()
    return harbour


LEAST_NAMED, LEAST_OF_CAUSE = 0.95, 0.9


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A harbour whose two nights were replayed once: the document, and what the bot was asked for it."""

    harbour: Harbour
    plan: dict[str, Any]
    document: dict[str, Any]
    asked: list[str]


def replay_harbour(folder: Path, prefect_home: Path, *, n_each: int) -> Replayed:
    harbour = build_harbour(folder, prefect_home, n_each=n_each)
    plan = harbour.call("replay", "--dry-run", "--limit", "1000")
    assert harbour.list_asked() == [], "a dry run asks nothing"
    document = harbour.call("replay", "--limit", "1000")
    return Replayed(harbour=harbour, plan=plan, document=document, asked=harbour.list_asked())


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Replayed:
    return replay_harbour(tmp_path_factory.mktemp("replay") / "harbour", prefect_home, n_each=2)


def share_named(replayed: Replayed, moves: list[dict[str, Any]]) -> float:
    """The share of the moves whose verdict and document are what was planted."""
    plants = replayed.harbour.plants
    named = [
        move["verdict"] == PLANTS[plants[move["sample_id"]]]
        and move["documents"] == replayed.harbour.find_document(move["sample_id"])
        for move in moves
    ]
    return sum(named) / len(named)


def test_what_was_planted_is_named_down_to_the_document(replayed: Replayed) -> None:
    plants = Counter(replayed.harbour.plants[move["sample_id"]] for move in replayed.document["moves"])
    certain = {plant for plant, cause in PLANTS.items() if cause != "noise"}
    assert {plant: plants[plant] for plant in certain} == dict.fromkeys(certain, 2), "each of these moves a score"
    assert plants["nothing"] == 0
    assert share_named(replayed, replayed.document["moves"]) >= LEAST_NAMED


def test_the_shares_are_of_the_moves_and_have_intervals(replayed: Replayed) -> None:
    moves, verdicts = replayed.document["moves"], replayed.document["verdicts"]
    assert {row["verdict"]: row["n"] for row in verdicts} == Counter(move["verdict"] for move in moves)
    for row in verdicts:
        assert (row["n_moves"], row["share"]) == (len(moves), row["n"] / len(moves))
        assert 0 <= row["ci_low"] < row["share"] < row["ci_high"] <= 1


def test_the_bot_is_asked_what_the_dry_run_says(replayed: Replayed) -> None:
    plan, n_moves = replayed.plan, len(replayed.document["moves"])
    assert plan["n_asks"] == 6 * n_moves, "three times with each of two sets of contexts, six times where they are one"
    assert plan["n_asks"] < len(replayed.asked) <= plan["n_asks"] + plan["n_documents"]
    assert all("~" not in name for name in replayed.asked), "the bot gets the id of the sample, not of the replay"


def test_replays_are_stored_as_runs_but_not_listed_as_nights(replayed: Replayed) -> None:
    harbour, document = replayed.harbour, replayed.document
    rows = harbour.read(
        "select run_id, parent_run_id, tags, status from runs where kind = 'replay' order by started_at"
    )
    assert [row["run_id"] for row in rows] == [run["run_id"] for run in document["runs"]]
    assert {(row["parent_run_id"], row["status"]) for row in rows} == {(document["candidate"], "completed")}
    against = f"against {document['base']}"
    assert [row["tags"] for row in rows] == [[against, "contexts exchanged"], [against, "one document undone"]]
    assert harbour.call("show", "latest")["run"]["run_id"] == document["candidate"]
    assert len(harbour.call("runs")) == 2
    assert {row["run_id"] for row in harbour.read("select distinct run_id from score_history")} == {
        document["base"], document["candidate"],
    }  # fmt: skip
    refused = harbour.place.call("resume", rows[0]["run_id"])
    assert refused.status == 2
    assert f"evalhouse replay {document['base']} {document['candidate']}" in refused.stderr


def test_the_same_command_asks_nothing_again_and_says_the_same(replayed: Replayed) -> None:
    again = replayed.harbour.call("replay", "--limit", "1000")
    assert replayed.harbour.list_asked() == []
    assert again["moves"] == replayed.document["moves"]
    assert (again["runs"], again["calls"]["requests"]) == ([], 0)
    printed = replayed.harbour.place.call("replay", "--limit", "1000").stdout
    (dropped,) = [line for line in printed.splitlines() if line.startswith("berth-1 ")]
    assert dropped.split()[:6] == ["berth-1", "factual_f1", "1.000", "0.000", "1.000", "retrieval"]
    assert dropped.endswith("berths.md#1 (dropped)")
    assert "with the old contexts too it scores as now" in printed


def test_a_replay_that_was_killed_continues_where_it_was(replayed: Replayed) -> None:
    """The process was killed while it judged: every answer is stored, and some have no score."""
    harbour = replayed.harbour
    warehouse = Warehouse(str(harbour.place.folder / "evalhouse.duckdb"))
    run_id = replayed.document["runs"][0]["run_id"]
    kept = "berth-1~old~1"
    with warehouse.writing(patience_s=10, run_id=run_id) as connection:
        connection.execute("delete from scores where run_id = ? and sample_id = ?", [run_id, kept])
        connection.execute("delete from scores where run_id = ? and sample_id = 'berth-1~new~2'", [run_id])
        connection.execute("delete from responses where run_id = ? and sample_id = 'berth-1~new~2'", [run_id])
    update_run(warehouse, run_id, status="running", finished_at=None)
    again = harbour.call("replay", "--limit", "1000")
    assert harbour.list_asked() == ["berth-1"], "what was answered is not asked again"
    assert again["moves"] == replayed.document["moves"]
    assert again["calls"]["requests"] == 0, "the same answer to the same contexts is judged by the record"
    assert harbour.read(f"select status from runs where run_id = '{run_id}'") == [{"status": "failed"}]


def test_samples_and_metrics_are_chosen_by_name(replayed: Replayed) -> None:
    harbour = replayed.harbour
    document = harbour.call("replay", "--metric", "context_recall", "--sample", "berth-1")
    (move,) = document["moves"]
    assert (move["metric"], move["verdict"]) == ("context_recall", "retrieval")
    assert harbour.list_asked() == [], "the answers are judged by every metric of the run"


def test_a_replay_that_is_not_complete_names_the_command_that_resumes_it(replayed: Replayed) -> None:
    """It left out the options, so that another replay would have been resumed."""
    place = replayed.harbour.place
    (place.folder / "down.toml").write_text(SUITE.replace("harbour_bot", "down_bot"))
    (place.folder / "down_bot.py").write_text("def ask(question, contexts=None):\n    raise OSError('down')\n")
    options = "--sample berth-1 --times 2 --suite down.toml"
    stopped = place.call("replay", *options.split())
    (following,) = [line for line in stopped.stdout.splitlines() if line.startswith("next: ")]
    assert following.startswith("next: evalhouse replay ")
    named = following.partition("   (")[0].split()
    assert sorted(named[3:]) == sorted(options.split())


@pytest.mark.parametrize(("arguments", "message"), [
    (("--sample", "berth-x"), "--sample: 'berth-x' has no score in both runs; did you mean"),
    (("--sample", "berth-15"), "'berth-15' scores the same in both runs, in factual_f1, so there is nothing"),
    (("--metric", "factual_f"), "have no scores of 'factual_f' in common; did you mean factual_f1?"),
    (("--suite", "deaf.toml"),
     "the target does not accept contexts, so retrieval and generation cannot be separated: let the"),
    (("--suite", "mute.toml"), "has no [target], so there is nothing to ask"),
    (("--suite", "remembers.toml"), "the target remembers its conversations itself, and one of their turns cannot be"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_refused_in_one_message(
    replayed: Replayed, arguments: tuple[str, ...], message: str
) -> None:
    folder = replayed.harbour.place.folder
    (folder / "deaf.toml").write_text('dataset = "berths.jsonl"\n[target]\ncallable = "deaf_bot:ask"\n')
    (folder / "deaf_bot.py").write_text("def ask(question):\n    return question\n")
    (folder / "mute.toml").write_text('dataset = "berths.jsonl"\n')
    (folder / "remembers.toml").write_text(
        'dataset = "berths.jsonl"\n[target]\ncallable = "remembering_bot:ask"\nhistory = "own"\n'
    )
    (folder / "remembering_bot.py").write_text("def ask(question, metadata, contexts=None):\n    return question\n")
    refused = replayed.harbour.place.call("replay", *arguments)
    assert refused.status == 2
    assert message in refused.stderr
    assert replayed.harbour.list_asked() == []


@pytest.mark.slow
def test_of_hundreds_of_cases_nearly_all_are_named_rightly(tmp_path: Path, prefect_home: Path) -> None:
    replayed = replay_harbour(tmp_path / "harbour", prefect_home, n_each=40)
    moves = replayed.document["moves"]
    assert len(moves) >= 200
    assert share_named(replayed, moves) >= LEAST_NAMED
    for cause in set(PLANTS.values()):
        of_cause = [move for move in moves if PLANTS[replayed.harbour.plants[move["sample_id"]]] == cause]
        assert share_named(replayed, of_cause) >= LEAST_OF_CAUSE, cause
