"""The contradictions that `testset refresh` puts to the judge, by their wording, and its outcomes by kind of edit.

    python tests/benchmarks/refresh_recall.py

The first table is about 40 facts of two invented handbooks, English and Chinese, and 10 unanswerable questions
(`tests/helpers/rewordings.yaml`), in a set with 150 other questions. One update brings a new document for each fact,
which contradicts it. The second table is about the port authority's handbook of the tests: a set made from its first
version is refreshed with the second, with 40 edits; expected is what the edits say. The judge is a local endpoint that
knows what each sentence states. Its embeddings know all synonyms that occur, and so show what ranks do with a model
that sees the meaning, not how well any real model does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from cli_process import COMMAND
from port_answers import port_endpoint
from port_base import expect_change, write_base
from rewordings import FACTS, OPEN, rewordings_endpoint, write_documents, write_rewordings_set

from evalhouse.flows.results.output import make_table, print_line, print_table
from evalhouse.tasks.testsets.questions import load_set

N_OTHERS, N_MADE = 150, 140


def call(folder: Path, base_url: str, *arguments: str) -> dict[str, Any]:
    """A command's JSON."""
    variables = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": base_url, "COLUMNS": "140"}
    command = [*COMMAND, *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def measure_wordings(folder: Path) -> list[list[object]]:
    rows = []
    for embeddings in ("openai:meanings", "hashing"):
        for wording, facts in (("paraphrase", FACTS), ("far", FACTS), ("answer", OPEN)):
            own = folder / f"{embeddings.partition(':')[0]}-{wording}"
            path = own / "set.jsonl"
            by_id = write_rewordings_set(path, write_documents(own / "1", with_others=True), n_others=N_OTHERS)
            write_documents(own / "2", facts, wording, with_others=True)
            with rewordings_endpoint() as (endpoint, answers):
                command = ("testset", "refresh", path.name, "2", "--judge", "openai:judge", "--embeddings", embeddings)
                done = call(own, endpoint.base_url, *command, "--no-new")
            put = sum((fact.question, fact.new[wording]) in answers.matched for fact in facts)
            proposed = {by_id[one["id"]].question for one in done["proposals"]}
            found = sum(fact.question in proposed for fact in facts)
            calls, compared = done["calls"]["requests"], done["compared"]
            share = f"{compared['pairs']:,} of {compared['possible_pairs']:,}"
            rows.append([wording, embeddings, f"{put} of {len(facts)}", f"{found} of {len(facts)}", share, calls])
    return rows


def measure_edits(folder: Path) -> list[list[object]]:
    for version in (1, 2):
        write_base(folder / str(version), version=version)
    path = folder / "set.jsonl"
    with port_endpoint() as (endpoint, _):
        shared = ("--judge", "openai:judge", "--embeddings", "hashing")
        call(folder, endpoint.base_url, "testset", "make", "1", "-n", str(N_MADE), "-o", path.name, *shared)
        expected = {}
        for question in load_set(path).questions:
            change = expect_change(question.to_row())
            is_open = question.kind == "unanswerable" and change == "changed"
            expected[question.id] = "answerable" if is_open else change
        done = call(folder, endpoint.base_url, "testset", "refresh", path.name, "2", *shared, "--no-new")
    manifest = load_set(path).manifest
    came = {change.id: change.change for change in (*manifest.versions[-1].changes, *manifest.proposals)}
    n_expected, n_came = Counter(expected.values()), Counter(came.get(name, "same") for name in expected)
    right = Counter(word for name, word in expected.items() if came.get(name, "same") == word)
    words = [word for word in done["changes"] if n_expected[word] or n_came[word]]
    print_line(f"{len(expected)} questions, {done['calls']['requests']} requests, compared: {done['compared']}")
    return [[word, n_expected[word], n_came[word], right[word]] for word in words]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        columns = ["wording", "embeddings", "put to the judge", "proposed to a person", "pairs asked about", "requests"]
        print_table(make_table(columns, measure_wordings(Path(folder))))
        print_table(make_table(["outcome", "expected", "came", "right"], measure_edits(Path(folder) / "port")))


if __name__ == "__main__":
    main()
