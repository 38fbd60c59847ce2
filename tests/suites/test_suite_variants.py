"""A suite with variants: what its file may say, what one night asks, how it is read, and that it resumes."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli_house import write_dataset
from cli_process import Finished, Place
from endpoint import Endpoint, running_endpoint
from prefect.exceptions import Pause
from target_server import Canned, Sent, TargetServer, answer_json, serving
from webhook import Webhook, serve_webhook

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import resolve_suite
from evalhouse.flows.preparing.suites import load_suite
from evalhouse.flows.serving import suite_runs
from evalhouse.flows.shards import SUSPENDED
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.run import list_night
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import RunRow, list_night_runs, pick_run

HEAD = """\
name = "harbour"
dataset = "questions.jsonl"
judge = "openai:gpt-4.1-mini"
metrics = ["factual_f1"]
warehouse = "w.duckdb"
"""
TARGET = """
[target]
url = "{url}"
contexts = "$.contexts"
[target.body]
question = "{{{{question}}}}"
model = "small"
"""
VARIANTS = """
[variants.large.target.body]
model = "large"
[variants.cheap.target.body]
model = "cheap"
"""


REFUSED = {
    "the yardstick": ('[variants.b]\njudge = "lexical"\n', "variants.b.judge: it is one for all variants"),
    "a limit": ("[variants.b]\nlimit = 3\n", "variants.b.limit: it is one for all variants"),
    "other questions": ('[variants.b.map]\nground_truth = "x"\n', "variants.b.map.ground_truth: all variants answer"),
    "answers of a column beside a bot": (
        '[variants.b.map]\nanswer = "x"\n',
        "variants.b.map: a bot is asked, so no column",
    ),
    "unknown key": ('[variants.b]\ntarge = "x"\n', "variants.b.targe: unknown key; did you mean target?"),
    "nothing": ("[variants.b]\n", "variants.b: nothing differs from the suite itself; give one of"),
    "no table": ('[variants]\nb = "x"\n', "variants.b: got 'x'; a variant is a table"),
    "the suite's name": ('[variants.harbour]\nlabel = "x"\n', "variants.harbour: this is the name of the suite itself"),
    "a name with a slash": ('[variants."a/b"]\nlabel = "x"\n', "variants.a/b: got 'a/b'; allowed are letters"),
    "a budget of samples": (
        '[limits]\nsample_budget = 20\n[variants.b]\nlabel = "x"\n',
        "limits.sample_budget: a budget of samples picks them by their answers",
    ),
    "a secret": (
        '[variants.b.target.headers]\nAuthorization = "Bearer x"\n',
        "variants.b.target.headers: header Authorization: its value would be kept on record",
    ),
    "own scores as trigger": (
        '[trigger]\nasset = "evalhouse://suite/harbour/b/scores"\n[variants.b]\nlabel = "x"\n',
        "trigger.asset: these are the scores of this suite",
    ),
}


def write(folder: Path, tables: str, *, url: str = "http://localhost:1/ask", top: str = HEAD) -> Path:
    path = folder / "nightly.toml"
    is_key = not tables.lstrip().startswith("[")
    path.write_text(f"{top}{tables if is_key else ''}{TARGET.format(url=url)}{'' if is_key else tables}")
    return path


@pytest.mark.parametrize(("tables", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_make_variants_incomparable_is_refused_with_its_line(
    tmp_path: Path, tables: str, problem: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load_suite(write(tmp_path, tables))
    assert problem in str(caught.value)
    assert "nightly.toml, line " in str(caught.value)


BODY = {"question": "{{question}}", "model": "small"}
GIVEN = {
    "an entry of the body": ("[variants.b.target.body]\nmodel = 'x'\n", {"body": {**BODY, "model": "x"}}),
    "another address": ("[variants.b.target]\nurl = 'http://other/ask'\n", {"url": "http://other/ask", "body": BODY}),
    "another kind of bot": (
        "[variants.b.target]\ncallable = 'bots:ask'\n",
        {"callable": "bots:ask", "url": None, "body": None, "contexts": "$.contexts"},
    ),
    "a label": ("[variants.b]\nlabel = 'x'\n", {"url": "http://localhost:1/ask", "body": BODY}),
}


@pytest.mark.parametrize(("ids", "expected"), [("", ""), ('context_ids = "ids_b"', "ids_b")])
def test_other_contexts_of_a_variant_have_not_the_ids_of_the_suite(tmp_path: Path, ids: str, expected: str) -> None:
    """Another retriever was scored by the ids of the suite's."""
    tables = (
        f'dataset = "a.jsonl"\n[map]\ncontexts = "a"\ncontext_ids = "ids_a"\n[variants.b.map]\ncontexts = "b"\n{ids}\n'
    )
    path = tmp_path / "nightly.toml"
    path.write_text(tables)
    suite = load_suite(path)
    settings = resolve_suite(suite, flags={}).settings
    (variant,) = list_night(settings, "run-1")
    assert settings.mapping == {"contexts": "a", "context_ids": "ids_a"}
    assert variant.mapping == {"contexts": "b", "context_ids": expected}
    assert not variant.has_other_answers


