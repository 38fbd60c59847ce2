"""A real model as the judge, beside the lexical one: what it says, how much of that is of use, and what it takes.

Judges rows of the sample dataset by every step of a default run, and labelled rows of your own as `evalhouse benchmark`
reads them, through the commands themselves with all settings left alone. With --testset it also writes so many
questions about the 60 documents that the tests of test sets have, and prints how many passed the checks. Installs and
fetches nothing: the model is a GGUF file with the command of a server for it (such as llama.cpp's), or an
endpoint at an address.

    python tests/benchmarks/real_model.py --folder DIR --model judge --gguf MODEL.gguf \\
        --server "llama-server -m {gguf} --port {port} --alias {model} -c 16384 -np 1" \\
        [--rows 30] [--labelled FOLDER_OR_FILE …] [--labelled-rows 60] [--testset N]
    python tests/benchmarks/real_model.py --folder DIR --model judge --base-url http://localhost:8080/v1

Everything is kept in DIR. The same command again resumes where it was stopped and asks for nothing twice. With --tables
it asks nothing, and prints the tables of what is there so far. Seconds of a request begin with its turn, when the one
before it was answered, so for a server with one slot they add up to the whole time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from port_base import write_base  # noqa: E402

SAMPLE = ROOT / "warehouse" / "sample_data" / "sample.jsonl"
COMMAND = Path(sys.executable).with_name("evalhouse")
LEXICAL = "lexical"
INCOMPLETE = 3  # the exit status of a command that left something without a verdict
START_S = 300.0
SCORES = ("factual_f1", "faithfulness", "context_recall", "context_precision")
RUNS = (
    "select run_id, status from runs where judge = '{judge}' and kind = 'evaluation' order by started_at desc limit 1"
)
CANDIDATES = """
select kind, count(*) as written, count(*) filter (where outcome in ('kept', 'surplus')) as passed
from testset_candidates
inner join runs on runs.run_id = testset_candidates.run_id
where judge = '{judge}'
group by kind
order by kind
"""
REASONS = """
select coalesce(reason, outcome) as reason, count(*) as n
from testset_candidates
inner join runs on runs.run_id = testset_candidates.run_id
where judge = '{judge}' and outcome not in ('kept', 'surplus')
group by all
order by n desc, reason
"""
CALLS = """
with timed as (
    select *, epoch(started_at) as began, epoch(started_at) + latency_ms / 1000 as ended
    from llm_calls
    where judge = '{judge}' and status <> 'cached'
),
turns as (
    select *, ended - greatest(began, coalesce(lag(ended) over (order by ended), began)) as seconds
    from timed
)
select
    regexp_replace(step, '_(answer|ground_truth)$', '') as step,
    count(*) as requests,
    count(reply) as replies,
    count(*) filter (where status = 'error' and reply is not null) as unreadable,
    count(*) filter (where status = 'ok' and error is not null) as incomplete,
    count(*) filter (where reply is null) as without_reply,
    sum(prompt_tokens) as tokens_in,
    sum(cached_tokens) as cached,
    sum(completion_tokens) as tokens_out,
    sum(seconds) as seconds
