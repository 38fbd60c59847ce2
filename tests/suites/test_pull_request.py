"""The action for pull requests: its commands, run one after the other, and the comment that they leave and renew."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from cli_process import Place
from markdown_it import MarkdownIt
from prefect_holder import find_server

from evalhouse.flows.results.gate import Changes, write_markdown
from evalhouse.tasks.comparing.changes import Flip

ACTION = Path(__file__).resolve().parents[2] / "flows" / "deploy" / "github" / "action.yml"
SUITE = """
name = "nightly"
dataset = "answers.jsonl"
judge = "lexical"
metrics = ["factual_f1", "faithfulness", "context_recall"]
[gate]
against = "previous_any"
[gate.max_drop]
factual_f1 = 0.05
"""
# In place of the command of GitHub: keeps one comment in a file and lists the calls.
GH = """#!{python}
import json, os, sys
arguments, comment = sys.argv[1:], "comment.txt"
with open("gh.jsonl", "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if "--paginate" in arguments:
    if os.path.exists(comment) and open(comment).read().startswith(os.environ["MARKER"]):
        print(7)
else:
    open(comment, "w").write(open(arguments[-1].removeprefix("body=@")).read())
"""


def write_answers(folder: Path, *, wrong: int) -> None:
    rows: list[dict[str, Any]] = [
        {
            "id": f"berth-{n}",
            "question": f"Which ship lies at berth {n}?",
            "answer": f"Ship number {n * 7 + (1 if n <= wrong else 0)} lies at berth {n}.",
            "ground_truth": f"Ship number {n * 7} lies at berth {n}.",
            "contexts": [f"Ship number {n * 7} lies at berth {n}."],
        }
        for n in range(1, 31)
    ]
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def run_steps(folder: Path, prefect_home: Path, only: str = "") -> tuple[dict[str, str], dict[str, int]]:
    """Run the steps that are commands, or one; return the outputs of the evaluation and the exit status of each."""
    contexts = {
        "inputs.suite": "nightly.toml", "inputs.warehouse": "evalhouse.duckdb", "github.token": "token",
        "steps.artifact.outputs.artifact-url": "https://github.com/OWNER/REPO/artifacts/1",
        "github.repository": "OWNER/REPO", "github.event.pull_request.number": "5",
        "github.server_url": "https://github.com",
        "github.event.pull_request.head.sha || github.sha": "abc123",
    }  # fmt: skip
    outputs, statuses = folder / "outputs.txt", {}
    outputs.write_text("")
    for step in yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]:
        if "run" not in step or step["name"] == "Install" or (only and step["name"] != only):
            continue
        for line in outputs.read_text().splitlines():
            name, _, value = line.partition("=")
            contexts[f"steps.evaluate.outputs.{name}"] = value
        variables = {}
        for name, text in step.get("env", {}).items():
            for context, value in contexts.items():
                text = text.replace("${{ " + context + " }}", value)  # noqa: PLW2901
            assert "${{" not in text
            variables[name] = text
        environment = os.environ | variables | {
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PREFECT_HOME": str(prefect_home),
            "GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), **find_server(),
        }  # fmt: skip
        # As GitHub calls it.
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        statuses[step["name"]] = done.returncode
        assert done.returncode == 0 or step["name"] == "Decide", done.stderr
        assert not re.search("INFO|Beginning flow run|temporary server", done.stderr), "Prefect's own lines are muted"
    return dict(line.split("=") for line in outputs.read_text().splitlines()), statuses


def test_the_warehouse_of_a_cancelled_job_is_kept() -> None:
    """All replies that a cancelled job had paid were asked again. A cache is found only under the same paths."""
    steps = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    restore, save = (step for step in steps if step.get("uses", "").startswith("actions/cache/"))
    began = "steps.restore.outcome == 'success' && steps.evaluate.outcome != 'skipped'"
    assert (restore["id"], save["if"]) == ("restore", f"always() && {began}")
    assert restore["with"]["path"] == save["with"]["path"]
    # The last replies of a process that was killed are in its journal.
    assert save["with"]["path"].split() == ["${{", "inputs.warehouse", "}}", "${{", "inputs.warehouse", "}}.journal"]


def test_a_pull_request_is_compared_with_the_branch_that_it_goes_into() -> None:
    """A second push found the cache of the first one, whose run was the baseline then."""
    steps = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    restore, save = (step["with"] for step in steps if step.get("uses", "").startswith("actions/cache/"))

    def fill_in(text: str, **names: str) -> list[str]:
        """Fill in as GitHub does: the first name of several that has a value."""
        fill = re.compile(r"\$\{\{ (.+?) \}\}")
        return fill.sub(lambda match: next(filter(None, map(names.get, match[1].split(" || "))), ""), text).split()

    push = {"inputs.suite": "s.toml", "github.ref_name": "main", "github.run_attempt": "1"}
    pull = push | {"github.ref_name": "7/merge", "github.base_ref": "main"}
    (of_main,) = fill_in(save["key"], **push, **{"github.run_id": "11"})
    (of_first,) = fill_in(save["key"], **pull, **{"github.run_id": "12"})
    found = fill_in(restore["restore-keys"], **pull, **{"github.run_id": "13"})
    assert [key for key in found if of_main.startswith(key)]
    assert not [key for key in found if of_first.startswith(key)]
    (again,) = fill_in(restore["restore-keys"], **pull, **{"github.run_id": "12"})[:1]
    assert of_first.startswith(again), "another attempt finds what the first one paid for"


HOSTILE = 40 * (
    "a`` [x](http://evil.example) <img src=//evil.example> @all www.evil.example | \\| **b** &lt; <!-- \n# h\n- c "
)


def test_a_comment_shows_texts_of_others_as_texts_and_fits() -> None:
    at = datetime(2026, 3, 14, tzinfo=UTC)
    side = dict.fromkeys(("run_id", "suite", "variant", "label", "dataset", "judge"), HOSTILE) | {"n_samples": 3}
    check = {
        "kind": "min", "metric": HOSTILE, "limit": 0.9, "value": 0.5, "n": 3, "outcome": "failed", "ci_low": None,
        "ci_high": None, "noise_floor": None, "detail": HOSTILE, "by_column": HOSTILE, "by_value": HOSTILE,
        "beyond": 0.4,
    }  # fmt: skip
    accepted = {"run_id": HOSTILE, "accepted_by": HOSTILE, "accepted_at": at, "why": HOSTILE}
    document = {
        "outcome": "failed", "undecided": "pass", "counts": {"failed": 900, "undecided": 0, "passed": 0}, "run": side,
        "against": side, "baseline": {"run_ids": [HOSTILE] * 3, "accepted": accepted}, "warnings": [HOSTILE],
        "checks": [check] * 900, "components": [],
    }  # fmt: skip
    item = {"text": HOSTILE, "label": "FP"}
    flips = [Flip(kind="answer", change="appeared", base=None, candidate=item)] * 20
    samples = {f"{number} {HOSTILE}": (HOSTILE, flips) for number in range(10)}
    changes = Changes(sentence=HOSTILE, metrics=[], causes=[], samples=samples)
    comment = write_markdown(document, changes)
    assert len(comment) < 65_536
    assert "and 850 more checks" in comment
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(comment)
    assert page.count("<tr>") == 51
    # What is not code has only our own elements, and no word that GitHub makes a mention or a link of.
    plain = re.sub(r"<code>.*?</code>", "", page.partition("\n")[2], flags=re.DOTALL)
    known = {"h3", "p", "ul", "li", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
    assert set(re.findall(r"</?(\w+)", plain)) <= known
    assert not re.search(r"@\w|://|www\.|<!--", plain)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the action runs bash")
def test_a_pull_request_gets_one_comment_that_each_run_renews(tmp_path: Path, prefect_home: Path) -> None:
    (tmp_path / "nightly.toml").write_text(SUITE, encoding="utf-8")
    (tmp_path / "gh").write_text(GH.format(python=sys.executable), encoding="utf-8")
    (tmp_path / "gh").chmod(0o755)
    write_answers(tmp_path, wrong=0)
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    assert place.call("run", "nightly.toml").status == 0
    write_answers(tmp_path, wrong=12)
    second, statuses = run_steps(tmp_path, prefect_home)
    assert (second["status"], statuses["Decide"]) == ("1", 1)
    run_steps(tmp_path, prefect_home, only="Comment")
    comment = (tmp_path / "comment.txt").read_text(encoding="utf-8")
    lines = comment.splitlines()
    assert lines[0] == "<!-- evalhouse nightly -->"
    assert "[report](https://github.com/OWNER/REPO/artifacts/1)" in comment
    assert lines[1].startswith("### ❌ evalhouse gate failed")
    # The sentence on top, main metrics with intervals, causes that grew, the cost, and samples with their statements.
    assert lines[3].startswith("**Generation is worse than in the baseline, with the same contexts")
    assert any(line.startswith("| `faithfulness` | 1.000 | 0.600 | -0.400 | ") for line in lines)
    assert any(line.startswith("| hallucinated against contexts | 0 | 12 |") for line in lines), comment
    assert "- cost: $0.00" in lines
    assert "<details><summary>10 samples whose verdicts changed, the largest moves first</summary>" in lines
    number = next(n for n, line in enumerate(lines) if line.startswith("- `berth-"))
    assert "`Which ship lies at berth " in lines[number]
    assert any("`Ship number" in line for line in lines[number + 1 : number + 4]), lines[number : number + 5]
    calls = [json.loads(line) for line in (tmp_path / "gh.jsonl").read_text().splitlines()]
    assert [call[call.index("--method") + 1] for call in calls if "--method" in call] == ["POST", "PATCH"]
    assert calls[-1][-3:] == ["repos/OWNER/REPO/issues/comments/7", "-F", "body=@evalhouse-comment.md"]
    assert (tmp_path / "evalhouse-report.html").stat().st_size > 10_000
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").endswith(comment)
    # A run that failed left the comment of the push before, which stated that the gate passed.
    with duckdb.connect(str(tmp_path / "evalhouse.duckdb")) as connection:
        connection.execute(
            "update runs set status = 'failed', problem = 'no [answer](x)' where run_id = ?", [second["run"]]
        )
    asked = ("gate", second["run"], "--markdown", "evalhouse-comment.md")
    assert place.call(*asked).status == 3
    failed = (tmp_path / "evalhouse-comment.md").read_text(encoding="utf-8").splitlines()
    assert failed[:2] == ["<!-- evalhouse nightly -->", "### ❌ evalhouse: the run is failed, and nothing was decided"]
    assert failed[3] == f"- run: `{second['run']}`, `no [answer](x)`"