def test_a_variant_with_answers_of_another_column_has_not_the_tool_calls_and_rows_of_the_suites(tmp_path: Path) -> None:
    """They were graded again as the variant's."""
    path = tmp_path / "nightly.toml"
    path.write_text(
        'dataset = "a.jsonl"\n[map]\nanswer = "a"\n[variants.b.map]\nanswer = "b"\n'
        '[variants.c.map]\ncontexts = "c"\n[variants.d.map]\nanswer = "a"\ncontexts = "c"\n[variants.e]\nlabel = "e"\n'
    )
    settings = resolve_suite(load_suite(path), flags={}).settings
    variants = list_night(settings, "run-1")
    assert [of_one.has_other_answers for of_one in (settings, *variants)] == [False, True, False, False, False]


def test_a_column_named_by_option_is_for_all_variants(tmp_path: Path) -> None:
    """The suite was judged by one column of answers, and its variant by another."""
    path = tmp_path / "nightly.toml"
    path.write_text(
        'dataset = "a.jsonl"\n[map]\nanswer = "a"\n[variants.b.map]\nanswer = "b"\n[variants.c.map]\ncontexts = "c"\n'
        '[variants.d]\ncitations_from = 0\n[variants.e.map]\nanswer = "a"\n'
    )
    suite = load_suite(path)
    settings = resolve_suite(suite, flags={"mapping": {"answer": "x"}}).settings
    assert [of_one.mapping for of_one in (settings, *list_night(settings))] == [
        {"answer": "x"},
        {"answer": "b"},
        {"answer": "x", "contexts": "c", "context_ids": ""},
        {"answer": "x"},
        {"answer": "a"},
    ]
    others = [of_one.has_other_answers for of_one in (settings, *list_night(settings))]
    assert others == [True, True, True, True, False], "the calls are of column a"
    alone = resolve_suite(suite, flags={"mapping": {"answer": "x"}}, variant="b").settings
    assert (alone.mapping, alone.has_other_answers) == ({"answer": "x"}, True)
    usual = resolve_suite(suite, flags={"mapping": {"answer": "a"}}).settings
    assert not usual.has_other_answers


def test_the_only_answers_of_a_suite_have_its_tool_calls(tmp_path: Path) -> None:
    """`--map`, as the message that proposes it says, left the tool calls of the suite unscored."""
    path = tmp_path / "nightly.toml"
    path.write_text('dataset = "a.jsonl"\n')
    settings = resolve_suite(load_suite(path), flags={"mapping": {"answer": "final"}}).settings
    assert not settings.has_other_answers
    path.write_text('dataset = "a.jsonl"\n[variants.b.map]\nanswer = "b"\n')
    suite = load_suite(path)
    assert resolve_suite(suite, flags={"mapping": {"answer": "b"}}).settings.has_other_answers


