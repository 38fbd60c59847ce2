"""`diagnose`: why a run's samples failed, as output for people and programs."""

from __future__ import annotations

import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import get_args

import duckdb
import pytest
from cli_house import N_JUDGED, House, write_dataset
from cli_process import Ask, Finished, Place, show_in_terminal
from rich.cells import cell_len

from evalhouse.flows.results.run_facts import Cause, load_advice

_OWN_STYLES = re.compile(r"\x1b\[[0-9;]*m")

# The lexical judge finds words; these rows leave it no choice.
LEFT_OUT = {
    "id": "left out",
    "question": "What does the ferry to Skerry cost, and when does it leave?",
    "answer": "The ferry to Skerry costs nine crowns.",
    "ground_truth": "The ferry to Skerry costs nine crowns. The last boat leaves the stone quay at sunset.",
    "contexts": ["The ferry to Skerry costs nine crowns. The last boat leaves the stone quay at sunset."],
    "context_ids": ["ferry"],
}
MISSED = {
    **LEFT_OUT,
    "id": "missed",
    "contexts": ["The ferry to Skerry costs nine crowns."],
    "context_ids": ["prices"],
    "reference_context_ids": ["prices", "ferry"],
}
FOUND_ELSEWHERE = {**MISSED, "id": "found elsewhere", "reference_context_ids": None}
LACKING = {**MISSED, "id": "lacking", "reference_context_ids": ["prices"]}
FINE = {**LEFT_OUT, "id": "fine", "answer": LEFT_OUT["ground_truth"]}
REFUSED = {**LEFT_OUT, "id": "refused", "answer": "I do not know."}
MADE_UP = {**FINE, "id": "made up", "answer": f"{LEFT_OUT['ground_truth']} Wolves patrol every orchard near Zanzibar."}
BAY = {
    "id": "made up whole",
    "question": "Who painted the chapel?",
    "answer": "Wolves patrol every orchard near Zanzibar.",
    "ground_truth": "Agnes Pellew painted the chapel ceiling blue.",
    "contexts": ["Seals sleep on warm rocks."],
}
EXPECTED = {
    "left out": "contexts_ignored", "missed": "retrieval_missed", "found elsewhere": "retrieval_missed",
    "lacking": "retrieval_missed", "fine": "fine", "refused": "refused_wrongly", "made up": "hallucinated",
    "made up whole": "not_in_contexts",
}  # fmt: skip


@pytest.fixture(scope="module")
def ferry(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Place:
    """A warehouse with three nights of one dataset, of which the first had a bot that refused everything."""
    folder = tmp_path_factory.mktemp("ferry")
    place = Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)})
    rows = [LEFT_OUT, MISSED, FOUND_ELSEWHERE, LACKING, FINE, REFUSED, MADE_UP, BAY]
    refused = [{**row, "answer": "I do not know."} for row in rows]
    for night in (refused, rows, rows):
        write_dataset(folder, night, "ferry.jsonl")
        finished = place.call("run", "ferry.jsonl", "--judge", "lexical", "--json")
        assert finished.status == 0, finished.stderr
    return place


def test_every_sample_gets_the_cause_that_its_row_was_written_for(ferry: Place) -> None:
    document = ferry.call("diagnose", "latest", "--json", "--limit", "99").document
    assert {row["sample_id"]: row["cause"] for row in document["samples"]} == EXPECTED


@pytest.fixture(scope="module")
def ask_ferry(ferry: Place) -> Ask:
    """Calls `diagnose` in the ferry's folder, with each arguments once."""

    @cache
    def call(*arguments: str) -> Finished:
        return ferry.call("diagnose", *arguments)

    return call


def test_totals_samples_and_remedies_are_in_plain_tables(ask_ferry: Ask) -> None:
    finished = ask_ferry("latest")
    assert finished.status == 0
    lines = finished.lines
    assert re.fullmatch(r"run \S+ completed: 8 samples of ferry\.jsonl; judge lexical", lines[0])
    assert lines[2].split() == ["cause", "samples", "share", "95", "%", "interval", "meaning"]
    assert lines[3].startswith("retrieval missed it"), "the most frequent failure first"
    assert re.search(r"retrieval missed it +3  0\.375  0\.137 to 0\.694  The knowledge base holds", lines[3])
    assert lines[8].startswith("fine "), "what is fine comes last"
    assert "judge suspect" not in finished.stdout, "a cause that no sample has is left out"
    samples = lines[lines.index("Samples") + 2 : lines.index("What to try") - 1]
    assert [line.split("  ")[0] for line in samples].count("retrieval missed it") == 3
    assert not [line for line in samples if line.startswith("fine")]
    assert any("The last boat leaves the stone quay at sunset." in line for line in samples)
    assert "retrieval missed it (3)" in lines
    for remedy in load_advice("en")["retrieval_missed"].remedies:
        assert f"  - {remedy}" in lines


