"""sample_causes and run_causes: each rule by literal verdicts, their order, and the shares with their intervals."""

from dataclasses import replace
from functools import cache
from math import sqrt
from typing import Any, get_args

import pytest
from cause_rows import FACT, add_stated, add_stated_runs
from rows import Sample, Together, fill, open_rows, read

from evalhouse.flows.results.run_facts import LANGUAGES, Cause, load_advice

GOOD = Sample(
    answer=["TP", "TP"],
    ground_truth=["TP", "TP"],
    answer_support=[[1], [2]],
    ground_truth_support=[[1], [2]],
    useful=[True, True],
)
LEFT_OUT = replace(GOOD, answer=["TP"], answer_support=[[1]], ground_truth=["TP", "FN"])
ABSENT = replace(LEFT_OUT, ground_truth_support=[[1], []])


def diagnose(*samples: Sample, **columns: object) -> list[dict[str, Any]]:
    """The causes of a run of these samples, in their order; `columns` are set in `samples`."""
    with open_rows() as con:
        add_stated(con, *samples)
        for name, value in columns.items():
            con.execute(f"update samples set {name} = $value", {"value": value})
        return read(con, "from sample_causes order by sample_id")


def diagnose_one(sample: Sample, **columns: object) -> dict[str, Any]:
    (row,) = diagnose(sample, **columns)
    return row


def diagnose_each(*samples: Sample) -> list[dict[str, Any]]:
    """The cause of each of these samples, each in a run of its own: to read the causes takes as long for one."""
    with open_rows() as con:
        add_stated_runs(con, {f"r{n}": [sample] for n, sample in enumerate(samples)})
        found = {row["run_id"]: row for row in read(con, "from sample_causes")}
    return [found[f"r{n}"] for n in range(len(samples))]


RULES = {
    "verdicts_missing": replace(GOOD, reasons={"classify": "judge_failed"}),
    "labels_contradict": replace(GOOD, answer=["FP", "FP"]),
    "support_contradicts": replace(GOOD, ground_truth_support=[[], []]),
    "usefulness_contradicts": replace(GOOD, useful=[False, False]),
    "truth_not_to_be_had": Sample(),
    "truth_silent": Sample(answer=["FP", "FP"], answer_support=[[1], []], useful=[True]),
    "answered_anyway": Sample(answer=["FP", "FP", "FP"], answer_support=[[1], [], []], useful=[True]),
    "truth_unborne": Sample(
        answer=["FP", "FP"],
        ground_truth=["FN"],
        answer_support=[[2], []],
        ground_truth_support=[[]],
        useful=[False, True],
    ),
    "refused": Sample(ground_truth=["FN", "FN"], ground_truth_support=[[1], []], useful=[True]),
    "reference_not_retrieved": replace(ABSENT, context_ids=["a", "b"], reference_ids=["a", "z"]),
    "references_lack_it": replace(ABSENT, context_ids=["a", "b"], reference_ids=["b", "b"]),
    "nowhere": ABSENT,
    "ranked_low": replace(LEFT_OUT, ground_truth_support=[[1], [4, 5]], useful=[True, False, False, True, False]),
    "invented": replace(GOOD, answer=["TP", "FP"], answer_support=[[1], []]),
    "distracted": replace(GOOD, answer=["TP", "FP"], answer_support=[[1], [3]], useful=[True, True, False]),
    "turn_repeated": replace(GOOD, answer=["TP", "FP"], answer_support=[[1], []], said={"A2": [2, 4]}),
    "passed_over": LEFT_OUT,
    "turn_passed_over": replace(ABSENT, said={"G2": [1]}),
    "truth_incomplete": replace(GOOD, answer=["TP", "FP"]),
    "unsupported_but_true": replace(GOOD, answer_support=[[1], []]),
    "within_tolerance": GOOD,
}
FINDINGS = ("truth_outdated", "retrieved_before")
EVIDENCE = {
    "verdicts_missing": "judge_failed: classify",
    "labels_contradict": "4 of 4: A1, A2, G1, G2",
    "support_contradicts": "4 of 4: A1, A2, G1, G2",
    "usefulness_contradicts": "2 of 2: G1, G2",
    "truth_not_to_be_had": None,
    "truth_silent": "1 of 2: A1",
    "answered_anyway": "3 of 3: A1, A2, A3",
    "truth_unborne": "1 of 2: A1",
    "refused": "1 of 2: G1",
    "reference_not_retrieved": "1 of 2: G2",
    "references_lack_it": "1 of 2: G2",
    "nowhere": "1 of 2: G2",
    "ranked_low": "1 of 2: G2",
    "invented": "1 of 2: A2",
    "distracted": "1 of 2: A2",
    "turn_repeated": "1 of 2: A2; said in T2, T4",
    "passed_over": "1 of 2: G2",
    "turn_passed_over": "1 of 2: G2; said in T1",
    "truth_incomplete": "1 of 2: A2",
    "unsupported_but_true": "1 of 2: A2",
    "within_tolerance": None,
}


