"""Suites: what a file becomes, and what is refused, each problem with its line, its key and what is allowed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import is_suite, resolve_settings
from evalhouse.flows.preparing.suites import Suite, explain_bad_cron, load_suite
from evalhouse.flows.serving.flow_runs import list_fires
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.settings.suite import SuiteGate

FULL = """\
name = "handbook"
dataset = "data/questions.jsonl"
judge = "openai:gpt-4.1-mini"
language = "zh"
metrics = ["factual_f1", "faithfulness"]
tags = ["nightly"]
temperature = "none"
warehouse = "w.duckdb"
prompts = "prompts"

[map]
question = "ask"

[metric_settings.answer_correctness]
f1_weight = 0.5

[limits]
concurrency = 4
budget_usd = 2

[target]
url = "http://localhost:8099/ask"
headers = { Authorization = "Bearer ${BOT_TOKEN}" }

[schedule]
cron = "0 3 * * *"
timezone = "Asia/Shanghai"

[trigger]
knowledge_base = "handbook"
debounce_s = 30
only_affected = true

[noise]
share = 0.05

[gate]
max_cost = 1
min_coverage = 0.9

[gate.min]
factual_f1 = 0.8

[gate.max_drop]
faithfulness = 0.02

[notify]
webhook = "${SLACK_URL}"
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_suite(text: str, name: str = "nightly.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_suite


@pytest.fixture
def load(write: Write) -> Callable[..., Suite]:
    return lambda text, name="nightly.toml": load_suite(write(text, name))


def refuse(path: Path) -> list[str]:
    """Return the problems of a suite, one a line, without the name of its file."""
    with pytest.raises(SettingsError) as refused:
        load_suite(path)
    lines = str(refused.value).splitlines()
    assert all(line.startswith(f"{path.name}, line ") for line in lines)
    return [line.removeprefix(f"{path.name}, ") for line in lines]


def test_a_whole_suite(load: Callable[..., Suite], tmp_path: Path) -> None:
    suite = load(FULL)
    assert suite.name == "handbook"
    assert suite.path == tmp_path / "nightly.toml"
    settings = resolve_settings({}, suite=suite).settings
    assert (settings.suite, settings.suite_hash) == ("handbook", suite.suite_hash)
    assert settings.dataset == str(tmp_path / "data/questions.jsonl")
    assert settings.warehouse == str(tmp_path / "w.duckdb")
    assert settings.prompts == str(tmp_path / "prompts")
    assert settings.mapping == {"question": "ask"}
    assert settings.metrics == ("factual_f1", "faithfulness")
    assert settings.metric_settings == {"answer_correctness": {"f1_weight": 0.5}}
    assert (settings.concurrency, settings.budget_usd, settings.temperature) == (4, 2.0, None)
    assert settings.noise_share == 0.05
    assert settings.target is not None
    assert settings.target.headers == {"Authorization": "Bearer ${BOT_TOKEN}"}
    assert suite.schedule is not None
    assert (suite.schedule.cron, suite.schedule.timezone) == ("0 3 * * *", "Asia/Shanghai")
    assert suite.trigger is not None
    assert (suite.trigger.knowledge_base, suite.trigger.debounce_s) == ("handbook", 30)
    assert suite.trigger.only_affected
    assert not settings.only_affected, "what is set for updates holds for no other run"
    assert suite.gate is not None
    assert suite.gate.metrics == ("factual_f1", "faithfulness")
    assert settings.gate == suite.gate
    assert suite.notify is not None
    assert suite.notify.on == ("failed", "incomplete", "gate_failed")


def test_the_least_suite_has_the_defaults_of_a_run(load: Callable[..., Suite]) -> None:
    suite = load('dataset = "sample"\n')
    assert (suite.name, suite.schedule, suite.trigger, suite.gate, suite.notify) == ("nightly", None, None, None, None)
    settings = resolve_settings({}, suite=suite).settings
    assert settings == RunSettings(suite="nightly", suite_hash=suite.suite_hash)


def test_a_stored_run_gives_its_settings_back(load: Callable[..., Suite]) -> None:
    settings = resolve_settings({}, suite=load(FULL)).settings
    assert RunSettings.model_validate_json(settings.model_dump_json()) == settings


def test_paths_are_seen_from_the_suites_folder(load: Callable[..., Suite], tmp_path: Path) -> None:
    values = load(
        'dataset = "q.duckdb#questions"\nwarehouse = "duckdb:///sub/w.duckdb"\nprices = "/etc/p.yaml"\n'
    ).values
    assert values["dataset"] == str(tmp_path / "q.duckdb#questions")
    assert values["warehouse"] == f"duckdb:///{tmp_path}/sub/w.duckdb"
    assert values["prices"] == "/etc/p.yaml"
    values = load('dataset = "sample"\nwarehouse = "duckdb:////srv/w.duckdb"\n').values
    assert (values["dataset"], values["warehouse"]) == ("sample", "duckdb:////srv/w.duckdb")


def test_address_written_into_the_suite_is_not_stored(load: Callable[..., Suite]) -> None:
    suite = load('dataset = "sample"\n[notify]\nwebhook = "https://hooks.example/T0/secret"\n')
    assert suite.notify is not None
    assert suite.notify.webhook == "https://hooks.example/T0/secret"
    assert resolve_settings({}, suite=suite).settings.notify is None
    assert "secret" not in repr(suite)


def test_hash_depends_on_values_and_not_on_layout(load: Callable[..., Suite]) -> None:
    one = load('dataset = "sample"\n[limits]\nrpm = 5\nlimit = 2\n')
    other = load("# why\nlimits = { limit = 2,   rpm = 5 }\ndataset = 'sample'\n", "other.toml")
    changed = load('dataset = "sample"\n[limits]\nrpm = 6\nlimit = 2\n')
    assert one.suite_hash == other.suite_hash != changed.suite_hash


def test_all_problems_are_reported_with_line_and_key(write: Write) -> None:
    expected = refuse(
        write(
            """\
dataset = "sample"
concurrency = 3
jugde = "lexical"
metrics = ["factual_f1", 7]

[limits]
rpm = 0
timeout_s = "60"
atempts = 2
judge = "lexical"

[target]
url = "http://localhost/ask"
headers = { "X-Team" = 5 }
anwser = "$.a"

[schedule]
cron = "0 25 * * *"
timezone = "localtime"

[trigger]
debounce_s = 3

[gate]
[gate.min]
hallucination = 0.1
[gate.max]
hallucination = 5
[gate.coverage]
factual_f1 = 90

[notify]
webhook = "ftp://x"
on = ["fialed"]
"""
        )
    )
    assert expected == [
        "line 2: concurrency: unknown key here; it belongs in [limits]",
        "line 3: jugde: unknown key; did you mean judge or judges?",
        "line 4: metrics[2]: got 7; input should be a valid string",
        "line 7: limits.rpm: got 0; input should be greater than or equal to 1",
        "line 8: limits.timeout_s: got '60'; input should be a valid number",
        "line 9: limits.atempts: unknown key; did you mean attempts?",
        "line 10: limits.judge: unknown key here; it belongs in the top of the file, above the first table",
        "line 14: target.headers.X-Team: got 5; input should be a valid string",
        "line 15: target.anwser: unknown key; did you mean answer?",
        "line 18: schedule.cron: got '0 25 * * *'; it is not a cron expression; write five fields: minute, hour, "
        "day of month, month, day of week, such as '0 3 * * *' for each night at three",
        "line 19: schedule.timezone: got 'localtime'; unknown time zone; allowed are names such as UTC, "
        "Europe/Berlin, Asia/Shanghai",
        "line 21: trigger.knowledge_base: is missing; give it, or `asset` in its place",
        "line 22: trigger.debounce_s: got 3; input should be greater than or equal to 10",
        "line 25: gate.min: hallucination: better when low; put a limit into [gate.max]",
        "line 27: gate.max: hallucination is from 0 to 1, and so are its limits: got 5; 5 % is 0.05",
        "line 30: gate.coverage.factual_f1: got 90; input should be less than or equal to 1",
        "line 33: notify.webhook: give an address that begins with https:// or http://, or ${NAME}",
        "line 34: notify.on[1]: got 'fialed'; input should be 'completed', 'incomplete', 'failed' or 'gate_failed'",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'judge = "lexical"',
            "line 1: `dataset` is missing; name a file, or 'sample' for the dataset that ships with evalhouse",
        ),
        (
            'dataset = "sample"\nname = "a b"',
            "line 2: name: got 'a b'; allowed are letters, digits, `_`, `-` and `.`, at most 100, the first a letter, "
            "digit or `_`",
        ),
        (
            'dataset = "sample"\n[gate]\nundecided = "fail"',
            "line 2: gate: there is nothing to check; give max_cost, max_latency_p95_ms, min_coverage, or a limit in "
            "[gate.min], [gate.max], [gate.max_drop], [gate.trend], [gate.coverage] or [gate.by.COLUMN]",
        ),
        (
            'dataset = "sample"\n[gate]\nagainst = "base"\nmax_cost = 1',
            "line 2: gate: there is nothing to compare; give a limit in [gate.max_drop], or leave `against` out",
        ),
        (
            'dataset = "sample"\n[notify]\nwebhook = "${W}"\non = []',
            "line 4: notify.on: got []; name at least one ending, or leave `on` out",
        ),
        (
            'dataset = "sample"\n[trigger]\nknowledge_base = "docs"\ndebounce_s = 90\nmax_wait_s = 60',
            "line 5: trigger.max_wait_s: got 60; an update cannot wait shorter than debounce_s; give at least 90",
        ),
        (
            'dataset = "sample"\n[trigger]\nasset = "s3://kb/*"',
            "line 3: trigger.asset: got 's3://kb/*'; it cannot be the key of an asset; write it as in @materialize: a "
            "scheme in small letters, :// and a name, such as s3://kb/handbook, at most 512 characters, no blanks "
            "and none of * # ? & % \" ' < > [ ] { } | \\ ^ `",
        ),
        (
            'dataset = "sample"\nname = "a"\n[trigger]\nasset = "evalhouse://suite/a/scores"',
            "line 4: trigger.asset: these are the scores of this suite, so that each run would start another",
        ),
        (
            'dataset = "sample"\n[trigger]\nasset = "s3://kb/a"\nknowledge_base = "a"',
            "line 4: trigger.knowledge_base: got 'a'; there is an `asset` as well; a suite has one of the two",
        ),
        (
            'dataset = "sample"\nmax_wait_s = 60',
            "line 2: max_wait_s: unknown key here; it belongs in [limits] or [trigger]",
        ),
        (
            'dataset = "sample"\n[notify]\nwebhook = "https://x/$TOKEN"',
            "line 3: notify.webhook: a variable is written ${NAME}, with letters, digits and _; what Prefect has "
            "${secret:NAME}",
        ),
    ],
)  # fmt: skip
def test_refused(write: Write, text: str, expected: str) -> None:
    assert refuse(write(text)) == [expected]


