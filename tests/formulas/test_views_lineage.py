"""score_lineage: from a score to its verdicts, the raw reply that was used, the prompt and the sample."""

from dataclasses import replace

import duckdb
import pytest
from rows import Sample, add_samples, fill, open_rows, rate_everything, read, read_metrics

JUDGED = Sample(
    answer=["TP", "FP"],
    ground_truth=["TP"],
    answer_support=[[1], []],
    ground_truth_support=[[2]],
    useful=[True, False],
    turns={"A1": "consistent", "U1": "heeded"},
    similarity=0.5,
    citations=[("A1", 1), ("A2", None), (None, 2)],
)
LABELS = [("A1", "TP"), ("A2", "FP"), ("G1", "TP")]


def add_score(
    con: duckdb.DuckDBPyConnection, metric: str, value: float | None = 0.5, reason: str | None = None
) -> None:
    """A score of sample s in run r."""
    fill(con, "scores", {"run_id": "r", "sample_id": "s", "metric": metric, "value": value, "unscored_reason": reason})


def test_every_label_behind_a_score() -> None:
    with open_rows() as con:
        add_samples(con, JUDGED)
        add_score(con, "factual_f1")
        rows = read(con, "from score_lineage order by statement_id")
    assert [(row["statement_id"], row["label"]) for row in rows] == LABELS
    assert {row["step"] for row in rows} == {"classify"}
    assert [row["source"] for row in rows] == ["answer", "answer", "ground_truth"]
    assert rows[0]["statement"] == "Statement A1."
    assert rows[0]["reason"] == "as read"
    assert (rows[0]["value"], rows[0]["metric_version"], rows[0]["question"]) == (0.5, "1", "Where is it?")


def test_every_metric_rests_on_the_steps_it_names() -> None:
    n_verdicts = {"classify": 3, "attribute_answer": 2, "attribute_ground_truth": 1, "rank": 2, "similarity": 1}
    n_verdicts |= {"relevancy": 2, "overlap": 5, "tool_calls": 2, "result_sets": 2, "citations": 3, "turns": 2}
    rated = rate_everything(5)
    for rubric, _ in rated["grades"]:
        n_verdicts.setdefault(f"grade_{rubric}", sum(name == rubric for name, _ in rated["grades"]))
    with open_rows() as con:
        add_samples(con, replace(JUDGED, **rated), Sample(sample_id="other", answer=["TP"], useful=[True]))
        add_samples(con, JUDGED, run_id="earlier")
        fill(con, "scores", *({"run_id": "r", "sample_id": "s", "metric": name, "value": 0.5}
                              for name in read_metrics()))  # fmt: skip
        counted = con.sql("select metric, step, count(*) from score_lineage group by all").fetchall()
    found: dict[str, dict[str | None, int]] = {}
    for metric, step, n in counted:
        found.setdefault(metric, {})[step] = n
    # A score that rests on no step, such as one by reference ids, keeps a separate row.
    expected = {
        metric: {step: n_verdicts[step] for step in file.needs} or {None: 1} for metric, file in read_metrics().items()
    }
    assert found == expected


def test_support_usefulness_and_similarity() -> None:
    with open_rows() as con:
        add_samples(con, JUDGED)
        for metric in ("faithfulness", "context_precision", "semantic_similarity"):
            add_score(con, metric)
        rows = read(con, "from score_lineage order by metric, statement_id, context_rank")
    supports = [(row["statement_id"], row["supported"], row["context_ranks"]) for row in rows if row["statement_id"]]
    assert supports == [("A1", True, [1]), ("A2", False, [])]
    assert [(row["context_rank"], row["useful"]) for row in rows if row["step"] == "rank"] == [(1, True), (2, False)]
    assert [row["similarity"] for row in rows if row["step"] == "similarity"] == [0.5]


def add_calls(con: duckdb.DuckDBPyConnection) -> None:
    """A call of an earlier run, one of this run that reused it, and one of this run that was sent."""
    earlier = {"call_id": "old", "run_id": "earlier", "prompt_hash": "p1", "reply": "raw old", "request": '{"n": 1}'}
    reused = {"call_id": "again", "run_id": "r", "status": "cached", "reused_call_id": "old", "prompt_hash": "p1"}
    sent = {"call_id": "new", "run_id": "r", "prompt_hash": "p2", "reply": "raw new", "model": "m-2025"}
    fill(con, "llm_calls", *({"step": "classify", **call} for call in (earlier, reused, sent)))
    prompts = [("p1", "classify", "3"), ("p2", "extract", "1")]
    fill(con, "prompts", *({"prompt_hash": key, "prompt": name, "version": version, "language": "en", "template": "…"}
                           for key, name, version in prompts))  # fmt: skip


