"""Every view as a whole: laid in order, laid again, commented; and the small views that the others share."""

import re

from rows import Sample, add_samples, fill, list_steps, open_rows, read, read_metrics

from evalhouse.warehouse.metric_files import load_metrics, metric_steps_sql, view_scripts
from evalhouse.warehouse.steps import GRADE_STEP, STEPS

VIEWS = sorted(script.name for script in view_scripts())


def test_views_of_the_contract_are_there() -> None:
    promised = {"run_scores", "score_history", "score_lineage", "run_costs", "unscored", "sample_history"}
    assert promised <= set(VIEWS)
    assert len(VIEWS) == len(set(VIEWS))


def test_every_view_comes_after_those_it_reads() -> None:
    laid: set[str] = set()
    for script in view_scripts():
        read_by_it = {
            name for name in VIEWS if re.search(rf"(from|join) {name}\b", script.sql.partition("comment on column")[0])
        }
        assert read_by_it <= laid
        laid.add(script.name)


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


def test_views_can_be_laid_again() -> None:
    with open_rows() as con:
        for script in view_scripts():
            con.execute(script.sql)


def test_metric_steps_are_those_of_the_files() -> None:
    with open_rows() as con:
        rows = read(con, "select metric, step from metric_steps where not optional")
        optional = read(con, "select metric, step from metric_steps where optional")
    metrics = read_metrics().values()
    assert {(row["metric"], row["step"]) for row in rows} == {(m.name, step) for m in metrics for step in m.needs}
    assert {(row["metric"], row["step"]) for row in optional} == {
        (m.name, step) for m in metrics for step in m.optional_needs
    }


def test_metric_steps_without_any_metric() -> None:
    with open_rows() as con:
        con.execute(metric_steps_sql({}))
        assert read(con, "from metric_steps") == []
        only_one = {"mrr": load_metrics()["mrr"]}
        con.execute(metric_steps_sql(only_one))
        assert read(con, "from metric_steps") == [{"metric": "mrr", "step": "rank", "optional": True}]


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
    assert reasons[:3] == ["no_answer", "no_ground_truth", "no_contexts"]
    assert reasons[13:] == [
        "nothing_to_heed", "too_many_citations", "measure_failed", "no_citations", "no_statements"
    ]  # fmt: skip


def test_statement_verdicts() -> None:
    with open_rows() as con:
        add_samples(
            con,
            Sample(
                answer=["TP", "FP", "FP"],
                ground_truth=["FN"],
                answer_support=[[1, 3], [2], []],
                ground_truth_support=[[3]],
            ),
            Sample(sample_id="unjudged", missing=tuple(STEPS)),
        )
        fill(con, "statements", {"run_id": "r", "sample_id": "unjudged", "statement_id": "A1", "source": "answer",
                                 "ordinal": 1, "text": "So."})  # fmt: skip
        rows = read(con, "from statement_verdicts order by sample_id, source, ordinal")
    shown = [(row["statement_id"], row["label"], row["supported"], row["supported_by_relevant"]) for row in rows]
    assert shown == [
        ("A1", "TP", True, True),
        ("A2", "FP", True, False),
        ("A3", "FP", False, False),
        ("G1", "FN", True, True),
        ("A1", None, None, None),
    ]