def test_the_next_commands_can_be_pasted(ask_ferry: Ask, ferry: Place) -> None:
    commands = [shlex.split(line.removeprefix("next: evalhouse ")) for line in ask_ferry("latest").lines[-2:]]
    assert commands[0][0] == "lineage"
    assert commands[1][0] == "diagnose"
    for command in commands:
        assert ferry.call(*command).status == 0


def test_the_trend_has_the_runs_of_the_series_oldest_first(ask_ferry: Ask) -> None:
    trend = ask_ferry("latest", "--json").document["trend"]
    assert [of_run["shares"]["refused_wrongly"] for of_run in trend] == [0.875, 0.125, 0.125]
    assert [of_run["same_yardstick"] for of_run in trend] == [None, True, True]
    assert {of_run["n_judged"] for of_run in trend} == {8}
    assert [of_run["started_at"] for of_run in trend] == sorted(of_run["started_at"] for of_run in trend)
    assert len(ask_ferry("latest", "--runs", "2", "--json").document["trend"]) == 2
    assert len(ask_ferry("previous", "--json").document["trend"]) == 2, "later runs are left out"
    line = next(line for line in ask_ferry("latest").lines if line.startswith("refused wrongly "))
    assert line.split()[2:4] == ["1", "0.125"]
    shown = ask_ferry("latest").stdout.partition("\nTrend\n")[2].partition("\n\n")[0]
    assert re.search(r"refused wrongly +0\.875 +0\.125 +0\.125", shown)
    assert "Trend" not in ask_ferry("latest", "--runs", "1").lines


def test_a_trend_that_is_too_wide_has_a_row_for_each_run_and_names_what_it_leaves_out(ferry: Place) -> None:
    narrow = ferry.with_variables(COLUMNS="52").call("diagnose", "latest", "--limit", "0").stdout
    trend = narrow.partition("\nTrend\n")[2].splitlines()
    assert re.match(r"run +refused wrongly +\S", trend[0]), "the cause with the largest share in any run comes first"
    assert [re.split(" {2,}", line)[1] for line in trend[1:4]] == ["0.875", "0.125", "0.125"]
    assert re.match(r"note: no room for .*fine; a wider terminal or --json has them$", trend[4])
    assert max(map(len, trend[:4])) <= 52


def test_json_has_every_cause_with_its_share_and_every_sample_in_one(ask_ferry: Ask) -> None:
    document = ask_ferry("latest", "--json", "--limit", "99").document
    assert document.keys() == {
        "run", "sampling", "language", "thresholds", "causes", "not_judged", "trend", "samples"
    }  # fmt: skip
    assert [row["cause"] for row in document["causes"]] == list(get_args(Cause))
    counts = {row["cause"]: row["n_samples"] for row in document["causes"]}
    assert counts == {cause: list(EXPECTED.values()).count(cause) for cause in get_args(Cause)}
    for row in document["causes"]:
        assert row.keys() == {
            "cause", "name", "meaning", "n_samples", "n_of", "share", "ci_low", "ci_high", "remedies"
        }  # fmt: skip
        assert bool(row["remedies"]) == (row["n_samples"] > 0 and row["cause"] != "fine")
    assert document["thresholds"]["minor_share"] == 0.2
    missed = next(row for row in document["samples"] if row["sample_id"] == "missed")
    assert (missed["rule"], missed["evidence"]) == ("reference_not_retrieved", "1 of 2: G2")
    assert "reference context was not retrieved" in missed["rule_meaning"]
    assert [(one["statement_id"], one["label"], one["context_ranks"]) for one in missed["statements"]] == [
        ("G2", "FN", [])
    ]
    elsewhere = next(row for row in document["samples"] if row["sample_id"] == "found elsewhere")
    assert elsewhere["evidence"].startswith("1 of 2: G2; found for ")


def test_limit_counts_for_each_cause(ask_ferry: Ask) -> None:
    samples = ask_ferry("latest", "--limit", "1", "--json").document["samples"]
    assert sorted(row["cause"] for row in samples) == sorted(set(EXPECTED.values()))
    assert ask_ferry("latest", "--limit", "0", "--json").document["samples"] == []
    assert "Samples" not in ask_ferry("latest", "--limit", "0").lines


