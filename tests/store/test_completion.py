"""Completion at the cursor of a person who types SQL."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from warehouse_runs import lay_warehouse

from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.sandbox.query import Catalog, read_catalog, suggest_words


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return read_catalog(lay_warehouse(tmp_path_factory.mktemp("catalog") / "evalhouse.duckdb").location)


def offer(catalog: Catalog, before: str, after: str = "") -> list[str]:
    return [word.text for word in suggest_words(before, after, catalog)]


def test_tables_and_views_are_offered_where_one_must_stand(catalog: Catalog) -> None:
    assert offer(catalog, "select 1 from run_s") == ["run_samples", "run_scores", "run_series"]
    assert offer(catalog, "from runs join sample_h") == ["sample_history"]
    assert offer(catalog, "\\d unsc") == ["unscored", "unscored_reasons"]
    assert set(offer(catalog, "from ")) == {relation.name for relation in catalog.relations}


def test_columns_of_the_named_tables_come_first(catalog: Catalog) -> None:
    assert offer(catalog, "select me", " from run_scores")[:2] == ["metric", "mean"]
    assert offer(catalog, "select * from run_scores where n_") == ["n_scored", "n_unscored", "n_clusters"]
    assert offer(catalog, "select s.la", " from statements x join statement_verdicts as s") == ["label", "label_reason"]
    assert offer(catalog, "select runs.kb", " from scores, runs") == ["kb_name", "kb_version", "kb_changed"]
    assert offer(catalog, "select nothing.kb", " from runs") == []


def test_keywords_and_functions_follow_in_the_letters_that_were_begun(catalog: Catalog) -> None:
    assert "where" in offer(catalog, "from runs wh")
    assert offer(catalog, "from runs WHER") == ["WHERE"]
    assert "regexp_matches" in offer(catalog, "select regexp_m", " from runs")
    assert offer(catalog, "select zzz_nothing") == []


def test_a_suggestion_states_what_it_is_and_what_it_means(catalog: Catalog) -> None:
    column = suggest_words("select ci_l", " from run_scores", catalog)[0]
    assert (column.text, column.n_replaced, column.note) == ("ci_low", 4, "run_scores, double")
    assert "95 % interval" in str(column.comment)
    view = suggest_words("from run_scor", "", catalog)[0]
    assert (view.note, str(view.comment)[:21]) == ("view", "One row per run and m")


@pytest.mark.parametrize(
    ("before", "is_offered"),
    [
        ("select '", False),
        ("select 'me", False),
        ("select 'it''s me", False),
        ("select '灯' || me", True),
        ("select 1 -- me", False),
        ("select 1 -- all\n, me", True),
        ("select /* me", False),
        ("select $$ me", False),
        ("select (me", True),
        ("", True),
    ],
)
def test_within_a_string_or_a_comment_nothing_is_offered(catalog: Catalog, before: str, is_offered: bool) -> None:
    assert bool(offer(catalog, before, " from run_scores")) == is_offered


def test_completion_quotes_names_where_sql_requires_it(tmp_path: Path) -> None:
    path = tmp_path / "odd.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute('create table "my table" ("order" int, "a ""b""" int, Größe int)')
        connection.execute('comment on column "my table"."order" is \'which one\'')
    catalog = read_catalog(parse_location(str(path)))
    assert offer(catalog, "from my") == ['"my table"']
    assert '"order"' in offer(catalog, "select ord")
    assert '"a ""b"""' in offer(catalog, "select a")
    assert [column.comment for column in catalog.find("MY TABLE").columns] == ["which one", None, None]
