"""The views sample_causes and run_causes: rules by literal verdicts, their order, and shares with their intervals."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from rows import FACT, Sample, Together, add_stated, add_stated_runs, fill, open_rows, read
from scipy.stats import binomtest

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


def diagnose_each(*samples: Sample) -> list[dict[str, Any]]:
    """Return the cause of each of these samples, each in a separate run; it takes as long as for one."""
    with open_rows() as con:
        add_stated_runs(con, {f"r{n}": [sample] for n, sample in enumerate(samples)})
        found = {row["run_id"]: row for row in read(con, "from sample_causes")}
    return [found[f"r{n}"] for n in range(len(samples))]


# Each rule, with a sample that it decides and its evidence.
RULED: dict[str, tuple[Sample, str | None]] = {
    "verdicts_missing": (replace(GOOD, reasons={"classify": "judge_failed"}), "judge_failed: classify"),
    "labels_contradict": (replace(GOOD, answer=["FP", "FP"]), "4 of 4: A1, A2, G1, G2"),
    "support_contradicts": (replace(GOOD, ground_truth_support=[[], []]), "4 of 4: A1, A2, G1, G2"),
    "usefulness_contradicts": (replace(GOOD, useful=[False, False]), "2 of 2: G1, G2"),
    "truth_not_to_be_had": (Sample(), None),
    "truth_silent": (Sample(answer=["FP", "FP"], answer_support=[[1], []], useful=[True]), "1 of 2: A1"),
    "answered_anyway": (
        Sample(answer=["FP", "FP", "FP"], answer_support=[[1], [], []], useful=[True]),
        "3 of 3: A1, A2, A3",
    ),
    "truth_unborne": (
        Sample(
            answer=["FP", "FP"],
            ground_truth=["FN"],
            answer_support=[[2], []],
            ground_truth_support=[[]],
            useful=[False, True],
        ),
        "1 of 2: A1",
    ),
    "refused": (Sample(ground_truth=["FN", "FN"], ground_truth_support=[[1], []], useful=[True]), "1 of 2: G1"),
    "reference_not_retrieved": (replace(ABSENT, context_ids=["a", "b"], reference_ids=["a", "z"]), "1 of 2: G2"),
    "references_lack_it": (replace(ABSENT, context_ids=["a", "b"], reference_ids=["b", "b"]), "1 of 2: G2"),
    "nowhere": (ABSENT, "1 of 2: G2"),
    "ranked_low": (
        replace(LEFT_OUT, ground_truth_support=[[1], [4, 5]], useful=[True, False, False, True, False]),
        "1 of 2: G2",
    ),
    "invented": (replace(GOOD, answer=["TP", "FP"], answer_support=[[1], []]), "1 of 2: A2"),
    "distracted": (
        replace(GOOD, answer=["TP", "FP"], answer_support=[[1], [3]], useful=[True, True, False]),
        "1 of 2: A2",
    ),
    "turn_repeated": (
        replace(GOOD, answer=["TP", "FP"], answer_support=[[1], []], turn_support={"A2": [2, 4]}),
        "1 of 2: A2; said in T2, T4",
    ),
    "passed_over": (LEFT_OUT, "1 of 2: G2"),
    "turn_passed_over": (replace(ABSENT, turn_support={"G2": [1]}), "1 of 2: G2; said in T1"),
    "truth_incomplete": (replace(GOOD, answer=["TP", "FP"]), "1 of 2: A2"),
    "unsupported_but_true": (replace(GOOD, answer_support=[[1], []]), "1 of 2: A2"),
    "within_tolerance": (GOOD, None),
}
RULES = {rule: sample for rule, (sample, _) in RULED.items()}
FINDINGS = ("truth_outdated", "retrieved_before")
SILENT = dict.fromkeys(("classify", "attribute_answer", "attribute_ground_truth"), "no_statements")
MADE_UP = Sample(answer=["FP", "FP"], answer_support=[[], []], reasons={"attribute_ground_truth": "no_statements"})
NOTHING_FOUND = Sample(
    ground_truth=["FN"], reasons=dict.fromkeys(("attribute_answer", "attribute_ground_truth"), "no_contexts")
)
HEDGED = replace(
    GOOD, answer=["FP"], answer_support=[[]], ground_truth=["FN", "FN"], grades={("relevancy", "noncommittal"): 1.0}
)
BY_TURNS = replace(GOOD, answer_support=[[], []], ground_truth_support=[[], []], useful=[False, False])
LOW = Sample(
    answer=["TP"] * 3,
    answer_support=[[1], [2], [3]],
    ground_truth=["TP", "TP", "TP", "FN"],
    ground_truth_support=[[1], [2], [3], [4]],
    useful=[True] * 4,
)
TIED = Sample(
    answer=["TP"],
    answer_support=[[1]],
    ground_truth=["TP", "FN", "FN", "FN", "FN"],
    ground_truth_support=[[1], [], [1], [1], []],
    useful=[True],
)
ADDED = {"answer": ["TP", "FP"], "answer_support": [[1], []]}
FAULTS = (("FP", [], "hallucinated"), ("FP", [3], "misled_by_contexts"), ("TP", [], "own_knowledge"))
CASES: dict[str, tuple[Sample, dict[str, object]]] = {
    **{f"the rule {name}": (sample, {"rule": name, "evidence": found}) for name, (sample, found) in RULED.items()},
    **{
        f"{step} gave {reason}": (
            replace(LEFT_OUT, reasons={step: reason}),
            {"cause": "not_judged", "reason": reason, "evidence": f"{reason}: {step}", "other_rules": []},
        )
        for step, reason in [
            ("classify", "no_ground_truth"),
            ("attribute_answer", "no_contexts"),
            ("attribute_ground_truth", "budget_exhausted"),
        ]
    },
    "the first of several reasons": (
        replace(GOOD, reasons={"classify": "no_answer", "attribute_answer": "judge_failed"}), {"reason": "no_answer"},
    ),
    "a step was never asked for": (
        replace(GOOD, missing=["classify"]), {"cause": "not_judged", "reason": "cancelled"},
    ),
    "steps that do not matter were not asked for": (
        replace(GOOD, missing=["rank", "similarity"], useful=[]), {"cause": "fine"},
    ),
    "neither text states anything": (Sample(reasons=SILENT), {"cause": "refused_rightly", "evidence": None}),
    "an answer where nothing is true": (
        MADE_UP, {"cause": "answered_unanswerable", "evidence": "2 of 2: A1, A2", "other_rules": ["invented"]},
    ),
    "an evasive answer where nothing is true": (
        replace(MADE_UP, answer_support=[[1], []], grades={("relevancy", "noncommittal"): 1.0}),
        {"cause": "refused_rightly", "other_rules": ["truth_silent", "answered_anyway", "invented", "distracted"]},
    ),
    "no contexts at all": (NOTHING_FOUND, {"cause": "not_judged"}),
    "the retrieval found nothing": (replace(NOTHING_FOUND, contexts=[]), {"cause": "not_in_contexts"}),
    "the retrieval found no reference": (
        replace(NOTHING_FOUND, contexts=[], context_ids=[], reference_ids=["a"]), {"cause": "retrieval_missed"},
    ),
    "a non-committal answer": (HEDGED, {"cause": "refused_wrongly"}),
    "a committed one": (replace(HEDGED, grades={("relevancy", "noncommittal"): 0.0}), {"cause": "hallucinated"}),
    "a non-committal answer with something true": (
        replace(HEDGED, answer=["TP"], answer_support=[[1]], ground_truth=["TP", "FN"]), {"cause": "contexts_ignored"},
    ),
    "a refusal without support": (
        replace(RULES["refused"], ground_truth_support=[[], []]), {"cause": "not_in_contexts"},
    ),
    # The rank of contexts: what needs two contexts together needs the lower one.
    "low behind contexts that help": (LOW, {"rule": "passed_over"}),
    **{
        f"low, support in {ranks}": (replace(LOW, ground_truth_support=[[1], [1], [1], ranks]), {"rule": rule})
        for ranks, rule in [
            ((4,), "ranked_low"),
            ((3,), "passed_over"),
            (Together((1, 4)), "ranked_low"),
            (Together((1, 3)), "passed_over"),
        ]
    },
    # What is left out: the largest part decides, and then the earlier stage.
    "as much not found as passed over": (
        TIED, {"rule": "nowhere", "statement_ids": ["G2", "G5"], "other_rules": ["passed_over"]},
    ),
    "more passed over than not found": (
        replace(TIED, ground_truth_support=[[1], [], [1], [1], [1]]),
        {"rule": "passed_over", "statement_ids": ["G3", "G4", "G5"]},
    ),
    "not retrieved, and made up": (replace(ABSENT, **ADDED), {"rule": "nowhere", "other_rules": ["invented"]}),
    "passed over, and made up": (replace(LEFT_OUT, **ADDED), {"rule": "invented", "other_rules": ["passed_over"]}),
    "contradicting verdicts come first": (
        replace(GOOD, answer=["FP", "FP"], answer_support=[[], []]),
        {"cause": "judge_suspect", "other_rules": ["invented"]},
    ),
    # One fault in five is tolerated, one in four is not.
    **{
        f"one of {n}: {cause}": (
            replace(GOOD, answer=[label] + ["TP"] * (n - 1), answer_support=[ranks] + [[1]] * (n - 1)),
            {"cause": "fine" if n == 5 else cause},
        )
        for n in (4, 5)
        for label, ranks, cause in FAULTS
    },
    "an answer without all of the truth leaves it complete": (
        replace(LEFT_OUT, answer=["TP", "FP", "FP"], answer_support=[[1], [1], [2]]),
        {"rule": "passed_over", "other_rules": []},
    ),
    **{
        f"the right context is {right}": (
            replace(RULES["truth_unborne"], context_ids=["a", "b"], reference_ids=[right]), {"rule": rule},
        )
        for right, rule in [("b", "truth_unborne"), ("a", "references_lack_it")]
    },
    # Turns show nothing about the retriever.
    "turns have it all, contexts nothing": (
        replace(BY_TURNS, turn_support={"A1": [2], "A2": [2], "G1": [2], "G2": [2]}), {"cause": "fine"},
    ),
    "useless contexts beside turns": (
        replace(RULES["usefulness_contradicts"], turn_support={"G1": [2], "G2": [2]}), {"cause": "judge_suspect"},
    ),
    "a context that needs a turn was retrieved": (
        replace(LEFT_OUT, ground_truth_support=[[1], Together([2])], turn_support={"G2": [1]}),
        {"cause": "contexts_ignored"},
    ),
    "a low context is not to blame where a turn has it": (
        replace(RULES["ranked_low"], turn_support={"G2": [3]}), {"cause": "turns_ignored"},
    ),
    "turns answer what the truth does not": (
        Sample(answer=["FP", "FP"], answer_support=[[], []], turn_support={"A1": [1], "A2": [1]}),
        {"cause": "answered_unanswerable"},
    ),
    "a refusal of what a turn answers": (
        Sample(ground_truth=["FN"], ground_truth_support=[[]], turn_support={"G1": [2]}), {"cause": "refused_wrongly"},
    ),
}  # fmt: skip


def test_causes() -> None:
    rows = diagnose_each(*(sample for sample, _ in CASES.values()))
    found = {name: {key: row[key] for key in CASES[name][1]} for name, row in zip(CASES, rows, strict=True)}
    assert found == {name: expected for name, (_, expected) in CASES.items()}


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
    assert rows["alone"]["rule"] == "nowhere", "another run shows nothing about this one"


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


@pytest.mark.parametrize(("ids", "rule"), [(["b"], "nowhere"), (["a#1"], "reference_not_retrieved")])
def test_ids_that_never_match_in_a_run_accuse_no_retrieval(ids: list[str], rule: str) -> None:
    other = replace(GOOD, sample_id="other", context_ids=ids, reference_ids=["z"])
    with open_rows() as con:
        add_stated(con, replace(ABSENT, context_ids=["b"], reference_ids=["a"]), other)
        rows = read(con, "select rule from sample_causes where sample_id = 's'")
    assert [row["rule"] for row in rows] == [rule]


def test_statement_of_the_same_sample_is_not_found_elsewhere() -> None:
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


def test_another_threshold_gives_another_cause() -> None:
    with open_rows() as con:
        add_stated(con, LEFT_OUT)
        sql = con.sql("select sql from duckdb_views() where view_name = 'cause_thresholds'").fetchone()
        assert sql is not None
        con.execute(
            sql[0].replace("CREATE VIEW", "CREATE OR REPLACE VIEW").replace("'minor_share', 0.2", "'minor_share', 0.5")
        )
        assert [row["cause"] for row in read(con, "from sample_causes")] == ["fine"]


def test_shares_of_a_run_add_up_and_have_wilsons_interval() -> None:
    """Six of ten samples are fine, three have one failure each, and one is not judged; another run has none judged."""
    failures = [RULES[rule] for rule in ("invented", "passed_over", "nowhere", "verdicts_missing")]
    with open_rows() as con:
        samples = [*[GOOD] * 6, *failures]
        add_stated(con, *(replace(sample, sample_id=f"s{n}") for n, sample in enumerate(samples)))
        add_stated(con, RULES["verdicts_missing"], run_id="unjudged")
        counted = {(row["run_id"], row["cause"]): row for row in read(con, "from run_causes")}
    rows: dict[Any, Any] = {cause: row for (run_id, cause), row in counted.items() if run_id == "r"}
    assert set(rows) == set(get_args(Cause))
    assert (rows["not_judged"]["n_samples"], rows["not_judged"]["n_of"]) == (1, 10)
    judged = [row for cause, row in rows.items() if cause != "not_judged"]
    assert {row["n_of"] for row in judged} == {9}
    assert sum(row["share"] for row in judged) == pytest.approx(1)
    for row in rows.values():
        theirs = binomtest(row["n_samples"], row["n_of"]).proportion_ci(method="wilson")
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((theirs.low, theirs.high), abs=1e-5)
        assert row["ci_low"] <= row["share"] <= row["ci_high"]
    assert counted["unjudged", "not_judged"]["share"] == 1
    fine = counted["unjudged", "fine"]
    assert (fine["n_of"], fine["share"], fine["ci_low"], fine["ci_high"]) == (0, None, None, None)


def test_shares_of_a_budget_are_those_of_the_whole_dataset() -> None:
    """Samples in doubt are picked more often, and each counts one over its probability."""
    with open_rows() as con:
        samples = [*[GOOD] * 4, *[RULES["invented"]] * 4]
        add_stated(con, *(replace(sample, sample_id=f"s{n}") for n, sample in enumerate(samples)))
        chances = [0.1] * 4 + [0.8] * 4
        for n, chance in enumerate(chances):
            fill(
                con,
                "sample_picks",
                {"run_id": "r", "sample_id": f"s{n}", "ordinal": n, "probability": chance, "picked": True},
            )
        rows = {row["cause"]: row for row in read(con, "from run_causes")}
    fine = rows["fine"]
    (wrong,) = (row for row in rows.values() if row["n_samples"] and row is not fine)
    assert (wrong["n_samples"], wrong["n_of"]) == (4, 8)
    share = 4 / 0.8 / (4 / 0.8 + 4 / 0.1)
    assert (wrong["share"], fine["share"]) == pytest.approx((share, 1 - share))
    variance = ((1 - share) ** 2 * 4 / 0.8**2 + share**2 * 4 / 0.1**2) / 45**2
    z2 = 1.96**2 * variance / (share * (1 - share))
    half = (z2 * (share * (1 - share) + z2 / 4)) ** 0.5
    assert (wrong["ci_low"], wrong["ci_high"]) == pytest.approx(
        ((share + z2 / 2 - half) / (1 + z2), (share + z2 / 2 + half) / (1 + z2))
    )
    assert rows["not_judged"]["share"] == 0
    z2 = 1.96**2 * (4 / 0.8**2 + 4 / 0.1**2) / 45**2
    assert rows["not_judged"]["ci_high"] == pytest.approx(z2 / (1 + z2)), "of as many samples as these are worth"
