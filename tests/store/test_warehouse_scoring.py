"""Scores of a run: replaced as a whole, by the metric's own settings, and never from a metric that breaks the rules."""

import re
from pathlib import Path

import pytest
from kept_open import let_go
from rows import RowsToCome
from warehouse_processes import count_rows, make_warehouse
from warehouse_runs import make_run

from evalhouse.warehouse.engine import connection
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.metric_files import MetricFile, load_metrics, parse_metric, view_scripts
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import VIEWS_OF_METRICS, Staging, score_run, take_in_samples
from evalhouse.warehouse.sandbox import query_process as own_metrics
from evalhouse.warehouse.sandbox.query_process import try_metrics
from evalhouse.warehouse.store import Batch, Warehouse, build_frame

_HALF = (
    "select run_id, sample_id, $weight / 2 as value, null as unscored_reason from run_samples where run_id = $run_id"
)
_CHOOSE = """select run_id, sample_id, {value} as value, {reason} as unscored_reason
from run_samples {join} where run_id = $run_id"""


def make_metric(name: str, sql: str, *, version: int = 1, parameter: str = "") -> MetricFile:
    header = f"-- metric: {name}\n-- version: {version}\n-- needs: -\n{parameter}-- One row per sample of the run.\n"
    return parse_metric(header + sql, name=name, place=f"{name}.sql")


def make_weighted(name: str = "half", version: int = 1) -> MetricFile:
    return make_metric(name, _HALF, version=version, parameter="-- parameter: weight = 1\n")


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """Two runs with two samples each."""
    made = make_warehouse(tmp_path)
    for run_id in ("r", "other"):
        insert_run(made, make_run(run_id))
        rows = [
            {"run_id": run_id, "sample_id": name, "input_hash": "h", "ordinal": number}
            for number, name in enumerate("ab", start=1)
        ]
        made.append(Batch(key=run_id, run_id=run_id, tables={"run_samples": build_frame("run_samples", rows)}))
    return made


def read_scores(warehouse: Warehouse) -> list[tuple[object, ...]]:
    return warehouse.read("select run_id, sample_id, metric, value, metric_version from scores order by all").rows()


def test_run_is_scored_again_and_others_are_left_alone(warehouse: Warehouse) -> None:
    for run_id in ("other", "r"):
        score_run(warehouse, run_id, [make_weighted(), make_weighted("kept")], {})
    score_run(warehouse, "r", [make_weighted(version=2)], {"half": {"weight": 0.5}})
    assert read_scores(warehouse) == [
        ("other", "a", "half", 0.5, "1"),
        ("other", "a", "kept", 0.5, "1"),
        ("other", "b", "half", 0.5, "1"),
        ("other", "b", "kept", 0.5, "1"),
        ("r", "a", "half", 0.25, "2;weight=0.5"),
        ("r", "a", "kept", 0.5, "1"),
        ("r", "b", "half", 0.25, "2;weight=0.5"),
        ("r", "b", "kept", 0.5, "1"),
    ]


def test_metrics_of_ours_read_the_runs_part_of_a_view_and_a_users_own_all_of_it(warehouse: Warehouse) -> None:
    """The views that ours read are made once for all of them, with the rows of the run alone."""
    views = {script.name for script in view_scripts()}
    ours = load_metrics()
    used = {view for metric in ours.values() for view in views & set(re.findall(r"\w+", metric.sql))}
    assert used - {"contexts"} == set(VIEWS_OF_METRICS)
    count = "(select count(distinct run_id) from sample_steps)"
    own = make_metric("own", _CHOOSE.format(value=count, reason="null", join=""))
    score_run(warehouse, "r", [ours["faithfulness"], own, ours["mrr"]], {})
    scores = warehouse.read("select distinct metric, value, unscored_reason from scores order by all").rows()
    assert scores == [("faithfulness", None, "cancelled"), ("mrr", None, "no_reference_ids"), ("own", 2.0, None)]


FUNCTION = """
@metric(name="mine", needs=("answer", "question", "classifications"))
def judge(answer, question, classifications):
    return {result}
"""


