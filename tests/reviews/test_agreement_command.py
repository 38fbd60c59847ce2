"""`review agreement`: reviewed runs in a warehouse file, from the labels to what a person and a program read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, Place, call_here
from corrected_runs import Design, draw, fill_drawn
from warehouse_runs import lay_warehouse, make_run

from evalhouse.flows.results.comparison import corrected_pair_table
from evalhouse.tasks.reviews.export import list_corrected, pair_corrected
from evalhouse.warehouse.rows.reviews import fetch_reviewed
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.store import Warehouse

DESIGN = Design(n_runs=2, n_samples=80, n_picked=80, sensitivity=0.95, specificity=0.55, hard_share=0.4)
RUN = "r0000"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Make two reviewed runs and one without reviews."""
    found = lay_warehouse(tmp_path_factory.mktemp("reviewed") / "house.duckdb")
    for place, run_id in enumerate((RUN, "r0001", "unseen")):
        insert_run(found, make_run(run_id, minute=place, status="completed", metrics=("faithfulness", "factual_f1")))
    with found.writing() as connection:
        fill_drawn(connection, draw(DESIGN))
    return found


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Calls `review agreement` on the warehouse."""

    capsys: pytest.CaptureFixture[str]
    url: str

    def call(self, *arguments: str) -> Finished:
        return call_here(self.capsys, "review", "agreement", *arguments, "--warehouse", self.url)

    def read(self, *arguments: str) -> dict[str, Any]:
        ended = self.call(*arguments, "--json")
        assert ended.status == 0, ended.stderr
        document: dict[str, Any] = ended.document
        return document


@pytest.fixture
def caller(store: Warehouse, capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys=capsys, url=store.location.url)


@pytest.fixture(scope="module")
def of_run(store: Warehouse) -> dict[str, Any]:
    """Return the command's output on the first run."""
    ended = Place(folder=Path(store.location.path).parent).call(
        "review", "agreement", RUN, "--warehouse", store.location.url, "--json"
    )
    assert ended.status == 0, ended.stderr
    document: dict[str, Any] = ended.document
    return document


def test_the_judge_against_people_is_that_of_the_verdicts(of_run: dict[str, Any], store: Warehouse) -> None:
    drawn = draw(DESIGN)
    here = drawn.labelled & (drawn.run == 0)
    weight, right = 1 / drawn.probability[here], (drawn.reviewed == drawn.judged)[here]
    document = of_run
    (judged,) = document["judge"]
    assert (judged["step"], judged["n_verdicts"], document["n_labels"]) == ("attribute", here.sum(), here.sum())
    assert judged["accuracy"]["value"] == pytest.approx((weight * right).sum() / weight.sum())
    assert judged["confusion"]["supported"]["unsupported"] == (drawn.judged & ~drawn.reviewed)[here].sum()
    # The picks are mostly hard ones, of which the judge has more wrong: unweighted it would look worse than it is.
    assert judged["accuracy"]["value"] > right.mean() + 0.05
    assert document["people"] == []
    (corrected,) = document["corrected"][RUN]
    (row,) = list_corrected(store, RUN)
    assert corrected["corrected_mean"] == pytest.approx(row.corrected_mean)
    assert corrected["corrected_mean"] < corrected["mean"]
    assert corrected["judge_bias"] > 0


def test_without_a_run_all_reviewed_ones_count(caller: Caller, store: Warehouse, of_run: dict[str, Any]) -> None:
    assert list(store.fetch("reviews/runs")["run_id"]) == [RUN, "r0001"]
    document = caller.read()
    assert document["runs"] == [RUN, "r0001"]
    assert document["n_labels"] == of_run["n_labels"] + caller.read("r0001")["n_labels"]


def test_groups(caller: Caller) -> None:
    document = caller.read(RUN, "--by", "label,judge,language,prompt_version,reviewer")
    groups = [(row["by"], row["value"]) for row in document["judge"]]
    assert groups == [
        ("label", "supported"), ("label", "unsupported"), ("judge", "lexical"), ("language", "en"),
        ("prompt_version", None), ("reviewer", "ann"),
    ]  # fmt: skip
    assert document["judge"][0]["kappa"]["value"] is None


def test_a_person_reads_tables_and_what_to_mind(caller: Caller) -> None:
    shown = caller.call(RUN).stdout
    assert "The judge against people" in shown
    assert "people: supported" in shown
    assert "People with each other: no verdict has labels of two people" in shown
    assert f"Means of run {RUN}, corrected" in shown
    assert "no corrected mean: factual_f1, which divide" in shown
    assert "under 30 verdicts by weight" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("unseen",), "no verdict of unseen has been reviewed"),
        ((RUN, "--by", "step,mood"), "known: step, label, language"),
        (("no-such-run",), "no run fits"),
    ],
)
def test_agreement_that_cannot_be_measured_is_one_line(
    caller: Caller, arguments: tuple[str, ...], expected: str
) -> None:
    ended = caller.call(*arguments)
    assert ended.status == 2
    assert expected in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_nothing_reviewed_yet_says_how_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = lay_warehouse(tmp_path / "empty.duckdb")
    insert_run(empty, make_run("r", status="completed"))
    ended = Caller(capsys=capsys, url=empty.location.url).call()
    assert ended.status == 2
    assert "evalhouse review export latest" in ended.stderr


def test_a_later_run_with_the_same_verdicts_counts_each_once(
    store: Warehouse, caller: Caller, of_run: dict[str, Any]
) -> None:
    """The night after, everything came from the record: the same statements, the same verdicts."""
    insert_run(store, make_run("later", minute=9, status="completed"))
    with store.writing() as connection:
        for table in ("run_samples", "statements", "attributions", "scores"):
            connection.execute(
                f"insert into {table} by name select * replace ('later' as run_id) from {table} where run_id = '{RUN}'"
            )
    assert len(fetch_reviewed(store, ["later"])) == of_run["n_labels"]
    both = caller.read(RUN, "later")
    assert both["n_labels"] == caller.read(RUN)["n_labels"]
    (corrected,) = both["corrected"]["later"]
    assert corrected["n_carried"] == corrected["n_reviewed"] > 0
    assert "from reviews of other runs" in corrected["note"]


def test_two_runs_side_by_side(store: Warehouse) -> None:
    (pair,) = pair_corrected(store, RUN, "r0001")
    assert (pair.metric, pair.base.metric) == ("faithfulness", "faithfulness")
    assert pair.base.corrected_mean != pair.candidate.corrected_mean
    shown = corrected_pair_table([pair]).to_text()
    assert f"{pair.base.corrected_mean:.3f}" in shown
    assert f"{pair.base.n_reviewed} and {pair.candidate.n_reviewed}" in shown
    assert pair_corrected(store, RUN, "unseen") == []
