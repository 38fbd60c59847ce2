"""`run SUITE.toml` as a person types it: a real bot, a real webhook, and the gate's exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_house import write_dataset
from cli_process import Finished, Place
from rag_bot import RagBot, start_rag_bot
from webhook import Webhook, serve_webhook

from evalhouse.warehouse.rows.runs import list_runs
from evalhouse.warehouse.store import Warehouse

DOCUMENTS = {
    "tide.txt": "High tide at Brankmouth is at 6 in the morning.",
    "light.txt": "The lighthouse keeper is Maud Tregarthen.",
    "lock.txt": "The lock is 7 metres deep.",
}
QUESTIONS: list[dict[str, Any]] = [
    {"id": "tide", "question": "When is high tide at Brankmouth?", "ground_truth": DOCUMENTS["tide.txt"]},
    {"id": "light", "question": "Who is the lighthouse keeper?", "ground_truth": DOCUMENTS["light.txt"]},
    {"id": "lock", "question": "How deep is the lock?", "ground_truth": DOCUMENTS["lock.txt"]},
]
SUITE = """\
name = "harbour"
dataset = "questions.jsonl"
judge = "lexical"
metrics = ["factual_f1", "faithfulness"]
warehouse = "w.duckdb"

[target]
url = "{url}"
headers = {{ Authorization = "Bearer ${{BOT_TOKEN}}" }}
context_ids = "$.contexts[*].id"
contexts = "$.contexts[*].text"
attempts = 1

[gate.min]
factual_f1 = {least}

[gate.max_drop]
factual_f1 = 0.02