from turns
group by all
order by min(began)
"""
VERDICTS = """
select sample_id, context_rank, useful
from context_verdicts
where run_id = '{run_id}'
"""
MEANS = "select metric, mean, n_scored from run_scores where run_id = '{run_id}'"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Judge with a real model and with the lexical judge, and compare.")
    parser.add_argument("--folder", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--model", required=True, help="the name the server gives the model")
    parser.add_argument("--gguf", type=Path, help="a model's file, for --server")
    parser.add_argument("--server", help="the command of a server; {gguf}, {port} and {model} are filled in")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint that runs already")
    parser.add_argument("--rows", type=int, default=30, help="rows of the sample dataset, spread over it evenly")
    parser.add_argument("--labelled", action="append", default=[], help="a labelled set, file or folder of sets")
    parser.add_argument("--labelled-rows", type=int, default=60, help="at most, of each labelled set and language")
    parser.add_argument("--testset", type=int, metavar="N", help="also have a test set of N questions made")
    parser.add_argument("--tables", action="store_true", help="ask nothing; print what is there")
    arguments = parser.parse_args()
    if not arguments.tables and bool(arguments.server) == bool(arguments.base_url):
        parser.error("name either --server, with --gguf, or --base-url")
    if arguments.server and not (arguments.gguf and arguments.gguf.is_file()):
        parser.error(f"--gguf {arguments.gguf} is not a file")
    return arguments


@contextlib.contextmanager
def serving(arguments: argparse.Namespace) -> Iterator[str]:
    """The address of the endpoint, which is ended with the block where it was started here."""
    if arguments.base_url:
        yield arguments.base_url
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = arguments.server.format(gguf=arguments.gguf, port=port, model=arguments.model)
    with (arguments.folder / "server.log").open("ab") as log:
        process = subprocess.Popen(shlex.split(command), stdout=log, stderr=log)
    try:
        base_url = f"http://127.0.0.1:{port}/v1"
        wait_until_loaded(base_url, process)
        yield base_url
    finally:
        process.terminate()
        process.wait()


def wait_until_loaded(base_url: str, process: subprocess.Popen[bytes]) -> None:
    """Servers list their models, or say 503, once they listen; most listen before the model is loaded."""
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{base_url}/models"):
            return
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}; server.log says why")
        time.sleep(0.5)
    raise SystemExit(f"the server did not list its models within {START_S:g} s; server.log may say why")


class House:
    """The folder of one comparison, and the commands in it."""

    def __init__(self, folder: Path, base_url: str | None) -> None:
        self.rows, self._warehouse = folder / "rows.jsonl", folder / "w.duckdb"
        self.documents, self.questions = folder / "docs", folder / "set.jsonl"
        own = {"EVALHOUSE_WAREHOUSE": f"duckdb:///{self._warehouse}", "PREFECT_HOME": str(folder / "prefect")}
        self._environment = os.environ | own | ({"OPENAI_BASE_URL": base_url} if base_url else {})

    def call(self, *arguments: str, allowed: Sequence[int] = (0,)) -> str:
        """Standard output of a command; its progress goes to this one's standard error."""
        done = subprocess.run(
            [COMMAND, *arguments], stdout=subprocess.PIPE, text=True, env=self._environment, check=False
        )
        if done.returncode not in allowed:
            raise SystemExit(f"evalhouse {shlex.join(arguments)} ended with status {done.returncode}")
        return done.stdout

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows; none before the first run has made the warehouse."""
        if not self._warehouse.exists():
            return []
        rows: list[dict[str, Any]] = json.loads(self.call("query", sql, "--format", "json"))
        return rows

    def find_run(self, judge: str) -> str | None:
        """The last run of a judge, if there is one."""
        runs = self.query(RUNS.format(judge=judge))
        return str(runs[0]["run_id"]) if runs else None

    def judge_rows(self, judge: str) -> None:
        """Begin a run, resume one that was stopped, or leave a complete one alone."""
        runs = self.query(RUNS.format(judge=judge))
        if not runs:
            self.call("run", str(self.rows), "--judge", judge, allowed=(0, INCOMPLETE))
        elif runs[0]["status"] != "completed":
            self.call("resume", runs[0]["run_id"], allowed=(0, INCOMPLETE))

    def make_set(self, judge: str, count: int) -> None:
        """Questions about the documents of the port, unless a set is there; stored replies are not asked for again."""
        if not self.questions.exists():
            write_base(self.documents, version=1)
            named = ("-n", str(count), "-o", str(self.questions), "--judge", judge)
            self.call("testset", "make", str(self.documents), *named, allowed=(0, INCOMPLETE))

    def judge_labelled(self, judge: str, data: Sequence[str], limit: int) -> list[dict[str, Any]]:
        """The sets as `benchmark` reports them; stored replies are not asked for again."""
        named = [argument for one in data for argument in ("--data", one)]
        command = ("benchmark", "--judge", judge, "--limit", str(limit), *named, "--json")
        return list(json.loads(self.call(*command, allowed=(0, INCOMPLETE)))["sets"])


def spread_rows(count: int) -> list[str]:
    """Return so many lines of the sample, at even distances."""
    lines = SAMPLE.read_text(encoding="utf-8").splitlines(keepends=True)
    count = min(count, len(lines))
    return [lines[place * len(lines) // count] for place in range(count)]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [[write(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    print(f"\n{title}")
    for row in cells:
        print(
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )


def write(cell: object) -> str:
    if cell is None:
        return "–"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def print_steps(house: House, judge: str) -> None:
    """Print the replies and the cost of each step's requests."""
    rows = []
    for step in house.query(CALLS.format(judge=judge)):
        useless = step["unreadable"] + step["incomplete"]
        share = f"{useless / step['replies']:.1%}" if step["replies"] else None
        seconds = (step["seconds"] or 0.0) / step["requests"]
        rows.append(
            [step["step"], step["requests"], step["replies"], step["unreadable"], step["incomplete"], share,
             step["without_reply"], step["tokens_in"], step["cached"], step["tokens_out"], f"{seconds:.1f}"]
        )  # fmt: skip
    columns = ["step", "requests", "replies", "unreadable", "incomplete", "of no use at once", "no reply",
               "tokens in", "cached", "tokens out", "s a request"]  # fmt: skip
    print_table(f"Replies of {judge}", columns, rows)


