"""Every view as a whole: made, commented, with its grain; and the small views that the others share."""

from rows import Sample, add_samples, list_steps, open_rows, read, read_metrics

from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.steps import GRADE_STEP, STEPS

VIEWS = sorted(script.name for script in view_scripts())


def test_every_script_makes_its_view_and_states_its_grain() -> None:
    for script in view_scripts():
        definition = script.sql.partition("comment on column")[0]
        assert f"create or replace view {script.name} as" in definition, script.name
        assert script.sql.startswith("-- One row per "), script.name
        assert f"comment on view {script.name} is 'One row per " in definition, script.name


def test_every_view_and_column_has_a_comment() -> None:
    with open_rows() as con:
        columns = read(con, "select table_name, column_name, comment from duckdb_columns() where not internal")
        views = read(con, "select view_name, comment from duckdb_views() where not internal")
    assert {row["view_name"] for row in views} == set(VIEWS)
    assert [row for row in views if not row["comment"]] == []
    silent = [row for row in columns if row["table_name"] in VIEWS and not row["comment"]]
    assert silent == []


def test_metric_steps_are_those_of_the_files() -> None:
    with open_rows() as con:
        rows = read(con, "select metric, step from metric_steps where not optional")
        optional = read(con, "select metric, step from metric_steps where optional")
    metrics = read_metrics().values()
    assert {(row["metric"], row["step"]) for row in rows} == {(m.name, step) for m in metrics for step in m.needs}
    assert {(row["metric"], row["step"]) for row in optional} == {
        (m.name, step) for m in metrics for step in m.optional_needs
    }


def test_sample_steps_knows_every_step() -> None:
    with open_rows() as con:
        add_samples(con, Sample(missing=["rank"], reasons={"classify": "judge_failed"}))
        rows = {str(row["step"]): row for row in read(con, "from sample_steps")}
    assert set(rows) >= set(list_steps())
    assert {step for step in rows if not step.startswith(GRADE_STEP)} == set(STEPS)
    assert (rows["rank"]["reason"], rows["rank"]["is_recorded"]) == ("cancelled", False)
    assert (rows["classify"]["reason"], rows["classify"]["is_recorded"]) == ("judge_failed", True)
    assert (rows["similarity"]["reason"], rows["similarity"]["precedence"]) == (None, None)


def test_reasons_are_those_of_the_contract() -> None:
    with open_rows() as con:
        reasons = [row["reason"] for row in read(con, "from unscored_reasons order by precedence")]
    assert set(reasons) == {
        "no_answer", "no_ground_truth", "no_contexts", "no_statements", "no_reference_ids", "judge_failed",
        "target_failed", "embedding_failed", "budget_exhausted", "cancelled", "no_citations", "no_conversation",
        "ids_do_not_match", "language_not_supported", "nothing_to_heed", "too_many_citations", "measure_failed",
        "judge_not_suited",
    }  # fmt: skip
    assert reasons[:3] == ["no_ground_truth", "no_answer", "no_contexts"]
    assert reasons[13:] == [
        "nothing_to_heed", "too_many_citations", "measure_failed", "no_citations", "no_statements"
    ]  # fmt: skip
