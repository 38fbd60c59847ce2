"""Wrong usage and bad input: exit status 2, one clear message, no traceback, and nothing asked or half done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest
from cli_house import ROWS, write_dataset
from cli_process import Finished, Place

Ask = Callable[..., Finished]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command that must be refused, and what the message must hold."""

    arguments: tuple[str, ...]
    message: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def refuse(*arguments: str, message: str | tuple[str, ...], **variables: str) -> Case:
    return Case(arguments=arguments, message=(message,) if isinstance(message, str) else message, variables=variables)


# Nothing listens there, and the credentials before the @ are never shown.
NO_SERVER = "http://someone:hunter2@127.0.0.1:9/api"

BAD_METRIC = """-- metric: bad
-- version: 1
-- needs: classify
-- One row per sample of the run.
select run_id, sample_id, 5 as val, null as unscored_reason from run_samples where run_id = $run_id
"""

# These get as far as the run's own checks, in a process each; `doctor` makes the same checks, and its tests more.
IN_A_RUN = [
    refuse("run", "missing.jsonl", message=("missing.jsonl: no such file", "harbour.jsonl")),
    refuse("run", "notes.xyz", message=("unknown format '.xyz'", ".parquet")),
    refuse("run", "broken.jsonl", message=("line 2: broken JSON", "nothing was loaded")),
    refuse("run", "doubled.jsonl", message=("2 problems", "line 2: contexts are not a list", "line 3: id 'a'")),
    refuse("run", "harbour.jsonl", "--metrics", "faithfullness", message=("'faithfullness'", "faithfulness")),
    refuse("run", "harbour.jsonl", "--judge", "gpt", message=("unknown judge 'gpt'", "openai:MODEL")),
    refuse("run", "harbour.jsonl", "--judge", "openai:gpt", message="OPENAI_API_KEY is not set"),
    refuse("run", "harbour.jsonl", "--metric-files", "own", "--metrics", "bad", message=("own/bad.sql: ", '"value"')),
    refuse("run", "bot.toml", "--metric-files", "own", "--metrics", "bad", "--dry-run", message="own/bad.sql: "),
    refuse("run", "harbour.jsonl", "--warehouse", "foreign.duckdb", message="tables that evalhouse did not make"),
    refuse("run", "harbour.jsonl", "--warehouse", "/proc/evalhouse/x.duckdb", message="/proc/evalhouse"),
]