@pytest.mark.parametrize(
    ("result", "scores"),
    [
        ("len(answer) / 4", [(1.0, None, None), (None, "no_answer", None)]),
        ("len(classifications)", [(1.0, None, None), (None, "no_answer", None)]),
        ("classifications[0]['label'] == 'TP'", [(1.0, None, None), (None, "no_answer", None)]),
        ("'no_contexts'", [(None, "no_contexts", None), (None, "no_answer", None)]),
        ("answer['x']", [(None, "measure_failed", "TypeError: string indices must be integers, not 'str'"),
                         (None, "no_answer", None)]),
        ("__import__('numpy').float32(0.25)", [(0.25, None, None), (None, "no_answer", None)]),
        ("__import__('numpy').bool_(True)", [(1.0, None, None), (None, "no_answer", None)]),
        ("__import__('numpy').ones(2)",
         [(None, "measure_failed", "ValueError: can only convert an array of size 1 to a Python scalar"),
          (None, "no_answer", None)]),
        ("None", "returned None; let it return a finite number, or one of 'no_ground_truth', "),
        ("float('nan')", "returned nan; "),
        ("__import__('numpy').float32('nan')", "returned nan; "),
        ("[1]", "returned [1]; "),
        ("'very good'", "returned 'very good'; "),
        ("10 ** 400", [(None, "measure_failed", "OverflowError: int too large to convert to float"),
                       (None, "no_answer", None)]),
    ],
)  # fmt: skip
def test_a_python_function_scores_each_sample(
    warehouse: Warehouse, tmp_path: Path, result: str, scores: list[object] | str
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    text = FUNCTION.replace("{result}", result)
    (folder / "mine.py").write_text(f"from evalhouse.warehouse.metric_files import metric\n{text}", encoding="utf-8")
    key = {"run_id": "r", "sample_id": "a"}
    judged = RowsToCome()
    for name, answer in (("a", "Maud"), ("b", None)):
        judged.add("samples", {"sample_id": name, "input_hash": "h", "answer": answer})
        judged.add("outcomes", {**key, "sample_id": name, "step": "classify"})
    judged.add("classifications", {**key, "statement_id": "A1", "label": "TP", "reason": "as read"})
    judged.write(warehouse)
    metric = load_metrics(folder)["mine"]
    score_run(warehouse, "r", [metric], {})
    found = warehouse.read("select value, unscored_reason, detail from scores order by sample_id").rows()
    if isinstance(scores, str):
        ((value, reason, detail), _) = found
        assert (value, reason) == (None, "measure_failed")
        assert detail.startswith("judge (")
        assert f"mine.py) {scores}" in detail
        return
    assert found == scores
    assert warehouse.read("select detail from unscored where sample_id = 'a'").rows() == [
        (detail,) for _, reason, detail in scores[:1] if reason
    ]


def test_a_metric_may_end_in_a_comment_and_leave_samples_unscored(warehouse: Warehouse) -> None:
    sql = _CHOOSE.format(value="null", reason="'no_answer'", join="") + " -- all of them"
    score_run(warehouse, "r", [make_metric("quiet", sql)], {})
    assert warehouse.read("select value, unscored_reason from scores").rows() == [(None, "no_answer")] * 2


def test_faulty_rows_are_refused_and_scores_kept(warehouse: Warehouse) -> None:
    score_run(warehouse, "r", [make_weighted("mine")], {})
    before = read_scores(warehouse)
    only = "semi join (select '{}' as sample_id) using (sample_id)"
    for value, reason, join, fault in (
        ("'nan'::double", "null", "", "2 values that are not finite numbers"),
        ("'inf'::double", "null", "", "2 values that are not finite numbers"),
        ("null", "null", "", "2 rows without either a value or an unscored_reason"),
        ("1", "'no_answer'", "", "2 rows without either a value or an unscored_reason"),
        ("1", "null", "cross join range(2)", "2 rows for a sample that has one"),
        ("1", "null", only.format("a"), "1 samples of the run without a row"),
        ("1", "null", only.format("c"), "2 samples of the run without a row"),
    ):
        faulty = make_metric("mine", _CHOOSE.format(value=value, reason=reason, join=join))
        with pytest.raises(WarehouseError, match=f"metric 'mine' gave {fault}; its SQL must give one row per sample"):
            score_run(warehouse, "r", [make_weighted("first"), faulty], {})
        assert read_scores(warehouse) == before, fault


def test_failing_sql_is_reported_with_the_metrics_name(warehouse: Warehouse) -> None:
    for sql, words in (
        ("select nonsense from run_samples where run_id = $run_id", "nonsense"),
        ("select run_id, sample_id, 1 as value from run_samples where run_id = $run_id", "unscored_reason"),
        (_CHOOSE.format(value="'x'::int", reason="null", join=""), "'x'"),
    ):
        with pytest.raises(WarehouseError, match=rf"metric 'broken' \(broken.sql\) failed: .*{words}") as raised:
            score_run(warehouse, "r", [make_metric("broken", sql)], {})
        assert "\n" not in str(raised.value), words
    assert count_rows(warehouse, "scores") == 0


def test_a_metric_is_tried_without_any_data() -> None:
    cases = (
        ("sample_id, 1 as val, null as unscored_reason", 'column "value" not found'),
        ("sample_id, 1 as value", 'column "unscored_reason" not found'),
        ("1 as value, null as unscored_reason", 'column "sample_id" not found'),
        ("sample_id, relevance as value, null as unscored_reason", 'column "relevance" not found'),
        ("sample_id, (select 1 from answers) as value, null as unscored_reason", "answers does not exist"),
        ("sample_id, 1 as value null as unscored_reason", "syntax error"),
        ("sample_id, lenght(sample_id) as value, null as unscored_reason", "lenght"),
        ("sample_id, 'much' as value, null as unscored_reason", "value is VARCHAR; it must be a number"),
        ("sample_id, true as value, null as unscored_reason", "value is BOOLEAN; it must be a number"),
        ("sample_id, [1] as value, null as unscored_reason", r"value is INTEGER\[\]; it must be a number"),
        ("sample_id, 1 as value, 1.5 as unscored_reason", r"unscored_reason is DECIMAL\(2,1\); it must be text"),
        ("ordinal as sample_id, 1 as value, null as unscored_reason", "sample_id is BIGINT; it must be text"),
        ("'a' as sample_id, count(*) as value, null as unscored_reason", "it gives a row where the run has no sample"),
    )
    for columns, fault in cases:
        bad = make_metric("bad", f"select {columns} from run_samples where run_id = $run_id")
        with pytest.raises(WarehouseError, match=rf"^bad\.sql: .*{fault}.*; its SELECT was tried") as raised:
            try_metrics([make_weighted(), bad], {})
        assert "\n" not in str(raised.value), columns


@pytest.mark.slow
def test_a_metric_that_never_ends_is_stopped_when_it_is_tried_and_when_it_scores(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_TRIAL_TIMEOUT_S", "_TIMEOUT_S"):
        monkeypatch.setattr(own_metrics, limit, 0.3)
    hangs = "levenshtein(repeat('a', 2000000), repeat('b', 2000000))"
    endless = make_metric("endless", _CHOOSE.format(value=hangs, reason="null", join=""))
    with pytest.raises(WarehouseError, match=r"^endless\.sql: the query was stopped after 0\.3 s"):
        try_metrics([endless], {})
    with pytest.raises(WarehouseError, match=r"metric 'endless' \(endless\.sql\) failed: the query was stopped"):
        score_run(warehouse, "r", [endless], {})
    crashing = make_metric("crashing", "select * from pandas_scan(NULL) where run_id = $run_id")
    with pytest.raises(WarehouseError, match="ended the process that it ran in"):
        try_metrics([crashing], {})
    assert count_rows(warehouse, "scores") == 0


def test_all_metrics_of_ours_and_any_kind_of_number_pass_the_trial() -> None:
    own = [
        make_metric("own", _CHOOSE.format(value=value, reason=reason, join=""))
        for value in ("1", "1::hugeint", "1.5", "1.5::float", "null", "if(ordinal > 1, 0.5, null)")
        for reason in ("null", "'no_answer'", "if(ordinal > 1, null, 'no_answer')")
    ]
    try_metrics([*load_metrics().values(), make_weighted(), *own], {"half": {"weight": 0.5}})


def test_a_setting_the_metric_does_not_take_is_refused(warehouse: Warehouse) -> None:
    with pytest.raises(WarehouseError, match="metric 'half' takes no parameter 'wait'; did you mean weight"):
        score_run(warehouse, "r", [make_weighted()], {"half": {"wait": 1}})


_AT_SIZE = """
insert into run_samples by name
    select 'r' as run_id, 's' || n as sample_id, 'h' as input_hash, n as ordinal from range(10, {n}) as t (n);
insert into samples by name
    select sample_id, input_hash, 'q' as question, 'a' as answer, 'g' as ground_truth, ['c1', 'c2', 'c3'] as contexts,
        ['1', '2', '3'] as context_ids, ['1', '4'] as reference_context_ids
    from run_samples;
insert into context_verdicts by name
    select run_id, sample_id, rank as context_rank, rank = 2 as useful from run_samples, range(1, 4) as t (rank);
insert into statements by name
    select 'r' as run_id, 's' || n as sample_id, side || k as statement_id, k as ordinal, 'text ' || k as text,
        if(side = 'A', 'answer', 'ground_truth') as source
    from range(10, {n}) as t (n), range(1, 4) as u (k), unnest(['A', 'G']) as v (side);
insert into classifications by name
    select run_id, sample_id, statement_id, if(ordinal < 3, 'TP', if(source = 'answer', 'FP', 'FN')) as label
    from statements;
insert into attributions by name
    select run_id, sample_id, statement_id, ordinal < 3 as supported, if(ordinal < 3, [ordinal], []) as context_ranks
    from statements;
insert into outcomes by name
    select run_id, sample_id, step
    from run_samples, unnest(['extract_answer', 'extract_ground_truth', 'classify', 'rank']) as t (step)
    union all
    select run_id, sample_id, step from run_samples, unnest(['attribute_answer', 'attribute_ground_truth']) as t (step);
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [190_000, 400_000])
def test_a_run_of_any_size_is_scored_within_a_writers_memory(tmp_path: Path, n_samples: int) -> None:
    """Tables made once for all metrics of a small run would not fit for a large one."""
    warehouse = make_warehouse(tmp_path)
    insert_run(warehouse, make_run("r"))
    with warehouse.writing(patience_s=1.0) as connection:
        for statement in connection.extract_statements(_AT_SIZE.format(n=10 + n_samples)):
            connection.execute(statement)
    metrics = [metric for metric in load_metrics().values() if metric.default_place is not None]
    score_run(warehouse, "r", metrics, {})
    means = dict(warehouse.read("select metric, avg(value) from scores group by all").rows())
    assert {name: means[name] for name in ("factual_f1", "faithfulness", "context_recall")} == {
        "factual_f1": pytest.approx(2 / 3),
        "faithfulness": pytest.approx(2 / 3),
        "context_recall": pytest.approx(2 / 3),
    }
    assert count_rows(warehouse, "scores") == n_samples * len(metrics)


@pytest.mark.slow
def test_samples_with_long_contexts_are_scored_in_a_writers_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contexts, 5 of 105 KB in each sample, take four fifths of the memory that the writer has."""
    made = make_warehouse(tmp_path)
    insert_run(made, make_run("long"))
    texts = {
        f"s{number}": [f"{number} {place} " + "The ferry leaves at noon. " * 4_000 for place in range(5)]
        for number in range(150)
    }
    staging = Staging()
    staging.add(
        [
            {"ordinal": ordinal, "sample_id": name, "input_hash": "h", "question": "When?", "contexts": contexts}
            for ordinal, (name, contexts) in enumerate(texts.items(), start=1)
        ]
    )
    take_in_samples(made, "long", staging)
    staging.discard()
    let_go()  # a file that is open keeps its limit
    monkeypatch.setitem(connection._FOR_WRITING, "memory_limit", "96MB")
    metrics = [metric for metric in load_metrics().values() if not metric.is_own]
    score_run(made, "long", metrics, {})
    assert count_rows(made, "scores") == len(texts) * len(metrics)