@cache
def diagnose_rules() -> dict[str, dict[str, Any]]:
    return dict(zip(RULES, diagnose_each(*RULES.values()), strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_decides_and_says_what_it_saw(rule: str) -> None:
    row = diagnose_rules()[rule]
    assert (row["rule"], row["evidence"]) == (rule, EVIDENCE[rule])


def test_every_rule_has_a_test_and_every_cause_its_words_in_both_languages() -> None:
    with open_rows() as con:
        rules = read(con, "from cause_rules order by precedence")
    assert {row["rule"] for row in rules} == {*RULES, "votes_split", "retrieved_elsewhere", *FINDINGS}
    assert [row["precedence"] for row in rules] == list(range(1, len(rules) + 1))
    assert list(dict.fromkeys(row["cause"] for row in rules)) == list(get_args(Cause))
    for advice in map(load_advice, LANGUAGES):
        assert tuple(advice) == get_args(Cause)
        assert all(one.remedies for cause, one in advice.items() if cause not in ("fine", "refused_rightly"))
        assert len({one.name for one in advice.values()}) == len(advice)
    counts = [[len(one.remedies) for one in advice.values()] for advice in map(load_advice, LANGUAGES)]
    assert counts[0] == counts[1]


def test_a_statement_that_another_sample_found_was_missed() -> None:
    other = replace(GOOD, sample_id="other")
    with open_rows() as con:
        add_stated(con, ABSENT, other)
        add_stated(con, replace(ABSENT, sample_id="alone"), run_id="another run")
        con.execute("update statements set text = $text where statement_id = 'G2'", {"text": FACT})
        con.execute("update statements set text = upper(text) where sample_id = 'other'")
        rows = {row["sample_id"]: row for row in read(con, "from sample_causes")}
    assert (rows["s"]["cause"], rows["s"]["rule"]) == ("retrieval_missed", "retrieved_elsewhere")
    assert rows["s"]["evidence"] == "1 of 2: G2; found for other"
    assert rows["other"]["cause"] == "fine"
    assert rows["alone"]["rule"] == "nowhere", "what another run found is no evidence in this one"


def test_a_short_statement_is_not_looked_for_elsewhere() -> None:
    alone = replace(
        ABSENT, ground_truth=["FN", "FN"], ground_truth_support=[[], []], answer=["FP"], answer_support=[[]]
    )
    with open_rows() as con:
        add_stated(con, alone, replace(GOOD, sample_id="other"))
        con.execute("update statements set text = 'It is closed.'")
        rows = read(con, "from sample_causes order by sample_id")
    assert [row["rule"] for row in rows] == ["within_tolerance", "nowhere"]


@pytest.mark.parametrize(
    ("text", "rule"), [("No.", "passed_over"), ("不可以。", "passed_over"), ("不可以自行更换电池。", "nowhere")]
)
def test_a_short_statement_follows_from_what_the_contexts_hold(text: str, rule: str) -> None:
    with open_rows() as con:
        add_stated(con, ABSENT)
        con.execute("update statements set text = $text where statement_id = 'G2'", {"text": text})
        assert [row["rule"] for row in read(con, "from sample_causes")] == [rule]


def test_what_turns_hold_is_no_evidence_of_the_retriever() -> None:
    """Contexts that are of no use beside a turn that has it all contradict nothing; a context that needs a turn was
    retrieved; one that stands low is not to blame where a turn says the same."""
    low = replace(RULES["ranked_low"], said={"G2": [3]})
    by_turns = replace(GOOD, answer_support=[[], []], ground_truth_support=[[], []], useful=[False, False])
    samples = {
        "fine": replace(by_turns, said={"A1": [2], "A2": [2], "G1": [2], "G2": [2]}),
        "judge_suspect": replace(RULES["usefulness_contradicts"], said={"G1": [2], "G2": [2]}),
        "contexts_ignored": replace(LEFT_OUT, ground_truth_support=[[1], Together([2])], said={"G2": [1]}),
        "turns_ignored": low,
        "answered_unanswerable": Sample(answer=["FP", "FP"], answer_support=[[], []], said={"A1": [1], "A2": [1]}),
        "refused_wrongly": Sample(ground_truth=["FN"], ground_truth_support=[[]], said={"G1": [2]}),
    }
    assert [row["cause"] for row in diagnose_each(*samples.values())] == list(samples)


def test_a_statement_that_was_said_in_another_conversation_was_not_retrieved_there() -> None:
    other = replace(GOOD, sample_id="other", ground_truth_support=[[1], []], said={"G2": [2]})
    with open_rows() as con:
        add_stated(con, ABSENT, other)
        con.execute("update statements set text = $text where statement_id = 'G2'", {"text": FACT})
        rows = {row["sample_id"]: row for row in read(con, "from sample_causes")}
    assert (rows["s"]["rule"], rows["other"]["cause"]) == ("nowhere", "fine")


def test_a_short_statement_follows_from_what_the_turns_hold() -> None:
    with open_rows() as con:
        add_stated(con, replace(ABSENT, ground_truth_support=[[], []], said={"G1": [1]}))
        con.execute("update statements set text = 'No.' where statement_id = 'G2'")
        (row,) = read(con, "from sample_causes")
    assert (row["rule"], row["evidence"]) == ("turn_passed_over", "1 of 2: G2")


def test_a_statement_of_its_own_sample_is_no_other_sample() -> None:
    with open_rows() as con:
        add_stated(con, ABSENT)
        con.execute("update statements set text = $text", {"text": FACT})
        assert [row["rule"] for row in read(con, "from sample_causes")] == ["nowhere"]
        add_stated(con, replace(GOOD, sample_id="t"))
        con.execute("update statements set text = $text", {"text": FACT})
        rows = read(con, "from sample_causes order by sample_id")
    assert [row["evidence"] for row in rows] == ["1 of 2: G2; found for t", None]


def test_split_votes_make_the_judge_suspect() -> None:
    def vote(item: str, number: int, agrees: bool) -> dict[str, object]:
        key = {"run_id": "r", "sample_id": "s", "step": "classify", "item_id": item}
        return {**key, "vote": number, "verdict": "TP", "agrees": agrees}

    with open_rows() as con:
        add_stated(con, GOOD, replace(GOOD, sample_id="t"))
        fill(con, "votes", *(vote(item, n, n > 1 or item > "A1") for item in ("A1", "A2") for n in (1, 2, 3)))
        row, unvoted = read(con, "from sample_causes order by sample_id")
        assert (row["cause"], row["evidence"]) == ("judge_suspect", "1 of 2 verdicts")
        assert unvoted["cause"] == "fine"
        fill(con, "votes", *(vote("A3", n, True) for n in (1, 2, 3)))
        assert [row["cause"] for row in read(con, "from sample_causes")] == ["fine", "fine"]


@pytest.mark.parametrize(
    ("step", "reason", "steps"),
    [
        ("classify", "no_ground_truth", "classify"),
        ("attribute_answer", "no_contexts", "attribute_answer"),
        ("attribute_ground_truth", "budget_exhausted", "attribute_ground_truth"),
    ],
)
def test_a_missing_verdict_is_told_with_its_reason(step: str, reason: str, steps: str) -> None:
    row = diagnose_one(replace(LEFT_OUT, reasons={step: reason}))
    assert (row["cause"], row["reason"], row["evidence"]) == ("not_judged", reason, f"{reason}: {steps}")
    assert row["other_rules"] == []


def test_of_several_reasons_the_usual_one_is_told_and_a_step_never_asked_for_is_missing() -> None:
    several, row, whole = diagnose_each(
        replace(GOOD, reasons={"classify": "no_answer", "attribute_answer": "judge_failed"}),
        replace(GOOD, missing=["classify"]),
        replace(GOOD, missing=["rank", "similarity"], useful=[]),
    )
    assert several["reason"] == "no_answer"
    assert (row["cause"], row["reason"]) == ("not_judged", "cancelled")
    assert whole["cause"] == "fine"


def test_texts_without_statements_are_judged() -> None:
    silent = dict.fromkeys(("classify", "attribute_answer", "attribute_ground_truth"), "no_statements")
    made_up = Sample(answer=["FP", "FP"], answer_support=[[], []], reasons={"attribute_ground_truth": "no_statements"})
    evasive = replace(made_up, answer_support=[[1], []], grades={("relevancy", "noncommittal"): 1.0})
    refused, row, evaded = diagnose_each(Sample(reasons=silent), made_up, evasive)
    assert (refused["cause"], refused["evidence"]) == ("refused_rightly", None), "nothing to say, and nothing said"
    assert (row["cause"], row["evidence"]) == ("answered_unanswerable", "2 of 2: A1, A2")
    assert row["other_rules"] == ["invented"]
    assert (evaded["cause"], evaded["other_rules"]) == (
        "refused_rightly",
        ["truth_silent", "answered_anyway", "invented", "distracted"],
    )


def test_a_retrieval_that_found_nothing_is_a_finding_and_no_contexts_at_all_are_none() -> None:
    sample = Sample(
        ground_truth=["FN"], reasons=dict.fromkeys(("attribute_answer", "attribute_ground_truth"), "no_contexts")
    )
    assert diagnose_one(sample)["cause"] == "not_judged"
    assert diagnose_one(sample, contexts=[])["cause"] == "not_in_contexts"
    row = diagnose_one(replace(sample, context_ids=[], reference_ids=["a"]), contexts=[])
    assert row["cause"] == "retrieval_missed"


def test_a_non_committal_answer_is_a_refusal_unless_it_says_something_true() -> None:
    hedged = replace(
        GOOD,
        answer=["FP"],
        answer_support=[[]],
        ground_truth=["FN", "FN"],
        grades={("relevancy", "noncommittal"): 1.0},
    )
    committed = replace(hedged, grades={("relevancy", "noncommittal"): 0.0})
    partly = replace(hedged, answer=["TP"], answer_support=[[1]], ground_truth=["TP", "FN"])
    causes = [row["cause"] for row in diagnose_each(hedged, committed, partly)]
    assert causes == ["refused_wrongly", "hallucinated", "contexts_ignored"]


def test_a_refusal_without_support_is_the_fault_of_retrieval() -> None:
    assert diagnose_one(replace(RULES["refused"], ground_truth_support=[[], []]))["cause"] == "not_in_contexts"


def test_what_stands_low_behind_contexts_that_help_was_not_ranked_too_low() -> None:
    support = [[1], [2], [3], [4]]
    low = Sample(
        answer=["TP"] * 3,
        answer_support=support[:3],
        ground_truth=["TP", "TP", "TP", "FN"],
        ground_truth_support=support,
        useful=[True] * 4,
    )
    # What stands in two contexts together takes reading down to the lower one.
    last = {(4,): "ranked_low", (3,): "passed_over", Together((1, 4)): "ranked_low", Together((1, 3)): "passed_over"}
    rows = diagnose_each(low, *(replace(low, ground_truth_support=[[1], [1], [1], ranks]) for ranks in last))
    assert [row["rule"] for row in rows] == ["passed_over", *last.values()]


def test_of_what_is_left_out_the_largest_part_decides_and_then_the_earlier_stage() -> None:
    sample = Sample(
        answer=["TP"],
        answer_support=[[1]],
        ground_truth=["TP", "FN", "FN", "FN", "FN"],
        ground_truth_support=[[1], [], [1], [1], []],
        useful=[True],
    )
    tied, more = diagnose_each(sample, replace(sample, ground_truth_support=[[1], [], [1], [1], [1]]))
    assert (tied["rule"], tied["statement_ids"], tied["other_rules"]) == ("nowhere", ["G2", "G5"], ["passed_over"])
    assert (more["rule"], more["statement_ids"]) == ("passed_over", ["G3", "G4", "G5"])


def test_what_retrieval_failed_to_bring_comes_before_what_was_made_up_in_its_place() -> None:
    rows = diagnose_each(*(replace(left, answer=["TP", "FP"], answer_support=[[1], []]) for left in (ABSENT, LEFT_OUT)))
    rules = [(row["rule"], row["other_rules"]) for row in rows]
    assert rules == [("nowhere", ["invented"]), ("invented", ["passed_over"])]


def test_verdicts_that_contradict_each_other_come_before_what_they_say() -> None:
    row = diagnose_one(replace(GOOD, answer=["FP", "FP"], answer_support=[[], []]))
    assert (row["cause"], row["other_rules"]) == ("judge_suspect", ["invented"])


def test_one_fault_in_five_is_let_pass_and_one_in_four_is_not() -> None:
    faults = (("FP", [], "hallucinated"), ("FP", [3], "misled_by_contexts"), ("TP", [], "own_knowledge"))
    for n, is_fine in ((5, True), (4, False)):
        rows = diagnose_each(*(
            replace(GOOD, answer=[label] + ["TP"] * (n - 1), answer_support=[ranks] + [[1]] * (n - 1))
            for label, ranks, _ in faults
        ))  # fmt: skip
        assert [row["cause"] for row in rows] == ["fine" if is_fine else cause for *_, cause in faults]


def test_a_ground_truth_is_called_incomplete_only_where_the_answer_says_all_of_it() -> None:
    row = diagnose_one(replace(LEFT_OUT, answer=["TP", "FP", "FP"], answer_support=[[1], [1], [2]]))
    assert (row["rule"], row["other_rules"]) == ("passed_over", [])


def test_another_threshold_gives_another_cause() -> None:
    with open_rows() as con:
        add_stated(con, LEFT_OUT)
        sql = con.sql("select sql from duckdb_views() where view_name = 'cause_thresholds'").fetchone()
        assert sql is not None
        con.execute(
            sql[0].replace("CREATE VIEW", "CREATE OR REPLACE VIEW").replace("'minor_share', 0.2", "'minor_share', 0.5")
        )
        assert [row["cause"] for row in read(con, "from sample_causes")] == ["fine"]


def test_right_contexts_are_those_of_the_reference_ids_when_all_were_retrieved() -> None:
    unborne = RULES["truth_unborne"]
    rows = diagnose_each(*(replace(unborne, context_ids=["a", "b"], reference_ids=[right]) for right in ("b", "a")))
    assert [row["rule"] for row in rows] == ["truth_unborne", "references_lack_it"]


@pytest.fixture(scope="module")
def counted() -> list[dict[str, Any]]:
    """run_causes of a run of ten: six fine, one each of three failures, one not judged; and of a run of none judged."""
    failures = [RULES[rule] for rule in ("invented", "passed_over", "nowhere", "verdicts_missing")]
    with open_rows() as con:
        samples = [*[GOOD] * 6, *failures]
        add_stated(con, *(replace(sample, sample_id=f"s{n}") for n, sample in enumerate(samples)))
        add_stated(con, RULES["verdicts_missing"], run_id="unjudged")
        return read(con, "from run_causes order by run_id, precedence")


def test_shares_of_a_run_add_up_and_have_wilsons_interval(counted: list[dict[str, Any]]) -> None:
    rows = {row["cause"]: row for row in counted if row["run_id"] == "r"}
    assert set(rows) == set(get_args(Cause))
    assert (rows["not_judged"]["n_samples"], rows["not_judged"]["n_of"]) == (1, 10)
    judged = [row for cause, row in rows.items() if cause != "not_judged"]
    assert {row["n_of"] for row in judged} == {9}
    assert sum(row["share"] for row in judged) == pytest.approx(1)
    for row in rows.values():
        low, high = find_wilson_ends(row["n_samples"], row["n_of"])
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((low, high), abs=1e-9)
        assert row["ci_low"] <= row["share"] <= row["ci_high"]


def find_wilson_ends(hits: int, n: int) -> tuple[float, float]:
    """Where the normal test of the share p just gives 1.96: n(p̂-p)² = 1.96² p(1-p), solved as a quadratic."""
    z2, share = 1.96**2, hits / n
    a, b, c = n + z2, -(2 * n * share + z2), n * share**2
    root = sqrt(max(b * b - 4 * a * c, 0))
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def test_a_run_without_verdicts_has_no_shares(counted: list[dict[str, Any]]) -> None:
    rows = {row["cause"]: row for row in counted if row["run_id"] == "unjudged"}
    assert (rows["not_judged"]["share"], rows["not_judged"]["ci_high"]) == (1, 1)
    assert (rows["fine"]["n_of"], rows["fine"]["share"], rows["fine"]["ci_low"], rows["fine"]["ci_high"]) == (
        0,
        None,
        None,
        None,
    )


def test_an_empty_warehouse_has_no_causes() -> None:
    with open_rows() as con:
        assert read(con, "from sample_causes") == read(con, "from run_causes") == []