@pytest.mark.parametrize(("tables", "target"), GIVEN.values(), ids=GIVEN.keys())
def test_a_variant_is_the_suite_with_what_it_gives_in_it(
    tmp_path: Path, tables: str, target: dict[str, object]
) -> None:
    suite = load_suite(write(tmp_path, f"{tables}[gate.min]\nfactual_f1 = 0.5\n"))
    settings = resolve_suite(suite, flags={"label": "tonight", "concurrency": 3}).settings
    (variant,) = list_night(settings, "run-1")
    assert variant.target is not None
    assert {name: getattr(variant.target, name) for name in target} == target
    assert (variant.suite_name, variant.night, variant.gate, variant.concurrency) == ("harbour/b", "run-1", None, 3)
    assert variant.label == ("x" if "label" in tables else None), "the label of a night names the suite's own run"
    alone = resolve_suite(suite, flags={"label": "alone"}, variant="b").settings
    assert (alone.suite_name, alone.night, alone.label, alone.variants) == ("harbour/b", None, "alone", {})
    with pytest.raises(SettingsError, match=r"--variant got 'bb', which nightly\.toml has no .* did you mean b"):
        resolve_suite(suite, flags={}, variant="bb")


NIGHTS = [
    RunRow(
        run_id=f"night{night}{variant or ''}", variant=variant, suite="harbour", judge="lexical", config={},
        started_at=datetime(2026, 3, night, place), status="completed", dataset="q",
    )
    for night in (2, 1) for place, variant in ((2, "large"), (1, None))
]  # fmt: skip
NAMED = {
    "latest": "night2", "previous": "night1", "latest:harbour": "night2", "previous-completed:harbour": "night1",
    "latest:harbour/large": "night2large", "previous:harbour/large": "night1large",
}  # fmt: skip


@pytest.mark.parametrize(("word", "run_id"), NAMED.items())
def test_words_name_runs_of_the_suite_itself_and_with_a_slash_those_of_a_variant(word: str, run_id: str) -> None:
    assert pick_run(NIGHTS, word).run_id == run_id


def test_previous_of_a_variant_is_its_run_of_the_night_before() -> None:
    assert pick_run(NIGHTS, "previous", beside=NIGHTS[0]).run_id == "night1large"
    with pytest.raises(WarehouseError, match=r"suites in the warehouse: harbour, harbour/large"):
        pick_run(NIGHTS, "latest:harbour/small")
    with pytest.raises(WarehouseError, match=r"every evaluation is of a variant; .* latest:SUITE/NAME"):
        pick_run([run for run in NIGHTS if run.variant], "latest")


@dataclass(frozen=True, kw_only=True)
class Harbour:
    """A suite of three variants, the bot that they ask, their judge and a webhook.

    `large` is right everywhere, `small` in English, `cheap` in Chinese; a model `down` gets an error.
    """

    place: Place
    bot: TargetServer
    judge: Endpoint
    webhook: Webhook

    def write(self, tables: str = VARIANTS) -> None:
        write(self.place.folder, tables, url=self.bot.url)

    def run(self, *arguments: str) -> Finished:
        return self.place.call("run", "nightly.toml", *arguments)

    def read_nights(self, columns: str) -> list[tuple[Any, ...]]:
        sql = f"select {columns} from runs where kind = 'evaluation' order by started_at"
        return [tuple(row.values()) for row in self.place.read(sql, "w.duckdb")]

    def count_asked(self) -> Counter[str]:
        return Counter(sent.body["model"] for sent in self.bot.requests if isinstance(sent.body, dict))


QUESTIONS = [
    {
        "id": f"q{number}",
        "question": f"How long is {thing} {number}?",
        "ground_truth": f"The {thing} {number} is {number + 7} metres long.",
        "language": "zh" if number % 2 else "en",
    }
    for number, thing in enumerate(["quay", "lock", "crane", "ferry", "tug", "buoy"] * 4)
]
MODELS = {"large": ("en", "zh"), "small": ("en",), "cheap": ("zh",)}
BY_QUESTION = {row["question"]: row for row in QUESTIONS}


def answer(sent: Sent) -> Canned:
    assert isinstance(sent.body, dict)
    row, model = BY_QUESTION[sent.body["question"]], sent.body["model"]
    if model == "down":
        return Canned(status=404)
    text = row["ground_truth"] if row["language"] in MODELS[model] else "Gulls like herring."
    return answer_json({"answer": text, "contexts": [text]})


