"""Questions that a bot is asked again in the same run: what is asked and judged, and that nothing else moves by it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import Place
from prefect_holder import find_server
from rag_bot import RagBot, start_rag_bot
from rows import RowsToCome
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.flows.run.again import ask_again
from evalhouse.flows.run.outcome import RepeatsOutcome, RunOutcome
from evalhouse.flows.server.api import PrefectApi
from evalhouse.tasks.comparing.noise import MIN_SAMPLES, pick_steadily
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.warehouse.rows.runs import RunRow, insert_run, list_repeats, update_run
from evalhouse.warehouse.store import Warehouse

N, SHARE, ROUNDS, WAVER = 30, 0.5, 2, 0.4
N_DRAWN = 15
SUITE = """\
dataset = "berths.jsonl"
judge = "lexical"
metrics = ["factual_f1", "context_recall"]

[target]
url = "{url}"
contexts = "$.contexts[*].text"
attempts = 1
"""
REPEATS = f"repeats = {ROUNDS}\nrepeat_share = {SHARE}\n"
IDS = [f"berth-{number}" for number in range(1, N + 1)]
DRAWN = set(pick_steadily(IDS, share=SHARE))


@dataclass(frozen=True, kw_only=True)
class Port:
    """A folder with a suite that asks a bot again (`port.toml`) and one that does not (`once.toml`)."""

    place: Place
    bot: RagBot

    def run(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        finished = self.place.call(*arguments, "--json")
        assert finished.status == status, finished.stderr
        document: dict[str, Any] = finished.document
        return document

    def read(self, sql: str, warehouse: str = "evalhouse.duckdb", **parameters: object) -> list[dict[str, Any]]:
        return Warehouse(str(self.place.folder / warehouse)).read_rows(sql, parameters)


def build_port(folder: Path, prefect_home: Path) -> Port:
    (folder / "documents").mkdir(parents=True)
    texts = [f"Berth {number} takes ships of {number * 7} metres." for number in range(1, N + 1)]
    (folder / "documents" / "berths.txt").write_text("\n\n".join(texts), encoding="utf-8")
    rows = [
        {"id": name, "question": f"Which ships does berth {number} take?", "ground_truth": text}
        for number, (name, text) in enumerate(zip(IDS, texts, strict=True), start=1)
    ]
    (folder / "berths.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    bot = start_rag_bot(folder / "documents", waver=WAVER)
    suite = SUITE.format(url=bot.url)
    (folder / "once.toml").write_text(f'name = "port"\n{suite}', encoding="utf-8")
    (folder / "port.toml").write_text(suite + REPEATS, encoding="utf-8")
    return Port(place=Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)}), bot=bot)


@dataclass(frozen=True, kw_only=True)
class Night:
    """A run with repeats, what the bot was asked in it, and the same run without any, in `once.duckdb`."""

    port: Port
    document: dict[str, Any]
    asked: list[str]
    once: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.document["run_id"])

    @property
    def rounds(self) -> list[str]:
        return [one["run_id"] for one in self.document["repeats"]["runs"]]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Night]:
    port = build_port(tmp_path_factory.mktemp("port") / "port", prefect_home)
    with port.bot:
        once = port.run("run", "once.toml", "--warehouse", "once.duckdb")
        port.bot.reset()  # so that its first answers are the same
        document = port.run("run", "port.toml")
        yield Night(port=port, document=document, asked=list(port.bot.stats.questions), once=once)


def test_the_drawn_questions_are_asked_again_and_no_others(night: Night) -> None:
    times = Counter(night.asked)
    numbers = {question: question.split()[-2] for question in times}
    again = {f"berth-{numbers[question]}" for question, n in times.items() if n == 1 + ROUNDS}
    assert again == DRAWN
    assert set(times.values()) == {1, 1 + ROUNDS}
    assert len(again) == N_DRAWN


def test_repeats_are_separate_runs_under_the_same_ids(night: Night) -> None:
    rows = night.port.read("select * from runs where kind = 'repeats' order by started_at")
    assert [row["run_id"] for row in rows] == night.rounds
    assert {(row["parent_run_id"], row["status"], row["n_samples"]) for row in rows} == {
        (night.run_id, "completed", N_DRAWN)
    }
    assert [row["tags"] for row in rows] == [["repeat 1 of 2"], ["repeat 2 of 2"]]
    for run_id in night.rounds:
        samples = night.port.read("select sample_id from run_samples where run_id = $run_id", run_id=run_id)
        assert {row["sample_id"] for row in samples} == DRAWN
        scored = night.port.read("select count(value) as n from scores where run_id = $run_id", run_id=run_id)
        assert scored == [{"n": 2 * N_DRAWN}], "each answer by each metric, by the same SQL"


def test_the_scores_of_repeats_do_not_take_the_place_of_the_runs_own_in_prefect(night: Night) -> None:
    pages = PrefectApi(find_server()).post("/artifacts/filter", {"artifacts": {"key": {"like_": "scores%port"}}})
    ids = [night.run_id, *night.rounds]
    keys = {run_id: page["key"] for page in pages for run_id in ids if f"run {run_id}," in page["description"]}
    assert keys == {night.run_id: "scores-port", **dict.fromkeys(night.rounds, "scores-of-repeats-port")}


def test_the_runs_own_numbers_are_those_of_the_first_answers(night: Night) -> None:
    assert night.document["metrics"] == night.once["metrics"]
    assert night.document["calls"] == night.once["calls"]
    assert night.once["repeats"] is None
    names = "sample_id, metric, value"
    order = f"select {names} from scores where run_id = $run_id order by all"
    first = night.port.read(order, "once.duckdb", run_id=night.once["run_id"])
    assert night.port.read(order, run_id=night.run_id) == first


def test_rounds_are_not_nights_in_output_and_history(night: Night) -> None:
    assert night.port.run("show", "latest")["run"]["run_id"] == night.run_id
    assert night.port.read("select distinct run_id from score_history") == [{"run_id": night.run_id}]
    listed = [run["run_id"] for run in night.port.run("runs")]
    assert listed == [night.run_id]
    assert {run["kind"] for run in night.port.run("runs", "--all")} == {"evaluation", "repeats"}


def test_an_answer_that_is_what_it_was_costs_no_request(night: Night) -> None:
    """The bot says one of two things to a question, and each is judged once."""
    answers = night.port.read(
        """
        select run_id, sample_id, answer,
            row_number() over (partition by sample_id, answer order by runs.started_at) as n
        from responses join runs using (run_id)
        """
    )
    is_new = {(row["run_id"], row["sample_id"]): row["n"] == 1 for row in answers}
    sent = night.port.read(
        """
        select run_id, sample_id, count(*) filter (where status = 'ok') as n
        from llm_calls where sample_id is not null and run_id <> $run_id group by all
        """,
        run_id=night.run_id,
    )
    assert len(sent) == ROUNDS * N_DRAWN
    assert all(row["n"] == 0 for row in sent if not is_new[row["run_id"], row["sample_id"]])
    repeats = night.document["repeats"]
    assert repeats["requests"] == sum(row["n"] for row in sent)
    assert repeats["reused"] > 0


def test_outcome_of_repeats_is_counted_and_reported(night: Night) -> None:
    rows = night.port.read("select sample_id, count(distinct answer) > 1 as is_other from responses group by sample_id")
    n_other = sum(row["is_other"] for row in rows)
    assert 0 < n_other < N_DRAWN
    repeats = night.document["repeats"]
    assert (repeats["n_questions"], repeats["n_answers"], repeats["n_otherwise"]) == (N_DRAWN, 2 * N_DRAWN, n_other)
    assert repeats["problem"] is None
    refused = night.port.place.call("resume", night.rounds[0])
    assert refused.status == 2
    assert f"`evalhouse resume {night.run_id}` resumes both" in refused.stderr


def test_the_dry_run_says_what_repeats_will_ask(night: Night) -> None:
    printed = night.port.place.call("run", "port.toml", "--dry-run").stdout
    assert f"will be asked {N} questions, and {N_DRAWN} of them 2 more times: {N + 2 * N_DRAWN} requests." in printed
    target = night.port.run("run", "port.toml", "--dry-run")["target"]["repeats"]
    assert (target["n_questions"], target["n_rounds"]) == (N_DRAWN, ROUNDS)
    n_calls = night.document["calls"]["requests"] + night.document["calls"]["reused"]
    assert target["requests"] == pytest.approx(n_calls * 2 * N_DRAWN / N, rel=0.1)
    assert night.port.run("run", "once.toml", "--dry-run")["target"]["repeats"] is None


def test_stopped_round_resumes(night: Night, tmp_path: Path) -> None:
    """Leave the run as a process that was killed in the second round would, with some recorded responses."""
    copied = tmp_path / "copy.duckdb"
    shutil.copy(night.port.place.folder / "evalhouse.duckdb", copied)
    warehouse, stopped = Warehouse(str(copied)), night.rounds[1]
    kept = sorted(DRAWN)[:5]
    with warehouse.writing(patience_s=10, run_id=stopped) as connection:
        connection.execute(
            "delete from responses where run_id = ? and sample_id not in (select unnest(?))", [stopped, kept]
        )
    update_run(warehouse, stopped, status="failed", finished_at=None)
    before = len(night.port.bot.stats.questions)
    again = night.port.run("resume", night.run_id, "--warehouse", str(copied))
    assert len(night.port.bot.stats.questions) - before == N_DRAWN - len(kept)
    assert again["metrics"] == night.document["metrics"]
    assert again["repeats"]["runs"] == [{"run_id": stopped, "status": "completed"}]
    assert again["repeats"]["n_answers"] == 2 * N_DRAWN
    assert night.port.run("resume", night.run_id, "--warehouse", str(copied))["repeats"] is None, "nothing is left"


def test_what_is_drawn_stays_drawn_when_samples_come_and_go() -> None:
    assert pick_steadily(IDS, share=SHARE) == [name for name in IDS if name in DRAWN], "in their order"
    more = [f"pier-{number}" for number in range(N)]
    among_more = set(pick_steadily([*more, *IDS], share=SHARE))
    assert len(among_more) == N
    assert len(among_more & DRAWN) >= 0.8 * N_DRAWN
    assert len(pick_steadily(IDS, share=0.01)) == MIN_SAMPLES
    assert pick_steadily(IDS[:3], share=0.01) == IDS[:3]


def test_what_the_scores_vary_by_is_shown_with_what_a_drop_would_take(night: Night) -> None:
    components = {row["metric"]: row for row in night.port.run("show")["components"]}
    (of_view,) = night.port.read("select * exclude (run_id) from noise_components where metric = 'factual_f1'")
    f1 = components["factual_f1"]
    assert {name: f1[name] for name in of_view} == pytest.approx(of_view)
    assert (f1["n_questions"], f1["n_repeated"], f1["n_answers"]) == (N, N_DRAWN, 3 * N_DRAWN)
    assert 0 < f1["n_otherwise"] <= night.document["repeats"]["n_otherwise"], "another answer may be as good"
    assert 0 < f1["bot_low"] < f1["bot_variance"] < f1["bot_high"]
    assert f1["plan"] is None, "the suite has no gate, and no drop was asked for"
    assert components["context_recall"]["n_otherwise"] == 0, "it finds the same"
    (planned,) = [row for row in night.port.run("show", "--drop", "factual_f1=0.1")["components"] if row["plan"]]
    assert planned["plan"]["n_needed"] > planned["plan"]["n_with_repeats"]["2"] > N
    printed = night.port.place.call("show", "--drop", "factual_f1=0.1", "--power", "0.9").stdout
    assert "What the scores vary by: variances, and the drop of a mean that shows with 90% power" in printed
    assert "to see a drop of 0.1 in factual_f1 with 90% power: " in printed
    assert "more votes would not help: the judge is 0% of the variance" in printed


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ("factual_f1", "--drop got 'factual_f1'; write METRIC=NUMBER with a number above 0"),
        ("factual_f1=0", "--drop got 'factual_f1=0'; write METRIC=NUMBER with a number above 0"),
        ("factul_f1=0.1", "--drop: no answers were scored again by 'factul_f1'; did you mean factual_f1?"),
    ],
)
def test_invalid_drops_are_refused(night: Night, drop: str, expected: str) -> None:
    refused = night.port.place.call("show", "--drop", drop)
    assert refused.status == 2
    assert expected in refused.stderr


def test_a_run_without_repeats_has_no_components(night: Night) -> None:
    warehouse = ("--warehouse", "once.duckdb")
    assert night.port.run("show", *warehouse)["components"] == []
    assert "What the scores vary by" not in night.port.place.call("show", *warehouse).stdout
    refused = night.port.place.call("show", "--drop", "factual_f1=0.1", *warehouse)
    assert refused.status == 2
    assert "asked no question twice" in refused.stderr


TARGET = TargetSettings(url="http://127.0.0.1:9/ask", repeats=2, repeat_share=0.5)


def repeat_unasked(warehouse: Warehouse, run: RunRow, **settings: Any) -> RepeatsOutcome | None:  # noqa: ANN401
    """Return the outcome of repeats in a run that may ask nothing."""

    def refuse(*_: object) -> RunOutcome:
        raise AssertionError("a round was begun")

    made = RunSettings(judge="lexical", target=TARGET, **settings)
    return asyncio.run(ask_again(run, made, warehouse, refuse))


def add_asked_run(warehouse: Warehouse, *, status: str) -> RunRow:
    """Add an evaluation of ten samples with responses of this status, and its noise run, both with costs."""
    run = make_run("r", status="completed", judge="openai:judge")
    insert_run(warehouse, run)
    insert_run(warehouse, make_run("r-n", kind="noise", parent_run_id="r", status="completed", judge="openai:judge"))
    rows, names = RowsToCome(), IDS[:10]
    rows.add("run_samples", *({"run_id": "r", "sample_id": name, "input_hash": name} for name in names))
    rows.add("responses", *({"run_id": "r", "sample_id": name, "status": status} for name in names))
    rows.add(
        "llm_calls",
        {"run_id": "r", "call_id": "c1", "step": "classify", "cost_usd": 0.6},
        {"run_id": "r-n", "call_id": "c2", "step": "classify", "cost_usd": 0.5},
    )
    rows.write(warehouse)
    return run


def test_rounds_spend_what_is_left_of_the_runs_budget(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    run = add_asked_run(warehouse, status="ok")
    spent = repeat_unasked(warehouse, run, budget_usd=1.1)
    assert spent is not None
    assert spent.describe() == "bot's noise: not measured, nothing is left of the budget"
    with pytest.raises(AssertionError, match="a round was begun"):
        repeat_unasked(warehouse, run, budget_usd=1.2)
    (begun,) = list_repeats(warehouse, "r")
    assert begun.config["budget_usd"] == pytest.approx(0.1)


@pytest.mark.parametrize("status", ["failed", "reused"])
def test_responses_of_other_runs_are_not_asked_again(tmp_path: Path, status: str) -> None:
    """A response of an earlier night may be of other documents."""
    warehouse = make_warehouse(tmp_path)
    outcome = repeat_unasked(warehouse, add_asked_run(warehouse, status=status))
    assert outcome is not None
    assert outcome.problem == "none of the questions drawn was answered in this run"


def test_unfinished_run_asks_nothing_again(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    run = add_asked_run(warehouse, status="ok")
    for other in (replace(run, status="cancelled"), replace(run, kind="collection")):
        assert repeat_unasked(warehouse, other) is None
