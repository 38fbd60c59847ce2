"""Wrong usage and bad input: exit status 2, one clear message, no traceback, and nothing asked or half done."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest
from cli_house import ROWS, write_dataset
from cli_process import COMMAND, Ask, Finished, Place

from evalhouse.flows.cli import COMMANDS


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
        "run", "sample", "--concurrency", "0", "--timeout", "-1", message=("--concurrency: got 0", "timeout: got -1")
    ),
    refuse("run", "sample", "--temperature", "hot", message="--temperature: got 'hot'"),
    refuse("run", "sample", "--limit", "0", message="--limit: got 0"),
    refuse("run", "sample", "--sample-budget", "0", message="10"),
    refuse("run", "sample", "--sample-budget", "many", message="many"),
    refuse("run", "sample", "--metrics", ",", message="--metrics got ','"),
    refuse("run", "sample", "--map", "answer", message="--map got 'answer'; write NAME=VALUE"),
    refuse("run", "sample", "--set", "mrr=1", message="METRIC.PARAMETER=NUMBER"),
    refuse("run", "sample", "--set", "answer_corectness.x=1", message=("'answer_corectness'", "answer_correctness")),
    refuse("run", "sample", "--set", "answer_correctness.x=1", message=("no parameter 'x'", "factual_weight")),
    refuse("run", "sample", "--metric-files", "absent", "--set", "mrr.k=1", message="no folder of metric files"),
    refuse("run", "sample", "--no-such-option", message="--no-such-option"),
    refuse("run", "sample", message="EVALHOUSE_CONCURRENCY: got 'many'", EVALHOUSE_CONCURRENCY="many"),
    refuse("run", "sample", message="EVALHOUSE_TEMPERATURE: got '9'", EVALHOUSE_TEMPERATURE="9"),
    refuse("run", "sample", message=("127.0.0.1:9/api does not answer", "PREFECT_API_URL"), PREFECT_API_URL=NO_SERVER),
    refuse("resume", "latest", message="does not answer", PREFECT_API_URL=NO_SERVER),
    refuse("resume", "latest", "--attempts", "0", message="--attempts: got 0"),
    refuse("resume", message="RUN"),
    refuse("doctor", message="EVALHOUSE_RPM: got '-3'", EVALHOUSE_RPM="-3"),
    refuse("show", "nothing", message="no run fits 'nothing'"),
    refuse("show", "20", message="2 runs begin with '20'"),
    refuse("show", "latest", "--sort", "nothing", message="no metric 'nothing'; it has: "),
    refuse("show", "latest", "--worst", "-1", message="--worst"),
    refuse("runs", "--limit", "0", message="--limit"),
    refuse("lineage", "latest", "stranger", message="no sample 'stranger'; its samples: tide-1, "),
    refuse("lineage", "latest", "tide-1", "nothing", message="no score of metric 'nothing'"),
    refuse("lineage", "tide-2", message="no sample 'tide-2'; did you mean tide-1?"),
    refuse("lineage", "latest", "tide-1", "fatihfulness", message="did you mean faithfulness?"),
    refuse("lineage", "latest", "tide-1", "faithfulness", "more", message="[RUN] SAMPLE [METRIC]"),
    refuse("runs", "--warehouse", "none.duckdb", message="no warehouse at"),
    refuse("show", "latest", "--warehouse", "mysql://x", message="names no warehouse"),
    refuse("compare", "latest", "latest", message="BASE and CANDIDATE are both run"),
    refuse("compare", "previous", "latest", "--sort", "nothing", message="neither run has a metric 'nothing'; known: "),
    refuse("compare", "previous", "latest", "--sample", "stranger", message="'stranger' is not in both runs"),
    refuse("compare", "previous", "latest", "--cluster", "nothing", message="metadata column 'nothing'; known: "),
    refuse("compare", "previous", "latest", "--top", "-1", message="--top"),
    refuse("compare", "latest", message="CANDIDATE"),
    refuse("gate", "latest", message="nothing to check; give at least one of --min"),
    refuse("gate", "latest", "--accept", "latest", "--why", "x", message="--accept checks nothing"),
    refuse("gate", "latest", "--why", "x", message="--why and --accepted-by belong to --accept RUN"),
    refuse("gate", "latest", "--trend", "factual_f1=-0.1", message="a number of at least 0"),
    refuse("gate", "latest", "--min", "factual_f1", message="--min: 'factual_f1' is not METRIC=NUMBER"),
    refuse("gate", "latest", "--min", "factual_f1=much", message="'factual_f1=much' has no number"),
    refuse("gate", "latest", "--min", "factual_f1=nan", message="'factual_f1=nan' is out of range"),
    refuse("gate", "latest", "--min", "nothing=0.5", message="--min: the run has no metric 'nothing'; it has: "),
    refuse("gate", "latest", "--min", "factual_f1=0.5", "--min", "factual_f1=0.6", message="factual_f1 is given twice"),
    refuse("gate", "latest", "--min", "hallucination=0.5", message="this metric is better when low; use --max"),
    refuse("gate", "latest", "--max-drop", "factual_f1=0.1", message="--max-drop needs a baseline"),
    refuse("gate", "latest", "--against", "previous", "--max-cost", "1", message="has nothing to compare"),
    refuse("gate", "latest", "--against", "latest", "--max-drop", "factual_f1=0.1", message="both run"),
    refuse("gate", "latest", "--min-coverage", "90", message="allowed is a number from 0 to 1"),
    refuse("gate", "latest", "--min-coverage", "0.8", "--min-coverage", "0.9", message="are both for all metrics"),
    refuse("gate", "latest", "--max", "hallucination=5", message="--max: hallucination is from 0 to 1, and so are its"),
    refuse("gate", "latest", "--max", "hallucination=5", message="limits: got 5; 5 % is 0.05"),
    refuse("gate", "latest", "--min", "factual_f1=-1", message="--min: factual_f1 is from 0 to 1, and so are its"),
    refuse("gate", "latest", "--max-cost", "-1", message="'-1' is out of range"),
    refuse("gate", "latest", "--max-latency-p95-ms", "soon", message="--max-latency-p95-ms: 'soon' has no number"),
    refuse("gate", "latest", "--max-cost", "1", "--undecided", "maybe", message="--undecided"),
    refuse("gate", "latest", "--max-cost", "1", "--json", "--markdown", "-", message="both print on standard output"),
    refuse(
        "gate", "latest", "--max-cost", "1", "--junit", "no/such/gate.xml", message="no/such/gate.xml: No such file"
    ),
    refuse("diagnose", "latest", "--cause", "bad luck", message="retrieval_missed"),
    refuse("diagnose", "latest", "--language", "fr", message="'en', 'zh'"),
    refuse("diagnose", "latest", "--limit", "-1", message="--limit"),
    refuse("diagnose", "latest", "--runs", "0", message="--runs"),
    refuse("query", "selec 1", message="syntax error"),
    refuse("query", "\\d run_scor", message="unknown table or view 'run_scor'; did you mean run_scores"),
    refuse("query", "\\d zzzzzz", message="\\d lists what there is"),
    refuse("query", "delete from scores", message="DELETE; the warehouse is read-only"),
    refuse("query", "select 1", "--format", "parquet", message="--output"),
    refuse("query", "select timestamp '294246-01-01' as far", message="column 'far' holds a time outside"),
    refuse("query", "select date 'infinity' as far", message="write it as text"),
    refuse("query", "select 1", "-o", "no/such/folder/x.csv", message="cannot write no/such/folder/x.csv"),
    refuse("query", "-f", "no-such.sql", message="cannot read no-such.sql"),
    refuse("query", "-f", "evalhouse.duckdb", message="not UTF-8"),
    refuse("query", "select 1", "-f", "x.sql", message="give it once"),
    refuse("query", "select 1", "--memory-limit", "lots", message="'lots' is not a memory limit"),
    refuse("query", "select 1", "--format", "xml", message="'xml'"),
    refuse("query", "select 1", "--timeout", "0", message="--timeout"),
    refuse("query", "select count(*) from range(1000000000000) a", "--timeout", "0.2", message="stopped after 0.2 s"),
    refuse("prompts", "show", message="Missing argument 'NAME'"),
    refuse("prompts", "show", "rank", "--prompts", "absent", message="absent: is not a folder"),
    refuse("prompts", "show", "rank", "--map", "answer=reply", message="give one with --dataset"),
    refuse("prompts", "list", "--nonsense", message="--nonsense"),
    refuse("prompts", "lst", message="'lst'"),
    refuse("prompts", "show", "nothing", message="unknown prompt 'nothing'; known: accuracy, "),
    refuse("prompts", "list", "--language", "fr", message="unknown language"),
    refuse("rnu", message=("unknown command 'rnu'", "did you mean run")),
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
    assert "lexical judge gives the verdicts" not in finished.stderr, "an error is printed alone"


@pytest.mark.parametrize("case", AT_ONCE, ids=lambda case: " ".join(case.arguments)[:60])
def test_wrong_usage_is_refused_at_once(ask: Ask, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value)
    assert_refused(ask(*case.arguments), case)


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> list[Finished]:
    """Results of all commands of IN_A_RUN."""
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


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help(ask: Ask, option: str) -> None:
    for name in (*COMMANDS, "prompts show"):
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


def test_an_output_that_is_closed_or_full_is_not_an_unexpected_error() -> None:
    """A line of cron may end in `>&-`, and a disk may be full."""
    command = shlex.join([*COMMAND, "--version"])
    ended = {
        redirected: subprocess.run(["sh", "-c", f"{command} {redirected}"], capture_output=True, text=True, check=False)
        for redirected in (">&-", "2>&-", ">/dev/full")
    }
    assert [done.returncode for done in ended.values()] == [0, 0, 2]
    full = "Error: the result cannot be written to standard output: No space left on device\n"
    assert [done.stderr for done in ended.values()] == ["", "", full]


def test_a_name_that_is_not_utf8_is_refused_with_its_bytes(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that Windows packed may have such names."""
    name = os.fsdecode(b"caf\xe9.jsonl")
    finished = ask("run", name)
    assert finished.status == 2
    assert r"b'caf\xe9.jsonl' is not UTF-8" in finished.stderr
    documents = tmp_path / "docs"
    documents.mkdir()
    (documents / os.fsdecode(b"caf\xe9.md")).write_text("# Ferry\n\nThe ferry takes 20 minutes.\n")
    finished = ask("testset", "make", str(documents), "-o", str(tmp_path / "q.jsonl"), "--judge", "lexical")
    assert finished.status == 2
    assert r"b'caf\xe9.md': this name is not UTF-8" in finished.stderr
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = subprocess.run([*COMMAND, "runs"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "Error: this folder was removed; change to another one\n")


def test_code_that_ends_the_program_does_not_decide_the_exit_status(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    monkeypatch.setattr("evalhouse.flows.cli.evalhouse.main", lambda **_: sys.exit(0))
    finished = ask("runs")
    assert (finished.status, finished.stdout) == (2, "")
    assert "code that evalhouse called ended the program" in finished.stderr