def test_reused_reply_is_followed_to_the_call_that_got_it() -> None:
    with open_rows() as con:
        add_samples(con, JUDGED)
        add_calls(con)
        con.execute("update classifications set call_id = case statement_id when 'A1' then 'again' else 'new' end")
        con.execute("update classifications set call_id = null where statement_id = 'G1'")
        con.execute("update statements set call_id = 'again'")
        add_score(con, "factual_f1")
        reused, sent, by_rule = read(con, "from score_lineage order by statement_id")
    assert (reused["call_id"], reused["call_status"], reused["original_call_id"]) == ("again", "cached", "old")
    assert (reused["original_run_id"], reused["reply"], reused["request"]) == ("earlier", "raw old", '{"n": 1}')
    assert (reused["prompt"], reused["prompt_hash"], reused["prompt_version"]) == ("classify", "p1", "3")
    assert (sent["call_id"], sent["call_status"], sent["original_call_id"]) == ("new", "ok", "new")
    assert (sent["reply"], sent["model"], sent["prompt"]) == ("raw new", "m-2025", "extract")
    assert [by_rule[name] for name in ("call_id", "original_call_id", "reply", "prompt_version")] == [None] * 4
    assert by_rule["label"] == "TP"
    assert {row["statement_call_id"] for row in (reused, sent, by_rule)} == {"again"}


def test_missing_score_keeps_a_row_with_what_happened() -> None:
    with open_rows() as con:
        add_samples(con, Sample(reasons={"classify": "judge_failed"}, similarity=0.5))
        con.execute("update outcomes set detail = 'three unreadable replies' where step = 'classify'")
        add_score(con, "answer_correctness", None, "judge_failed")
        failed, compared = read(con, "from score_lineage order by step")
    assert (failed["step"], failed["step_reason"]) == ("classify", "judge_failed")
    assert (failed["step_detail"], failed["label"]) == ("three unreadable replies", None)
    assert (compared["step"], compared["step_reason"], compared["similarity"]) == ("similarity", None, 0.5)


def test_score_of_a_metric_without_a_file_is_still_found_and_splits_are_verdicts() -> None:
    with open_rows() as con:
        add_samples(con, JUDGED)
        con.execute("update statements set call_id = 'split'")
        add_score(con, "users_own")
        (row,) = read(con, "from score_lineage")
        splits = read(con, "select step, statement_id, call_id from verdicts where step like 'extract%' order by all")
    assert (row["metric"], row["value"], row["step"], row["question"]) == ("users_own", 0.5, None, "Where is it?")
    assert [tuple(split.values()) for split in splits] == [
        ("extract_answer", "A1", "split"), ("extract_answer", "A2", "split"), ("extract_ground_truth", "G1", "split"),
    ]  # fmt: skip


def test_rating_is_shown_as_its_place_on_the_scale_too() -> None:
    """Scales compare: rating / maximum is 0.33 on three points and 0.1 on ten for what is wrong."""
    cases = [
        (1, 1, 3, 0),
        (2, 1, 3, 0.5),
        (3, 1, 3, 1),
        (1, 1, 10, 0),
        (10, 1, 10, 1),
        (3.7, 1, 5, 0.675),
        (5, 0, 10, 0.5),
    ]
    with open_rows() as con:
        for n, (rating, low, high, _) in enumerate(cases):
            sample = {"run_id": "r", "sample_id": f"s{n}"}
            graded = {"rubric": "accuracy", "criterion": "accuracy", "rating": rating, "scale_min": low}
            fill(con, "samples", {"sample_id": f"s{n}", "input_hash": f"h{n}"})
            fill(con, "run_samples", sample | {"input_hash": f"h{n}"})
            fill(con, "scores", sample | {"metric": "accuracy", "value": rating / high, "metric_version": "1"})
            fill(con, "grades", sample | graded | {"scale_max": high})
        for view in ("verdicts", "score_lineage"):
            shares = [row["share"] for row in read(con, f"from {view} order by sample_id")]
            assert shares == [pytest.approx(share) for *_, share in cases], view