# These are refused before anything is imported that runs.
AT_ONCE = [
    refuse("run", message="DATASET"),
    refuse("run", "sample", "--concurrency", "many", message=("--concurrency", "'many'")),
    refuse(
        "run", "sample", "--concurrency", "0", "--timeout", "-1", message=("--concurrency: got 0", "--timeout: got -1")
    ),
    refuse("run", "sample", "--temperature", "hot", message="--temperature: got 'hot'"),
    refuse("run", "sample", "--limit", "0", message="--limit: got 0"),
    refuse("run", "sample", "--metrics", ",", message="--metrics got ','"),
    refuse("run", "sample", "--map", "answer", message="--map got 'answer'; write NAME=VALUE"),
    refuse("run", "sample", "--set", "mrr=1", message="METRIC.PARAMETER=NUMBER"),
    refuse("run", "sample", "--set", "answer_corectness.x=1", message=("'answer_corectness'", "answer_correctness")),
    refuse("run", "sample", "--set", "answer_correctness.x=1", message=("no parameter 'x'", "factual_weight")),
    refuse(
        "run", "sample", "--metric-files", "nowhere", "--set", "mrr.k=1", message="no folder of metric files at nowhere"
    ),
    refuse("run", "sample", "--no-such-option", message="--no-such-option"),
    refuse("run", "sample", message="EVALHOUSE_CONCURRENCY: got 'many'", EVALHOUSE_CONCURRENCY="many"),
    refuse("run", "sample", message="EVALHOUSE_TEMPERATURE: got '9'", EVALHOUSE_TEMPERATURE="9"),
    refuse("run", "sample", message=("127.0.0.1:9/api does not answer", "PREFECT_API_URL"), PREFECT_API_URL=NO_SERVER),
    refuse("resume", "latest", message="does not answer", PREFECT_API_URL=NO_SERVER),
    refuse("resume", "latest", "--attempts", "0", message="--attempts: got 0"),
    refuse("resume", message="RUN"),
    refuse("rescore", "nothing", message="no run fits 'nothing'"),
    refuse("doctor", message="EVALHOUSE_RPM: got '-3'", EVALHOUSE_RPM="-3"),
    refuse("rnu", message=("unknown command 'rnu'", "did you mean run")),
    refuse("lineag", message="did you mean lineage"),
    refuse("xyzzy", message="known: init, run, resume, "),
    refuse("--nonsense", message="--nonsense"),
]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("Query interrupted")])
def test_an_interruption_anywhere_is_reported_in_one_line(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def interrupt(_: object) -> None:
        raise error

    monkeypatch.setattr("evalhouse.flows.commands.options.find_warehouse", interrupt)
    finished = ask("runs")
    assert finished.status == 130
    assert finished.stderr.strip() == "interrupted"


def assert_refused(finished: Finished, case: Case) -> None:
    assert finished.status == 2, finished
    assert finished.stdout == ""
    for text in case.message:
        assert text in finished.stderr, finished.stderr
    assert sum(line.startswith("Error: ") for line in finished.stderr.splitlines()) == 1, finished.stderr
    assert "Traceback" not in finished.stderr
    assert "hunter2" not in finished.stderr
    assert "lexical judge gives the verdicts" not in finished.stderr, "an error stands alone"


@pytest.mark.parametrize("case", AT_ONCE, ids=lambda case: " ".join(case.arguments)[:60])
def test_wrong_usage_is_refused_at_once(ask: Ask, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value)
    assert_refused(ask(*case.arguments), case)


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> list[Finished]:
    """How all of IN_A_RUN ended."""
    folder = tmp_path_factory.mktemp("refused")
    write_dataset(folder, ROWS)
    (folder / "notes.xyz").write_text("x")
    (folder / "broken.jsonl").write_text('{"question": "q"}\n{oops\n')
    (folder / "doubled.jsonl").write_text(
        '{"question":"1","id":"a"}\n{"question":"2","contexts":5}\n{"question":"3","id":"a"}\n'
    )
    (folder / "own").mkdir()
    (folder / "own" / "bad.sql").write_text(BAD_METRIC)
    (folder / "bot.toml").write_text('dataset = "harbour.jsonl"\n[target]\nurl = "http://127.0.0.1:9/"\n')
    with duckdb.connect(str(folder / "foreign.duckdb")) as connection:
        connection.execute("create table ledger as select 1 as entry")
    place = Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)})
    return [place.with_variables(**case.variables).call(*case.arguments) for case in IN_A_RUN]


@pytest.mark.parametrize("number", range(len(IN_A_RUN)), ids=lambda number: " ".join(IN_A_RUN[number].arguments)[4:60])
def test_bad_input_is_refused_before_a_run_is_stored(refusals: list[Finished], number: int) -> None:
    assert_refused(refusals[number], IN_A_RUN[number])
    assert refusals[number].seconds < 30


def test_nothing_refused_is_stored(
    refusals: list[Finished], ask: Ask, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folders = sorted(tmp_path_factory.getbasetemp().glob("refused*"))
    path = folders[-1] / "evalhouse.duckdb"
    if path.exists():
        assert ask("runs", "--json", "--warehouse", str(path)).document == []


def test_a_place_that_cannot_be_written_to_is_reported(ask: Ask, tmp_path: Path) -> None:
    finished = ask("runs", "--warehouse", str(tmp_path))
    assert finished.status == 2
    assert f"{tmp_path} is a folder" in finished.stderr


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_help_lists_every_command(ask: Ask, arguments: tuple[str, ...]) -> None:
    finished = ask(*arguments)
    assert finished.status == (0 if arguments else 2)
    text = finished.stdout or finished.stderr
    for name in ("run", "resume", "rescore", "runs", "show", "query", "lineage", "prompts", "doctor"):
        assert f"\n  {name} " in text
    assert "evalhouse run sample" in text


@pytest.mark.parametrize(
    "name", ["run", "resume", "rescore", "runs", "show", "query", "lineage", "prompts", "doctor", "prompts show"]
)
def test_every_command_has_help(ask: Ask, name: str) -> None:
    for option in ("-h", "--help"):
        finished = ask(*name.split(), option)
        assert finished.status == 0
        assert finished.stdout.startswith(f"Usage: evalhouse {name} ")


def test_version(ask: Ask) -> None:
    assert ask("--version").stdout.startswith("evalhouse ")


def test_a_misspelt_variable_is_pointed_out_and_does_not_stop_a_command(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALHOUSE_JUGDE", "lexical")
    finished = ask("run", "harbour.jsonl", "--map", "answer=bot_reply", "--dry-run", "--json")
    assert finished.status == 0
    assert "did you mean EVALHOUSE_JUDGE?" in finished.stderr
    assert finished.document
