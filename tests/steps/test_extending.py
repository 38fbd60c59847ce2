"""The guides `extending.md` and `extending_steps.md` can be followed: a test writes their files and runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from cli_process import PATIENCE_S, ROOT, Finished, Place, call_here

from evalhouse.warehouse.metric_files import HEADER_KEYS, view_scripts

GUIDE = "\n".join(
    (ROOT / "flows" / "guides" / name).read_text(encoding="utf-8") for name in ("extending.md", "extending_steps.md")
)
NEW_FILE = re.compile(r"New file `([^`]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)
DIFF = re.compile(r"```diff\n--- a/(\S+)\n\+\+\+ b/\1\n(.*?)```", re.DOTALL)
CALLING = """
import contextlib, io, json, sys
from evalhouse.flows import cli
ended = []
for arguments in json.loads(sys.argv[1]):
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(written):
        try:
            cli.main(arguments)
        except SystemExit as end:
            ended.append([end.code, written.buffer.getvalue().decode()])
print(json.dumps(ended))
"""
SAMPLES = [
    {"id": "kind", "question": "When is high tide?", "answer": "At 6. Please mind the steps.", "ground_truth": "At 6.",
     "contexts": ["High tide is at 6."]},
    {"id": "short", "question": "When is low tide?", "answer": "At 12.", "ground_truth": "At 12."},
    {"id": "silent", "question": "Who keeps the light?", "ground_truth": "Maud."},
]  # fmt: skip


def write_new_files(folder: Path, *beginnings: str) -> list[str]:
    """Write the guide's new files whose path begins so; a migration gets the next free number. Returns their paths."""
    written = []
    for path, text in NEW_FILE.findall(GUIDE):
        if path.startswith(beginnings):
            place = folder / path
            if place.parent.name == "migrations":
                number = 1 + max(int(file.name[:4]) for file in place.parent.glob("*.sql"))
                place = place.with_name(f"{number:04}{place.name[4:]}")
            place.parent.mkdir(parents=True, exist_ok=True)
            assert not place.exists(), path
            place.write_text(text, encoding="utf-8")
            written.append(path)
    return written


def apply_diffs(root: Path) -> list[str]:
    """Make the guide's changes to files that are there; each hunk's lines must be found once. Returns the paths."""
    changed = []
    for path, hunks in DIFF.findall(GUIDE):
        text = (root / path).read_text(encoding="utf-8")
        for hunk in re.split(r"^@@\n", hunks, flags=re.MULTILINE)[1:]:
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            assert text.count(old) == 1, f"{path} has other lines than the guide:\n{old}"
            text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        (root / path).write_text(text, encoding="utf-8")
        changed.append(path)
    return changed


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path) -> Place:
    """A folder with samples and the guide's files of a user: a metric, a rubric and a judge."""
    (tmp_path / "samples.json").write_text(json.dumps(SAMPLES))
    paths = write_new_files(tmp_path, "metrics/", "rubrics/", "house_judge.py")
    assert paths == [
        "metrics/grounded_precision.sql", "metrics/grounded_numbers.py", "rubrics/en/conciseness.yaml",
        "house_judge.py",
    ]  # fmt: skip
    return Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})