def test_one_cause_alone(ask_ferry: Ask) -> None:
    document = ask_ferry("latest", "--cause", "retrieval_missed", "--json").document
    assert [row["cause"] for row in document["causes"]] == ["retrieval_missed"]
    assert {row["sample_id"] for row in document["samples"]} == {"missed", "found elsewhere", "lacking"}
    assert [of_run["shares"].keys() for of_run in document["trend"]] == [{"retrieval_missed"}] * 3
    fine = ask_ferry("latest", "--cause", "fine")
    assert re.search(r"^fine +fine ", fine.stdout, re.MULTILINE), "asked for, it is shown"
    none = ask_ferry("latest", "--cause", "judge_suspect")
    assert re.search(r"^judge suspect +0  0\.000  0\.000 to 0\.324", none.stdout, re.MULTILINE)
    assert "What to try" not in none.lines


def test_causes_and_remedies_in_chinese(ask_ferry: Ask) -> None:
    finished = ask_ferry("latest", "--language", "zh")
    assert load_advice("zh")["retrieval_missed"].name in finished.lines[3]
    assert f"  - {load_advice('zh')['retrieval_missed'].remedies[0]}" in finished.lines
    assert load_advice("en")["retrieval_missed"].remedies[0] not in finished.stdout


def test_the_words_are_in_the_language_of_the_run(ferry: Place, tmp_path: Path) -> None:
    place = copy_place(ferry, tmp_path)
    change(place, "update runs set language = 'zh'")
    assert place.call("diagnose", "latest", "--json").document["language"] == "zh"
    change(place, "update runs set language = 'fr'")
    assert place.call("diagnose", "latest", "--json").document["language"] == "en"


def copy_place(place: Place, folder: Path) -> Place:
    shutil.copy(place.folder / "evalhouse.duckdb", folder)
    return Place(folder=folder, variables=place.variables)


def change(place: Place, *statements: str) -> None:
    with duckdb.connect(str(place.folder / "evalhouse.duckdb")) as connection:
        for sql in statements:
            connection.execute(sql)


def test_another_judge_in_between_is_reported(ferry: Place, tmp_path: Path) -> None:
    place = copy_place(ferry, tmp_path)
    change(place, "update runs set judge = 'openai:m' where started_at = (select max(started_at) from runs)")
    assert (
        "has another judge, language or plan than the one before: not comparable"
        in place.call("diagnose", "latest").stdout
    )


def test_what_could_not_be_judged_is_counted_by_reason(house: House, ask: Ask) -> None:
    finished = ask("diagnose", house.run_id)
    assert finished.status == 0
    assert f"{N_JUDGED} samples" in finished.lines[0]
    assert "not judged: 1 no_answer" in finished.lines
    assert re.search(r"^not judged +1  0\.250", finished.stdout, re.MULTILINE)
    document = ask("diagnose", house.run_id, "--json").document
    assert document["not_judged"] == [{"reason": "no_answer", "n_samples": 1}]
    assert sum(row["n_samples"] for row in document["causes"]) == N_JUDGED


def test_what_no_metric_asked_for_is_reported_from_what_a_stop_left_out(ferry: Place, tmp_path: Path) -> None:
    place, text = copy_place(ferry, tmp_path), "(no metric of this run asks for these verdicts)"
    assert place.call("run", "sample", "--limit", "2", "--judge", "lexical", "--metrics", "factual_f1").status == 0
    assert f"not judged: 2 cancelled {text}" in place.call("diagnose", "latest").lines
    change(place, "update runs set status = 'cancelled'")
    assert "not judged: 2 cancelled" in place.call("diagnose", "latest").lines


def test_in_a_terminal_every_table_fits_and_no_text_reaches_it_raw(house: House) -> None:
    arguments = ("diagnose", house.run_id, "--limit", "9", "--language", "zh")
    finished = show_in_terminal(house.place, *arguments, columns=80)
    assert finished.status == 0, finished.stdout
    plain = _OWN_STYLES.sub("", finished.stdout)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", plain)
    assert "\x1b[31m" not in finished.stdout
    tables = [line for line in plain.splitlines() if not line.startswith(("run ", "next: ", "  - "))]
    assert all(cell_len(line) <= 80 for line in tables)


def test_a_run_without_samples_says_so(ferry: Place, tmp_path: Path) -> None:
    place = copy_place(ferry, tmp_path)
    change(place, "insert into runs by name select * replace ('empty' as run_id) from runs limit 1")
    finished = place.call("diagnose", "empty")
    assert finished.status == 0
    assert "No samples yet." in finished.lines
