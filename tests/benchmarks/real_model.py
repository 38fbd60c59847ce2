"""A real model as the judge, beside the lexical one: what it says, how much of that is of use, and what it takes.

Judges rows of the sample dataset by every step of a default run, and labelled rows of your own as `evalhouse benchmark`
reads them, through the commands themselves with all settings left alone. With --testset it also writes so many
questions about the 60 documents that the tests of test sets have, and prints how many passed the checks. The model is
at an endpoint that runs already, such as llama.cpp's server.

    python tests/benchmarks/real_model.py --folder DIR --model judge --base-url http://localhost:8080/v1 \\
        [--rows 30] [--labelled FOLDER_OR_FILE …] [--labelled-rows 60] [--testset N]

Everything is kept in DIR. The same command again resumes where it was stopped and asks for nothing twice. With --tables
it asks nothing, and prints the tables of what is there so far. Seconds of a request begin with its turn, when the one
before it was answered, so for a server with one slot they add up to the whole time.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from port_base import write_base  # noqa: E402

SAMPLE = ROOT / "warehouse" / "sample_data" / "sample.jsonl"
COMMAND = Path(sys.executable).with_name("evalhouse")
LEXICAL = "lexical"
INCOMPLETE = 3  # the exit status of a command that left something without a verdict
RUNS = (
    "select run_id, status from runs where judge = '{judge}' and kind = 'evaluation' order by started_at desc limit 1"
)
# Each is printed by `evalhouse query` under its title.
TABLES = {
    "Replies by step": """
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
    round(sum(seconds) / count(*), 1) as seconds_a_request
from turns
group by regexp_replace(step, '_(answer|ground_truth)$', '')
order by min(began)
""",
    "Scores of the rows": """
select runs.judge, metric, round(mean, 3) as mean, n_scored
from run_scores
inner join runs using (run_id)
where metric in ('factual_f1', 'faithfulness', 'context_recall', 'context_precision')
    and runs.judge in ('lexical', '{judge}')
order by metric, runs.judge
""",
    "Questions of a test set": """
select testset_candidates.kind, count(*) as written, count(*) filter (where outcome in ('kept', 'surplus')) as passed
from testset_candidates
inner join runs on runs.run_id = testset_candidates.run_id
where judge = '{judge}'
group by testset_candidates.kind
order by testset_candidates.kind
""",
    "Turned down by": """
select coalesce(reason, outcome) as reason, count(*) as n
from testset_candidates
inner join runs on runs.run_id = testset_candidates.run_id
where judge = '{judge}' and outcome not in ('kept', 'surplus')
group by all
order by n desc, reason
""",
}
VERDICTS = "select sample_id, context_rank, useful from context_verdicts where run_id = '{run_id}'"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Judge with a real model and with the lexical judge, and compare.")
    parser.add_argument("--folder", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--model", required=True, help="the name the server gives the model")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint that runs already")
    parser.add_argument("--rows", type=int, default=30, help="rows of the sample dataset, spread over it evenly")
    parser.add_argument("--labelled", action="append", default=[], help="a labelled set, file or folder of sets")
    parser.add_argument("--labelled-rows", type=int, default=60, help="at most, of each labelled set and language")
    parser.add_argument("--testset", type=int, metavar="N", help="also have a test set of N questions made")
    parser.add_argument("--tables", action="store_true", help="ask nothing; print what is there")
    arguments = parser.parse_args()
    if not arguments.tables and not arguments.base_url:
        parser.error("name --base-url, the endpoint of the model")
    return arguments


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

    def judge_labelled(self, judge: str, data: Sequence[str], limit: int) -> str:
        """The agreement with people as `benchmark` prints it; stored replies are not asked for again."""
        named = [argument for one in data for argument in ("--data", one)]
        return self.call("benchmark", "--judge", judge, "--limit", str(limit), *named, allowed=(0, INCOMPLETE))


def spread_rows(count: int) -> list[str]:
    """Return so many lines of the sample, at even distances."""
    lines = SAMPLE.read_text(encoding="utf-8").splitlines(keepends=True)
    count = min(count, len(lines))
    return [lines[place * len(lines) // count] for place in range(count)]


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


def main() -> None:
    arguments = read_arguments()
    folder = arguments.folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    judge = f"openai:{arguments.model}"
    house = House(folder, arguments.base_url)
    if not arguments.tables:
        if not house.rows.exists():
            house.rows.write_text("".join(spread_rows(arguments.rows)), encoding="utf-8")
        for name in (LEXICAL, judge):
            if arguments.rows:
                house.judge_rows(name)
            if arguments.labelled:
                print(f"\nLabelled rows by {name}")
                print(house.judge_labelled(name, arguments.labelled, arguments.labelled_rows))
        if arguments.testset:
            house.make_set(judge, arguments.testset)
    for title, sql in TABLES.items():
        print(f"\n{title}")
        print(house.call("query", sql.format(judge=judge)))
    for name in (LEXICAL, judge) if arguments.rows else ():
        right, n = count_agreement(house, house.find_run(name))
        print(f"{name}: {right} of {n} verdicts on contexts agree with the sample's sources")


if __name__ == "__main__":
    main()