def call_copy(place: Place, *commands: tuple[str, ...]) -> list[Finished]:
    """These commands one after the other in one process, which has its evalhouse from where `place` says."""
    called = subprocess.run(
        [sys.executable, "-c", CALLING, json.dumps(commands)], cwd=place.folder, env=place.environment(),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert called.returncode == 0, called.stderr
    ended = [Finished(status=status, stdout=stdout) for status, stdout in json.loads(called.stdout)]
    assert [one.status for one in ended] == [0] * len(commands), called.stderr
    return ended


@pytest.mark.slow
def test_a_judged_step_and_a_format_are_added_in_the_files_that_the_guide_names(place: Place) -> None:
    copy = place.folder / "copy"
    for folder in ("flows", "tasks", "prompts", "warehouse"):
        shutil.copytree(ROOT / folder, copy / folder)
    product = ("tasks/", "prompts/", "warehouse/")
    assert write_new_files(copy, *product) == [
        "tasks/tone.py", "prompts/en/tone.yaml", "warehouse/migrations/0003_tones.sql",
        "warehouse/metrics/politeness.sql",
    ]  # fmt: skip
    assert apply_diffs(copy) == ["tasks/datasets/formats.py", "warehouse/steps.toml", "flows/shards.py"]
    (place.folder / "lib").mkdir()
    (place.folder / "lib" / "evalhouse").symlink_to(copy)
    (place.folder / "samples.yaml").write_text(json.dumps(SAMPLES))  # JSON is YAML
    place = place.with_variables(PYTHONPATH=str(place.folder / "lib"))
    wanted = ("--judge", "house_judge:make_judge", "--metrics", "politeness", "--json")

    verdicts = (
        "select sample_id, label, prompt, n_requests from tones join llm_calls using (run_id, sample_id, call_id) "
        "join run_costs using (run_id, step) order by 1"
    )
    planned, run, listed, followed = call_copy(
        place,
        ("run", "samples.yaml", *wanted, "--dry-run"),
        ("run", "samples.yaml", *wanted),
        ("query", verdicts, "--format", "json"),
        ("lineage", "latest", "kind", "--json"),
    )
    assert [(step["step"], step["requests"]) for step in planned.document["steps"]] == [("tone", 2)]
    metric = run.document["metrics"]["politeness"]
    assert (metric["mean"], metric["n_scored"], metric["n_unscored"]) == (0.75, 2, 1)
    assert listed.document == [
        {"sample_id": "kind", "label": "polite", "prompt": "tone", "n_requests": 2},
        {"sample_id": "short", "label": "plain", "prompt": "tone", "n_requests": 2},
    ]
    (row,) = followed.document
    assert (row["metric"], row["value"], row["step"], row["label"]) == ("politeness", 1.0, "tone", "polite")
    assert json.loads(row["reply"])["tone"] == row["label"]


@pytest.mark.slow
def test_a_metric_and_a_rubric_are_added_as_the_users_own_files(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call_here(capsys, "prompts", "check", str(place.folder / "rubrics")).status == 0
    judges = ("--judge", "lexical,grade=house_judge:make_judge", "--prompts", "rubrics", "--metric-files", "metrics")
    own = "grounded_precision,grounded_numbers,conciseness"
    measured = place.call("run", "samples.json", *judges, "--metrics", own, "--json")
    assert measured.status == 0, measured.stderr
    metric = measured.document["metrics"]["grounded_numbers"]
    assert (metric["mean"], metric["n_scored"], metric["n_unscored"]) == (1.0, 1, 2)
    metric = measured.document["metrics"]["grounded_precision"]
    assert (metric["n_scored"], metric["n_unscored"]) == (1, 2)  # the others have no contexts, or no answer
    assert 0 < metric["mean"] < 1
    metric = measured.document["metrics"]["conciseness"]
    assert (metric["mean"], metric["n_scored"], metric["n_unscored"]) == (1.0, 2, 1)
    # Rescoring takes the rubric from the warehouse, also where its file has gone.
    (place.folder / "rubrics").rename(place.folder / "moved")
    with duckdb.connect(place.folder / "evalhouse.duckdb") as warehouse:
        warehouse.execute("update grades set rating = rating / 2 where rubric = 'conciseness'")
    (rescored,) = place.call("rescore", "--json").document
    assert rescored["left_out"] == {}
    assert set(own.split(",")) <= set(rescored["metrics"])
    sql = "select distinct value from scores where metric = 'conciseness' and value is not null"
    assert place.call("query", sql, "--json").document == [{"value": 0.5}]


def test_the_guide_lists_the_header_and_the_helper_views_of_a_metric() -> None:
    header = GUIDE.split("The header is")[1].split("## A rubric")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", header, re.MULTILINE)) == HEADER_KEYS
    named = re.findall(r"`(\w+)`", header.split("Useful views")[1].split("`evalhouse query")[0])
    assert {"sample_steps", "statement_verdicts", "retrieved_contexts"} <= set(named)
    assert set(named) - {"reason"} <= {view.name for view in view_scripts()}