@contextmanager
def open_harbour(folder: Path, prefect_home: Path, **options: Any) -> Iterator[Harbour]:  # noqa: ANN401  # Options checks them
    write_dataset(folder, QUESTIONS, "questions.jsonl")
    with serving(answer) as bot, running_endpoint(**options) as judge, serve_webhook() as webhook:
        variables = {
            "PREFECT_HOME": str(prefect_home), "HOOK": webhook.url, "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": judge.base_url,
        }  # fmt: skip
        house = Harbour(place=Place(folder=folder, variables=variables), bot=bot, judge=judge, webhook=webhook)
        house.write()
        yield house


@pytest.mark.slow
def test_a_night_asks_every_variant_and_splits_ground_truths_once(tmp_path: Path, prefect_home: Path) -> None:
    notify = '[gate]\nmax_cost = 0.0000001\n[notify]\nwebhook = "${HOOK}"\non = ["completed", "gate_failed"]\n'
    with open_harbour(tmp_path, prefect_home) as house:
        house.write(VARIANTS + notify)
        estimated = house.run("--dry-run", "--json", "--limit", "20")
        assert estimated.document["variants"].keys() == {"large", "cheap"}
        assert estimated.stderr.count("columns: ") == 1
        ran = house.run("--limit", "20", "--json")
        assert ran.stderr.count("columns: ") == 1
        assert ran.status == 1, "the gate is of the suite itself"
        document = ran.document
        assert house.count_asked() == {"small": 20, "large": 20, "cheap": 20}
        # Twenty ground truths, and for each question the wrong answer: the right one is the ground truth.
        assert house.judge.stats.kinds["extract"] == 40
        nights = house.read_nights("variant, status, gate, night")
        assert nights == [
            (None, "completed", "failed", document["run_id"]),
            ("large", "completed", None, document["run_id"]),
            ("cheap", "completed", None, document["run_id"]),
        ]
        samples = house.place.read("select count(distinct sample_id) as n, count(*) as of from run_samples", "w.duckdb")
        assert samples == [{"n": 20, "of": 60}]
        series = house.place.read("select distinct series from run_series order by all", "w.duckdb")
        assert [row["series"] for row in series] == ["suite harbour", "suite harbour/cheap", "suite harbour/large"]
        runs = document["variants"]["runs"]
        assert [run["variant"] for run in runs] == [None, "large", "cheap"]
        (posted,) = house.webhook.bodies
        assert [run["run_id"] for run in posted["variants"]["runs"]] == [run["run_id"] for run in runs]
        result = document["variants"]["lines"][0]
        assert result.startswith("The winner is large, better than harbour in factual_f1 (+0.500")
        assert "cheap loses in language en" in result
        assert posted["text"].startswith(f"❌ {result}")

        before = house.judge.stats.requests.total()
        alone = house.run("--variant", "large", "--limit", "20", "--json")
        assert (alone.status, alone.document["gate"], house.judge.stats.requests.total()) == (0, None, before)
        known = house.run("--dry-run", "--json", "--limit", "20").document
        of_variants = known["variants"].values()
        assert [part["requests"] for part in (known, *of_variants)] == [0, 0, 0], "each by the answers it gave"
        newest = house.place.call("show", "latest", "--json", "--warehouse", "w.duckdb").document
        assert newest["run"]["run_id"] == document["run_id"]
        looked_at = house.place.call("doctor", "nightly.toml").stdout
        assert "variant large: target" in looked_at
        asked = house.count_asked()
        rejudged = house.run("--responses", "latest:harbour/large", "--variant", "large", "--limit", "20")
        assert (rejudged.status, house.count_asked()) == (0, asked)
        house.place.call("report", "latest", "-o", "report.html", "--warehouse", "w.duckdb")
        assert "The winner is large, better than harbour" in (house.place.folder / "report.html").read_text()
        # Of the suite itself it is a trial; it was the baseline of the suite's own bot.
        tried = house.run("--responses", "latest:harbour/large", "--limit", "20")
        assert (tried.status, house.count_asked()) == (0, asked)
        sql = "select part from run_series where series = 'suite harbour' order by started_at desc limit 1"
        assert house.place.call("query", sql, "--json", "--warehouse", "w.duckdb").document == [
            {"part": "20/harbour/large"}
        ]


