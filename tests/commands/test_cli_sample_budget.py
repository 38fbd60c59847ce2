"""`run --sample-budget`: which samples are judged, how it is reported, and that a resumed run judges the same ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli_house import make_rows, place_at, write_dataset
from cli_process import Place
from endpoint import Endpoint

from evalhouse.flows.results.headline import lay_against, write_headline
from evalhouse.tasks.comparing.runs import ComparisonSettings, compare_runs
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse

N_ROWS, BUDGET = 30, 12
METRICS = ("--metrics", "context_precision,context_recall")
RUN = ("run", "berths.jsonl", "--sample-budget", str(BUDGET), *METRICS)


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    return place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=N_ROWS)


def list_judged(place: Place, run_id: str) -> list[tuple[int, str]]:
    rows = Warehouse(str(place.folder / "evalhouse.duckdb")).read_rows(
        "select ordinal, sample_id from run_samples where run_id = $run_id order by ordinal", {"run_id": run_id}
    )
    return [(row["ordinal"], row["sample_id"]) for row in rows]


@pytest.mark.slow
def test_a_part_is_judged_and_a_resumed_run_continues_that_part(place: Place, endpoint: Endpoint) -> None:
    endpoint.configure(faults={"truncated": 0.5}, seed=3)
    faulty = place.call(*RUN, "--judge", "openai:judge", "--attempts", "1", "--json")
    assert faulty.status == 3, faulty.stderr
    run_id = faulty.document["run_id"]
    judged = list_judged(place, run_id)
    assert [ordinal for ordinal, _ in judged] == list(range(1, BUDGET + 1)), "numbered without gaps"

    endpoint.configure(faults={})
    repaired = place.call("resume", run_id, "--json")
    assert repaired.status == 0, repaired.stderr
    assert list_judged(place, run_id) == judged
    assert endpoint.stats.duplicates_answered == 0
    assert repaired.document["n_samples"] == BUDGET
    mean = repaired.document["metrics"]["context_precision"]
    assert mean["n_scored"] == BUDGET
    assert 0 <= mean["ci_low"] <= mean["mean"] <= mean["ci_high"] <= 1
    expected = place.call("show", run_id)
    assert (
        f"{BUDGET} of {N_ROWS} samples were judged, picked with known probabilities"
        in expected.stdout + expected.stderr
    )


@pytest.mark.slow
def test_the_next_run_knows_where_the_judge_was_in_doubt(place: Place) -> None:
    whole = place.call("run", "berths.jsonl", "--judge", "lexical", *METRICS, "--json")
    part = place.call(*RUN, "--judge", "lexical", "--sample-seed", "1")
    assert whole.status == part.status == 0, whole.stderr + part.stderr
    share = re.search(r"\(signals: (\d+)% earlier scores, else lexical\)", part.stdout + part.stderr)
    assert share is not None
    assert int(share[1]) > 50, "what the run of all has scored"
    warehouse = Warehouse(str(place.folder / "evalhouse.duckdb"))
    pair = RunPair(warehouse, find_run(warehouse, "previous"), find_run(warehouse, "latest"))
    comparison = compare_runs(pair, ComparisonSettings())
    assert not any(compared.parts for compared in comparison.metrics)
    moved = tuple(replace(one, paired=replace(one.paired, verdict="worse")) for one in comparison.metrics)
    against = lay_against(pair, "the base", lambda _: replace(comparison, metrics=moved))
    assert write_headline(against).sentence.startswith("Some scores are worse than in the base")
    again = place.call(*RUN, "--judge", "lexical", "--sample-seed", "2", "--json")
    assert again.document["calls"]["requests"] == 0, "the replies of the run of all are stored"
    diagnosed = place.call("diagnose", "previous").stdout
    assert f"{BUDGET} of {N_ROWS} samples were judged" in diagnosed, "its shares are estimates"


@pytest.mark.slow
def test_runs_that_picked_the_same_samples_are_compared_by_what_moved_in_them(place: Place) -> None:
    """Two datasets of the same samples, of which nothing was known before."""
    run_ids = []
    for name in ("first.jsonl", "second.jsonl"):
        write_dataset(place.folder, make_rows(N_ROWS), name)
        ran = place.call("run", name, "--sample-budget", str(BUDGET), "--judge", "lexical", *METRICS, "--json")
        assert ran.status == 0, ran.stderr
        run_ids.append(ran.document["run_id"])
    assert list_judged(place, run_ids[0]) == list_judged(place, run_ids[1])
    document = place.call("compare", *run_ids, "--json").document
    metric = next(one for one in document["metrics"] if one["metric"] == "context_recall")
    assert metric["difference"] == 0
    # Of 30 samples 12 were judged and none moved: had 7 moved, one of them would have been picked, most probably.
    assert -0.35 < metric["ci_low"] < 0 < metric["ci_high"] < 0.35