[notify]
webhook = "${{HOOK}}"
on = ["completed", "incomplete", "failed", "gate_failed"]
"""


@dataclass(frozen=True, kw_only=True)
class Harbour:
    """A folder with a suite, the bot that it asks and the webhook that it notifies."""

    place: Place
    bot: RagBot
    webhook: Webhook

    def write(self, least: float = 0.1, *, more: str = "") -> None:
        text = SUITE.format(url=self.bot.url, least=least) + more
        (self.place.folder / "suites" / "nightly.toml").write_text(text)

    def run(self, *arguments: str) -> Finished:
        return self.place.call("run", "suites/nightly.toml", *arguments)

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(str(self.place.folder / "suites" / "w.duckdb"))


@pytest.fixture
def harbour(tmp_path: Path, prefect_home: Path) -> Iterator[Harbour]:
    (tmp_path / "suites").mkdir()
    documents = tmp_path / "documents"
    documents.mkdir()
    for name, text in DOCUMENTS.items():
        (documents / name).write_text(text)
    write_dataset(tmp_path / "suites", QUESTIONS, "questions.jsonl")
    with start_rag_bot(documents, token="hush-bot") as bot, serve_webhook() as webhook:
        variables = {"PREFECT_HOME": str(prefect_home), "BOT_TOKEN": "hush-bot", "HOOK": webhook.url}
        built = Harbour(place=Place(folder=tmp_path, variables=variables), bot=bot, webhook=webhook)
        built.write()
        yield built


@pytest.mark.slow
def test_nights_of_a_suite_are_asked_judged_gated_and_notified(harbour: Harbour) -> None:
    """Estimate, run, run against a limit that fails, resume; each end is notified; then judge stored responses."""
    before = harbour.run("--dry-run")
    assert before.status == 0
    assert f"{harbour.bot.url} will be asked 3 questions." in before.stdout
    assert "Its answers are not known yet" in before.stdout
    assert harbour.bot.stats.n_requests == 0

    first = harbour.run("--json")
    assert (first.status, first.stderr) == (0, "columns: question, ground_truth, id\n")
    document = first.document
    assert document["suite"] == "harbour"
    assert document["gate"]["outcome"] == "passed"
    assert [(check["kind"], check["outcome"]) for check in document["gate"]["checks"]] == [
        ("max_drop", "undecided"),
        ("min", "passed"),
        ("trend", "passed"),
    ]
    assert document["gate"]["against"] is None
    assert set(document["metrics"]) == {"factual_f1", "faithfulness"}
    assert harbour.bot.stats.n_requests == 3

    estimate = harbour.run("--dry-run", "--json").document
    estimate_of_bot = {
        "asked": harbour.bot.url,
        "n_questions": 3,
        "n_answers_known": 3,
        "answers_of": document["run_id"],
        "repeats": None,
    }
    assert estimate["target"] == estimate_of_bot
    assert (estimate["requests"], estimate["n_samples"]) == (0, 3)
    assert estimate["reused"] > 0

    harbour.write(1.0)
    (harbour.place.folder / "documents" / "lock.txt").write_text("Fish soup is sold at the lock.")
    second = harbour.run("--label", "worse")
    assert second.status == 1
    run_ids = [run.run_id for run in list_runs(harbour.warehouse)]
    assert len(run_ids) == 2
    assert second.lines[0].startswith(f"run {run_ids[0]} of harbour completed: 3 samples")
    assert f"against {document['run_id']}, 3 samples" in second.stdout
    assert "gate failed: 1 failed, 1 undecided (which passes), 1 passed" in second.lines
    elsewhere = f"--warehouse {harbour.place.folder}/suites/w.duckdb"
    compare = f"evalhouse compare {document['run_id']} {run_ids[0]} {elsewhere}"
    assert second.lines[-2] == f"next: {compare}   (what moved, and why)"
    assert harbour.place.call(*compare.split()[1:]).status == 0

    newest, oldest = list_runs(harbour.warehouse)
    assert (oldest.gate, newest.gate) == ("passed", "failed")
    assert (newest.suite, newest.label, newest.trigger) == ("harbour", "worse", "manual")
    assert newest.suite_hash != oldest.suite_hash
    assert "hush" not in json.dumps([newest.config, oldest.config])

    resumed = harbour.place.call("resume", newest.run_id, "--warehouse", "suites/w.duckdb", "--json")
    assert resumed.status == 1, "a resumed run keeps the limits it was started with"
    assert resumed.document["gate"]["outcome"] == "failed"

    posted = [(body["run_id"], body["status"], body["gate"]["outcome"]) for body in harbour.webhook.bodies]
    assert posted == [(oldest.run_id, "completed", "passed")] + [(newest.run_id, "completed", "failed")] * 2
    assert harbour.webhook.bodies[1]["previous_run_id"] == oldest.run_id
    assert harbour.webhook.bodies[1]["metrics"]["factual_f1"]["change"] < 0
    written = "".join(one.stdout + one.stderr for one in (before, first, second, resumed))
    assert "hush" not in written

    harbour.write()
    asked = harbour.bot.stats.n_requests
    again = harbour.run("--responses", document["run_id"], "--metrics", "factual_f1", "--json")
    assert (again.status, harbour.bot.stats.n_requests) == (0, asked), "stored responses are judged without asking"
    assert set(again.document["metrics"]) == {"factual_f1"}
    estimate = harbour.run("--responses", document["run_id"], "--dry-run", "--json").document
    assert estimate["target"] == {**estimate_of_bot, "asked": None, "n_questions": 0}


@pytest.mark.parametrize(
    ("options", "more", "says"),
    [
        ((), "[gate.max]\nhallucination = 0.1\n", "limits of hallucination, which the run does not score"),
        (("--judge", "lexcal"), "", "unknown judge 'lexcal'; did you mean lexical?"),
    ],
)
def test_an_estimate_refuses_what_the_night_refuses(
    harbour: Harbour, options: tuple[str, ...], more: str, says: str
) -> None:
    """The night ended with the message that the estimate had not given."""
    harbour.write(more=more)
    for dry in (("--dry-run",), ()):
        refused = harbour.run(*options, *dry)
        assert (refused.status, says in refused.stderr) == (2, True), refused.stderr
    assert harbour.bot.stats.n_requests == 0


def test_incomplete_night_passes_its_gate_and_failing_webhook_changes_no_status(harbour: Harbour) -> None:
    harbour.bot.configure(refuse="lighthouse")
    harbour.webhook.statuses = (404,)
    finished = harbour.run("--json")
    assert finished.status == 3
    assert finished.document["status"] == "incomplete"
    assert finished.document["gate"]["outcome"] == "passed"
    assert [body["status"] for body in harbour.webhook.bodies] == ["incomplete"]
    assert finished.stderr.splitlines()[-1] == (
        "harbour: the notification was not delivered: the webhook refused it with status 404."
    )


def test_doctor_checks_a_suite_without_requests(harbour: Harbour) -> None:
    harbour.write(
        more='\n[schedule]\ncron = "0 3 * * *"\ntimezone = "Asia/Shanghai"\n[trigger]\nknowledge_base = "kb"\n'
    )
    finished = harbour.place.call("doctor", "suites/nightly.toml", "--json")
    assert finished.status == 0
    settings = finished.document["settings"]
    assert settings["judge"] == {"value": "lexical", "from": "suite nightly.toml", "variable": "EVALHOUSE_JUDGE"}
    assert settings["concurrency"]["from"] == "default"
    assert settings["target"]["value"]["headers"] == ["Authorization"]
    assert "webhook" not in settings["notify"]["value"]
    findings = {one["what"]: (one["verdict"], one["detail"]) for one in finished.document["findings"]}
    path = harbour.place.folder / "suites/questions.jsonl"
    assert findings["dataset"] == ("ok", f"{path}: 3 samples; columns: question, ground_truth, id")
    assert findings[f"target {harbour.bot.url}"][0] == "ok"
    verdict, detail = findings["gate"]
    assert (verdict, detail.split("; ")[0]) == ("note", "1 minimum, 1 drop limit against passed, 1 trend limit")
    assert "; 3 samples are too few for max_drop 0.02 of factual_f1: it stays undecided" in detail
    assert findings["notify"][0] == "ok"
    assert findings["trigger kb"][1] == (
        "an update starts a run after 60 s without another, or 1800 s in any case; everything is asked"
    )
    schedule = findings["schedule 0 3 * * *"][1]
    assert schedule.startswith("in Asia/Shanghai; next: ")
    assert schedule.count(" 03:00 CST") == 3
    assert harbour.bot.stats.n_requests == 0
    assert harbour.webhook.requests == []
    assert "hush" not in finished.stdout


def test_doctor_reports_problems_of_a_suite(harbour: Harbour) -> None:
    harbour.write(more="\n[gate.coverage]\nmrr = 0.5\n")
    (harbour.place.folder / "suites" / "questions.jsonl").unlink()
    bare = Place(folder=harbour.place.folder, variables={"PREFECT_HOME": harbour.place.variables["PREFECT_HOME"]})
    finished = bare.call("doctor", "suites/nightly.toml", "--json")
    assert finished.status == 2
    wrong = {one["what"]: one["detail"] for one in finished.document["findings"] if one["verdict"] == "wrong"}
    assert wrong.keys() == {"dataset", f"target {harbour.bot.url}", "gate", "notify"}
    assert wrong["notify"] == "HOOK is not set"
    assert "BOT_TOKEN" in wrong[f"target {harbour.bot.url}"]
    shown = bare.call("doctor", "suites/nightly.toml").stdout
    assert "suite nightly.toml" in shown
    assert "1 minimum, 1 drop limit against passed, 1 trend limit, 1 coverage limit" in shown