def count_agreement(house: House, run_id: str | None) -> tuple[int, int]:
    """Verdicts of rank that are right, by the contexts that the sample names as its sources, and all where it does."""
    known: dict[str, Mapping[str, Any]] = {
        row["id"]: row for row in map(json.loads, house.rows.read_text(encoding="utf-8").splitlines())
    }
    verdicts = house.query(VERDICTS.format(run_id=run_id)) if run_id else []
    found = [
        verdict["useful"] == (row["contexts"][verdict["context_rank"] - 1]["id"] in row["reference_context_ids"])
        for verdict in verdicts
        if "reference_context_ids" in (row := known[verdict["sample_id"]])
    ]
    return sum(found), len(found)


def print_sample(house: House, judges: Sequence[str]) -> None:
    """The sample by each judge: verdicts on contexts beside the sample's own sources, and the means of scores."""
    rows = []
    for judge in judges:
        run_id = house.find_run(judge)
        right, n = count_agreement(house, run_id)
        means = {row["metric"]: row for row in house.query(MEANS.format(run_id=run_id))} if run_id else {}
        shown = [
            f"{mean['mean']:.3f} of {mean['n_scored']}" if (mean := means.get(name)) and mean["n_scored"] else None
            for name in SCORES
        ]
        rows.append([judge, f"{right} of {n}", *shown])
    print_table("Rows of the sample", ["judge", "contexts right", *SCORES], rows)


def print_candidates(house: House, judge: str) -> None:
    """Print the questions that a judge wrote for a test set, by kind, and the checks that others failed."""
    found = house.query(CANDIDATES.format(judge=judge))
    if not found:
        return
    rows = [[one["kind"], one["written"], one["passed"], one["passed"] / one["written"]] for one in found]
    written, passed = (sum(one[name] for one in found) for name in ("written", "passed"))
    print_table(
        "Questions of a test set",
        ["kind", "written", "passed", "share"],
        [*rows, ["all", written, passed, passed / written]],
    )
    reasons = [[one["reason"], one["n"]] for one in house.query(REASONS.format(judge=judge))]
    print_table("Turned down by", ["check", "questions"], reasons)


def print_labelled(by_judge: Mapping[str, list[dict[str, Any]]]) -> None:
    """Agreement with people, set by set."""
    rows = []
    for judge, sets in by_judge.items():
        for one in sets:
            for name in ("balanced_accuracy", "spearman", "f1"):
                if figure := one["judge"]["figures"].get(name):
                    interval = f"{write(figure['ci_low'])} to {write(figure['ci_high'])}"
                    missing = one["judge"]["n_missing"]
                    rows.append(
                        [one["set"], one["kind"], judge, one["judge"]["n"], missing, name, figure["value"], interval]
                    )
                    break
    columns = ["set", "kind", "judge", "judged", "no verdict", "figure", "value", "95 % interval"]
    print_table("Labelled rows", columns, sorted(rows, key=lambda row: str(row[0])))


def main() -> None:
    arguments = read_arguments()
    folder = arguments.folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    judge = f"openai:{arguments.model}"
    context = contextlib.nullcontext(None) if arguments.tables else serving(arguments)
    with context as base_url:
        house = House(folder, base_url)
        labelled: dict[str, list[dict[str, Any]]] = {}
        if not arguments.tables:
            if not house.rows.exists():
                house.rows.write_text("".join(spread_rows(arguments.rows)), encoding="utf-8")
            for name in (LEXICAL, judge):
                if arguments.rows:
                    house.judge_rows(name)
                if arguments.labelled:
                    labelled[name] = house.judge_labelled(name, arguments.labelled, arguments.labelled_rows)
            if arguments.testset:
                house.make_set(judge, arguments.testset)
    print_steps(house, judge)
    if arguments.rows:
        print_sample(house, [LEXICAL, judge])
    print_candidates(house, judge)
    if labelled:
        print_labelled(labelled)


if __name__ == "__main__":
    main()