@pytest.mark.slow
def test_a_stop_between_two_variants_is_not_announced_and_resumes_with_the_ones_left(
    tmp_path: Path, prefect_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_once(*arguments: Any, **options: Any) -> list[RunRow]:  # noqa: ANN401
        monkeypatch.setattr(suite_runs, "list_night_runs", list_night_runs)
        signal.raise_signal(signal.SIGTERM)
        return list_night_runs(*arguments, **options)

    with open_harbour(tmp_path, prefect_home) as house:
        house.write(VARIANTS + '[notify]\nwebhook = "${HOOK}"\non = ["completed", "incomplete", "failed"]\n')
        monkeypatch.setattr(suite_runs, "list_night_runs", stop_once)
        stopped = house.run("--limit", "8")
        assert house.read_nights("variant, status") == [(None, "completed")]
        own = house.read_nights("run_id")[0][0]
        assert (stopped.status, house.webhook.bodies) == (130, [])
        assert "stopped by SIGTERM" in stopped.stderr
        assert re.search(rf"evalhouse resume {own} .*\(the variants that were not asked\)", stopped.stdout)
        resumed = house.place.call("resume", own, "--warehouse", "w.duckdb")
        assert resumed.status == 0, resumed.stderr
        assert dict(house.read_nights("variant, status")) == dict.fromkeys((None, "large", "cheap"), "completed")
        assert (house.count_asked()["small"], len(house.webhook.bodies)) == (8, 1)


@pytest.mark.slow
def test_a_night_that_is_suspended_in_prefect_ends_like_a_stopped_one(
    tmp_path: Path, prefect_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def suspend(_: LiveRun) -> None:
        raise Pause  # as Prefect does, which gives no reason

    with open_harbour(tmp_path, prefect_home) as house:
        with monkeypatch.context() as patch:
            patch.setattr("evalhouse.flows.shards.wait_while_paused", suspend)
            stopped = house.run("--limit", "8")
        ((own, status, problem),) = house.read_nights("run_id, status, problem")
        assert (stopped.status, status, problem) == (130, "cancelled", SUSPENDED)
        assert house.place.call("resume", own, "--warehouse", "w.duckdb").status == 0
        assert dict(house.read_nights("variant, status")) == dict.fromkeys((None, "large", "cheap"), "completed")


STOPS = {
    "a bot that is down is one result of the night": (
        '[variants.down.target]\nattempts = 1\nbody.question = "{{question}}"\nbody.model = "down"\n' + VARIANTS, {},
        {None: "completed", "down": "failed", "large": "completed", "cheap": "completed"},
    ),
    "a judge that fails would fail again": (
        VARIANTS, {"faults": {"insufficient_quota": 1.0}}, {None: "failed"},
    ),
    "a budget is for all variants": (
        "[limits]\nbudget_usd = 0.001\n" + VARIANTS, {}, {None: "incomplete"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("tables", "options", "ended"), STOPS.values(), ids=STOPS.keys())
def test_what_a_night_does_after_a_run_that_fails(
    tmp_path: Path, prefect_home: Path, tables: str, options: dict[str, Any], ended: dict[str, str]
) -> None:
    with open_harbour(tmp_path, prefect_home, **options) as house:
        house.write(tables)
        ran = house.run("--limit", "8")
        assert dict(house.read_nights("variant, status")) == ended
        assert ran.status == 3
        if "large" not in ended:
            assert "large, cheap not asked: " in ran.stderr
            assert "(the variants that were not asked)" in ran.stdout
        if ended == {None: "incomplete"}:
            own = house.read_nights("run_id")[0][0]
            for _ in range(2):
                resumed = house.place.call("resume", own, "--budget", "5", "--warehouse", "w.duckdb")
                assert resumed.status == 0, resumed.stderr
            assert sorted(house.read_nights("status, variant")[1:]) == [("completed", "cheap"), ("completed", "large")]
            assert house.count_asked() == {"small": 8, "large": 8, "cheap": 8}
            assert house.judge.stats.duplicates_answered == 0