def test_a_name_from_the_file_must_be_one_too(write: Write) -> None:
    assert refuse(write('dataset = "sample"', "my suite.toml"))[0].startswith(
        "line 1: name: got 'my suite' from the name of its file, as `name` is missing; allowed are"
    )


def test_a_secret_is_shown_in_no_refusal(write: Write) -> None:
    text = """dataset = "sample"
[target]
url = "http://x/a"
callable = "a:b"
headers = { X-Team = "hush-1" }
[notify]
webhook = "hush-2"
what = 1
"""
    expected = refuse(write(text))
    assert len(expected) == 3
    assert "hush" not in "".join(expected)


def test_votes_wait_for_the_judge_that_a_flag_names(load: Callable[..., Suite]) -> None:
    suite = load('dataset = "sample"\nvotes = 3\n')
    assert resolve_settings({"judge": "openai:m"}, suite=suite).settings.votes == 3
    with pytest.raises(SettingsError, match=r"^suite nightly\.toml: got 3; the lexical judge is deterministic"):
        resolve_settings({}, suite=suite)


def test_flags_win_over_variables_over_the_suite_over_defaults(
    load: Callable[..., Suite], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = load('dataset = "sample"\nlabel = "suite"\nlanguage = "zh"\n[limits]\nrpm = 1\ntpm = 1000\n')
    monkeypatch.setenv("EVALHOUSE_RPM", "2")
    monkeypatch.setenv("EVALHOUSE_LABEL", "variable")
    resolved = resolve_settings({"label": "flag", "tpm": None}, suite=suite)
    settings = resolved.settings
    assert (settings.label, settings.rpm, settings.tpm, settings.language) == ("flag", 2, 1000, "zh")
    origins = {name: resolved.origins[name] for name in ("label", "rpm", "tpm", "language", "attempts")}
    assert origins == {
        "label": "--label", "rpm": "EVALHOUSE_RPM", "tpm": "suite nightly.toml", "language": "suite nightly.toml",
        "attempts": "default",
    }  # fmt: skip


def test_named_values_of_flags_add_to_those_of_the_suite(load: Callable[..., Suite]) -> None:
    suite = load(
        'dataset = "sample"\n[map]\nanswer = "a"\nquestion = "q"\n[metric_settings.m]\nx = 1\ny = 2\n'
        "[metric_settings.n]\nz = 3\n"
    )
    flags = {"mapping": {"answer": "b"}, "metric_settings": {"m": {"y": 5.0}}}
    settings = resolve_settings(flags, suite=suite).settings
    assert settings.mapping == {"answer": "b", "question": "q"}
    assert settings.metric_settings == {"m": {"x": 1, "y": 5}, "n": {"z": 3}}


def test_a_judge_in_a_suite_was_chosen(load: Callable[..., Suite]) -> None:
    assert resolve_settings({}, suite=load('dataset = "sample"\njudge = "lexical"\n')).judge_was_chosen
    assert not resolve_settings({}, suite=load('dataset = "sample"\n')).judge_was_chosen


def test_a_suite_is_known_by_its_ending() -> None:
    assert is_suite("nightly.toml")
    assert is_suite("A/B.TOML")
    assert not is_suite("questions.jsonl")
    assert not is_suite("sample")


# The problem of each; None if it is fine.
CRONS = {
    "0 3 * * *": None,
    "*/5 9-17 * * MON-FRI": None,
    "@daily": None,
    "* * * *": "it is not a cron expression",
    "nightly": "it is not a cron expression",
    "": "it is not a cron expression",
    "0 3 * * 9": "it is not a cron expression",
    "H 3 * * *": "random and hashed fields",
    "0 0 30 2 *": "that day never comes",
}
# Fields too many, and the five that mean the same; None where no five do.
LONG_CRONS = {
    "0 0 3 * * *": "0 3 * * *",
    "0 */5 9-17 * * MON-FRI": "*/5 9-17 * * MON-FRI",
    "0 30 2 ? * 2-6": "30 2 * * 1-5",
    "0 0 3 ? * 6#3 *": "0 3 * * 5#3",
    "0 3 * * ? *": "0 3 * * *",
    "0 3 ? * MON-FRI *": "0 3 * * MON-FRI",
    "a b c d e f": None,
}


@pytest.fixture(scope="module")
def refused_by_prefect() -> list[str]:
    """Return which of CRONS Prefect refuses; in a separate process, because importing Prefect settles its settings."""
    script = (
        "import json, sys; from prefect.client.schemas.schedules import CronSchedule\n"
        "def is_refused(cron):\n"
        "    try: CronSchedule(cron=cron)\n"
        "    except ValueError: return True\n"
        "print(json.dumps([cron for cron in sys.argv[1:] if is_refused(cron)]))"
    )
    asked = [sys.executable, "-c", script, *CRONS]
    refused: list[str] = json.loads(subprocess.run(asked, capture_output=True, check=True, timeout=60).stdout)
    return refused


@pytest.mark.parametrize("cron", CRONS)
def test_cron_is_read_as_prefect_reads_it(cron: str, refused_by_prefect: list[str]) -> None:
    expected, wrong = explain_bad_cron(cron), CRONS[cron]
    assert (expected is None) == (wrong is None)
    assert wrong is None or str(expected).startswith(wrong)
    # A day that never comes Prefect takes, and then never runs anything.
    assert (cron not in refused_by_prefect) == (wrong is None or wrong == "that day never comes")


@pytest.mark.parametrize("cron", LONG_CRONS)
def test_six_or_seven_fields_are_refused_with_the_five_that_mean_the_same(cron: str) -> None:
    problem, five = str(explain_bad_cron(cron)), LONG_CRONS[cron]
    assert problem.startswith(f"it has {len(cron.split())} fields")
    assert f"it is {five!r}: write that" in problem if five else "five fields" in problem
    assert five is None or explain_bad_cron(five) is None


# Around changes of clocks, with the fires in UTC: a time that clocks leave out comes as much earlier, and of an hour
# that comes twice the first fires.
CHANGES = [
    ("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00+00:00", ["03-28T00:30", "03-29T00:30"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+00:00", ["10-25T00:30", "10-26T01:30"]),
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+00:00", ["10-03T15:15", "10-04T15:15"]),
    ("0 0 * * *", "America/Santiago", "2026-09-05T12:00+00:00", ["09-06T03:00", "09-07T03:00"]),
]


@pytest.mark.parametrize(("cron", "zone", "start", "expected"), CHANGES)
async def test_announced_times_are_those_that_prefect_will_use(
    cron: str, zone: str, start: str, expected: list[str]
) -> None:
    fires = await list_fires(cron, zone, n=2, after=datetime.fromisoformat(start))
    assert [f"{fire.astimezone(UTC):%m-%dT%H:%M}" for fire in fires] == expected
    assert {str(fire.tzinfo) for fire in fires} == {zone}


def test_a_gate_without_drops_is_read_back_as_it_was_kept() -> None:
    gate = SuiteGate(min={"factual_f1": 0.5})
    assert SuiteGate.model_validate_json(gate.model_dump_json()) == gate
