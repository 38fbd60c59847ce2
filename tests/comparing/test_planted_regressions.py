"""Regressions planted in a small bot, named in the first sentence of the terminal, JSON, the report and the pages."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from cli_process import Place
from starlette.testclient import TestClient
from ui_house import make_client
from webhook import serve_webhook

from evalhouse.flows.serving.notify import notify_of_end
from evalhouse.tasks.settings.suite import Notify
from evalhouse.warehouse.rows.runs import list_runs
from evalhouse.warehouse.store import Warehouse

N: Final = 36
TOOLS: Final = (
    "boiler", "pump", "valve", "lamp", "crane", "winch", "anchor", "radar", "engine", "hatch", "mast", "oar",
)  # fmt: skip
# The runs in their order, each with what is wrong in the bot; the first is repeated, so that it is also a run before.
# In the last one a third of the ground truths are others, and the bot ends these answers otherwise.
NIGHTS: Final = ("base", "no_contexts", "healed", "invents", "edited")


def make_rows(night: str) -> list[dict[str, Any]]:
    """One night: a bot that copies its first context, with a few faults that it always has."""
    rows = []
    for number in range(N):
        tool, is_hit = TOOLS[number % len(TOOLS)], number % 3 == 0
        truth = f"The {tool} number {number} weighs {3 * number + 7} kilograms."
        contexts = [truth, f"A {tool} is checked by the harbour crew in May.", "The canteen opens at seven."]
        answer = "The canteen has a pleasant view." if number % 9 == 1 else truth
        if night == "no_contexts" and is_hit:
            contexts, answer = contexts[1:], f"A {tool} is checked by the harbour crew."
        if night == "invents" and is_hit:
            answer = f"The Royal Board bought the {tool} in Lisbon in 1897." if number % 2 else "I do not know."
        if night == "edited" and is_hit:
            answer = f"{answer[:-1]}!"
            truth = f"The {tool} number {number} was painted red by its first owner."
        if night == "invents":
            contexts[2] = f"Page {number + 40} has no more on this."
        rows.append(
            {"id": f"q{number}", "question": f"How heavy is {tool} number {number}?", "answer": answer,
             "ground_truth": truth, "contexts": contexts}
        )  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Place:
    """A folder whose warehouse has a run of each night, all of one series."""
    place = Place(folder=tmp_path_factory.mktemp("planted"), variables={"PREFECT_HOME": str(prefect_home)})
    for night in NIGHTS:
        rows = "".join(f"{json.dumps(row)}\n" for row in make_rows(night))
        (place.folder / "night.jsonl").write_text(rows, encoding="utf-8")
        finished = place.call("run", "night.jsonl", "--label", night)
        assert finished.status == 0, finished.stderr
    return place


@pytest.fixture(scope="module")
def client(place: Place) -> TestClient:
    return make_client(str(place.folder / "evalhouse.duckdb"))


def read_first(page: str) -> str:
    first = page.partition('<p class="first">')[2].partition("</p>")[0]
    return html.unescape(re.sub(r"<[^>]+>", "", first)).strip()


MISSED: Final = (
    r"Retrieval is worse than in {base} \(retrieval missed it: 0 → 12\); 44 % of 36 answers have a problem, 11 %"
)
INVENTED: Final = r"\(.*hallucinated against contexts: 4 → \d+.*\); \d\d % of 36 answers have a problem, 11 % before"


# Where the sentence is looked for at all places: a candidate has to follow its base. One gets worse and one better.
EVERYWHERE: Final = (("base", "no_contexts"), ("no_contexts", "healed"))


@pytest.mark.parametrize(
    ("base", "candidate", "sentence"),
    [
        ("base", "no_contexts", rf"{MISSED} before"),
        ("base", "invents", rf"Generation is worse than in {{base}} {INVENTED}"),
        ("no_contexts", "healed", r"Retrieval is better than in {base} \(retrieval missed it: 12 → 0\); 11 % .*"),
        ("no_contexts", "invents", r"Generation is worse than in {base} \(.*\); retrieval is better \(.*\); .*"),
        ("base", "edited", r"Some scores are worse than in {base}, because of: answer and ground truth changed; .*"),
        ("base", "healed", r"No score differs from {base}; 11 % of 36 answers have a problem, as before"),
    ],
)  # fmt: skip
def test_the_first_sentence_names_the_stage_and_the_causes_that_moved(
    base: str, candidate: str, sentence: str, place: Place, client: TestClient
) -> None:
    of_base = sentence.replace("{base}", "the base")
    printed = place.call("compare", base, candidate)
    assert re.fullmatch(rf"{of_base}\.", printed.lines[0])
    assert "_" not in printed.lines[0], "the name of a metric"
    assert read_first(client.get(f"/compare?base={base}&candidate={candidate}").text) == printed.lines[0]
    if (base, candidate) in EVERYWHERE:
        document = place.call("compare", base, candidate, "--json").document
        assert f"{document['headline']['sentence']}." == printed.lines[0]
        assert place.call("report", candidate, "--against", base, "-o", "it.html").status == 0
        assert read_first((place.folder / "it.html").read_text(encoding="utf-8")) == printed.lines[0]
        store = Warehouse(str(place.folder / "evalhouse.duckdb"))
        runs = {run.label: run for run in list_runs(store)}
        first = read_first(client.get(f"/runs/{candidate}").text)
        assert first == printed.lines[0].replace("the base", "the run before")
        with serve_webhook() as webhook:
            notify_of_end(Notify(webhook=webhook.url, on=("completed",)), store, runs[candidate], None, None)
        text = webhook.bodies[0]["text"].splitlines()
        assert text[0] == f"✅ {first}"
        assert text[-1] == f"next: evalhouse compare {runs[base].run_id} {runs[candidate].run_id}"


def test_without_an_earlier_run_it_names_what_is_frequent(client: TestClient) -> None:
    page = client.get("/runs/base").text
    assert read_first(page) == "4 of 36 judged answers have a problem (11 %)."
    assert "Most often, in 4 samples: hallucinated against contexts." in html.unescape(page)


def test_a_comparison_fits_a_screen_and_all_has_the_rest(place: Place) -> None:
    place.variables["COLUMNS"] = "80"
    short = place.call("compare", "base", "no_contexts").lines
    whole = place.call("compare", "base", "no_contexts", "--all").lines
    assert len(short) <= 30
    assert max(len(line) for line in short if "  " in line and not line.startswith("next:")) <= 80
    assert any(re.match(r"context_recall +1\.000 +0\.667 +-0\.333 .* worse$", line) for line in short)
    assert not any(line.startswith("refusal_rate") for line in short), "it did not move"
    assert len(whole) > 2 * len(short)
    assert whole[0] == short[0]
    assert "Why the means over all scored samples moved" in whole
