"""The view sample_causes for random verdicts: one cause a sample, the same as a second computation in Python."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rows import FACT, Labels, Sample, Support, add_stated, open_rows, read

Verdicts = Sequence[tuple[bool, set[int], bool]]
"""Each statement: is it in the other text, which contexts support it, and does a turn?"""


def find_rule(s: Sample) -> str:
    """The rule for a sample whose statements are short and which has no reference ids and no votes."""
    steps = ("classify", "attribute_answer", "attribute_ground_truth")
    if any(step in s.missing or s.reasons.get(step) not in (None, "no_statements") for step in steps):
        return "verdicts_missing"
    stated = list_verdicts(s, "A", s.answer, s.answer_support)
    wanted = list_verdicts(s, "G", s.ground_truth, s.ground_truth_support)
    relevant = set().union(*(ranks for _, ranks, _ in wanted))
    useful = {rank for rank, is_useful in enumerate(s.useful, start=1) if is_useful}
    suspect = find_contradiction(stated, wanted, useful)
    if suspect:
        return suspect
    if not wanted:
        supported = is_most([bool(ranks) for _, ranks, _ in stated])
        return ("truth_silent" if supported else "answered_anyway") if stated else "truth_not_to_be_had"
    supported_parts = [bool(ranks) or in_turn for _, ranks, in_turn in wanted]
    if stated and not any(supported_parts) and not any(true for true, _, _ in wanted + stated):
        if is_most([bool(ranks & useful) for _, ranks, _ in stated]):
            return "truth_unborne"
    elif not stated and any(supported_parts) and is_most(supported_parts):
        return "refused"
    return find_fault(stated, wanted, relevant)


def list_verdicts(s: Sample, letter: str, labels: Labels, support: Support) -> list[tuple[bool, set[int], bool]]:
    pairs = enumerate(zip(labels, support, strict=True), start=1)
    return [(label == "TP", set(ranks), bool(s.turn_support.get(f"{letter}{n}"))) for n, (label, ranks) in pairs]


def find_contradiction(stated: Verdicts, wanted: Verdicts, useful: set[int]) -> str | None:
    if stated and wanted:
        answer_true, truth_found = {true for true, _, _ in stated}, {found for found, _, _ in wanted}
        if len(answer_true) == len(truth_found) == 1 and answer_true != truth_found:
            return "labels_contradict"
        if answer_true == truth_found == {True}:
            supported_parts = [{bool(ranks) or in_turn for _, ranks, in_turn in side} for side in (stated, wanted)]
            if len(supported_parts[0]) == len(supported_parts[1]) == 1 and supported_parts[0] != supported_parts[1]:
                return "support_contradicts"
    retrieved = [bool(ranks) for _, ranks, _ in wanted]
    if any(retrieved) and is_most(retrieved) and not any(ranks & useful for _, ranks, _ in wanted):
        return "usefulness_contradicts"
    return None


def find_fault(stated: Verdicts, wanted: Verdicts, relevant: set[int]) -> str:
    left_out = [(ranks, in_turn) for found, ranks, in_turn in wanted if not found]
    parts = dict.fromkeys(("nowhere", "ranked_low", "passed_over", "turn_passed_over"), 0)
    for ranks, in_turn in left_out:
        is_low = ranks and min(ranks) > 3 and set(range(1, min(ranks))) - relevant
        if ranks and not is_low:
            parts["passed_over"] += 1
        else:
            parts["turn_passed_over" if in_turn else "ranked_low" if ranks else "nowhere"] += 1
    incomplete = is_more_than_minor(len(left_out), len(wanted))
    most = [rule for rule, n in parts.items() if incomplete and n == max(parts.values())]
    if most and most[0] in ("nowhere", "ranked_low"):
        return most[0]
    return find_overstatement(stated, relevant, most)


def find_overstatement(stated: Verdicts, relevant: set[int], most_left_out: Sequence[str]) -> str:
    wrong = [(ranks, in_turn) for true, ranks, in_turn in stated if not true]
    beyond = [not true and bool(ranks & relevant) for true, ranks, _ in stated]
    n_unsupported = sum(true and not ranks and not in_turn for true, ranks, in_turn in stated)
    holds = {
        "invented": is_more_than_minor(sum(not ranks and not in_turn for ranks, in_turn in wrong), len(stated)),
        "distracted": is_more_than_minor(sum(bool(ranks) and not ranks & relevant for ranks, _ in wrong), len(stated)),
        "turn_repeated": is_more_than_minor(sum(not ranks and in_turn for ranks, in_turn in wrong), len(stated)),
        "passed_over": "passed_over" in most_left_out,
        "turn_passed_over": "turn_passed_over" in most_left_out,
        "truth_incomplete": any(beyond) and is_most(beyond),
        "unsupported_but_true": is_more_than_minor(n_unsupported, len(stated)),
        "within_tolerance": True,
    }
    return next(rule for rule, does in holds.items() if does)


def is_most(flags: Sequence[bool]) -> bool:
    return 2 * sum(flags) >= len(flags)


def is_more_than_minor(part: int, whole: int) -> bool:
    return Fraction(part) > Fraction(1, 5) * whole


N_CONTEXTS = 5
RANKS = st.lists(st.integers(1, N_CONTEXTS), unique=True, max_size=2).map(sorted)
TURNS = st.dictionaries(
    st.sampled_from([f"{letter}{n}" for letter in "AG" for n in range(1, 5)]), st.just([2]), max_size=8
)
STEP_REASONS = st.dictionaries(
    st.sampled_from(["classify", "attribute_answer", "attribute_ground_truth", "rank", "extract_answer"]),
    st.sampled_from(["no_answer", "judge_failed", "no_statements", "cancelled"]),
    max_size=1,
)


@st.composite
def draw_sample(draw: st.DrawFn) -> Sample:
    answer = draw(st.lists(st.tuples(st.sampled_from(["TP", "FP"]), RANKS), max_size=6))
    truth = draw(st.lists(st.tuples(st.sampled_from(["TP", "FN"]), RANKS), max_size=6))
    return Sample(
        answer=[label if truth else "FP" for label, _ in answer],
        ground_truth=[label if answer else "FN" for label, _ in truth],
        answer_support=[ranks for _, ranks in answer],
        ground_truth_support=[ranks for _, ranks in truth],
        useful=draw(st.lists(st.booleans(), min_size=N_CONTEXTS, max_size=N_CONTEXTS)),
        reasons=draw(st.one_of(st.just({}), st.just({}), STEP_REASONS)),
        missing=draw(st.sampled_from([(), (), (), ("classify",)])),
        turn_support=draw(st.one_of(st.just({}), TURNS)),
    )


@settings(deadline=None, max_examples=settings.default.max_examples // 4)
@given(drawn=st.lists(draw_sample(), min_size=1, max_size=12))
def test_every_sample_has_one_cause_and_it_is_that_of_a_second_computation(drawn: list[Sample]) -> None:
    samples = [replace(sample, sample_id=f"s{n:02}") for n, sample in enumerate(drawn)]
    with open_rows() as con:
        add_stated(con, *samples)
        rows: list[dict[str, Any]] = read(con, "from sample_causes order by sample_id")
    assert [row["sample_id"] for row in rows] == [sample.sample_id for sample in samples]
    assert [row["rule"] for row in rows] == [find_rule(sample) for sample in samples]
    for row in rows:
        assert (row["reason"] is None) == (row["cause"] != "not_judged")
        assert row["n_deciding"] <= row["n_judged"]
        assert row["n_deciding"] == len(row["statement_ids"])
        assert (row["n_deciding"] > 0) == (row["cause"] not in ("fine", "refused_rightly", "not_judged"))
        assert row["rule"] not in row["other_rules"]


IDS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=3)


@settings(deadline=None, max_examples=settings.default.max_examples // 6)
@given(drawn=st.lists(st.tuples(draw_sample(), IDS, IDS, st.booleans()), min_size=1, max_size=8))
def test_ids_and_like_statements_leave_every_sample_one_cause(
    drawn: list[tuple[Sample, list[str | None], list[str | None], bool]],
) -> None:
    samples = [
        replace(sample, sample_id=f"s{n}", context_ids=ids, reference_ids=wanted)
        for n, (sample, ids, wanted, _) in enumerate(drawn)
    ]
    with open_rows() as con:
        add_stated(con, *samples)
        for sample, (_, _, _, is_like) in zip(samples, drawn, strict=True):
            if is_like:
                con.execute("update statements set text = $text || statement_id where sample_id = $id",
                            {"text": FACT, "id": sample.sample_id})  # fmt: skip
        rows = read(con, "from sample_causes order by sample_id")
    assert [row["sample_id"] for row in rows] == [sample.sample_id for sample in samples]
    for row, (_, ids, wanted, _) in zip(rows, drawn, strict=True):
        if row["rule"] in ("reference_not_retrieved", "references_lack_it"):
            assert ({*wanted} - {None} <= {*ids}) == (row["rule"] == "references_lack_it")
        if row["rule"] == "retrieved_elsewhere":
            assert "; found for " in row["evidence"]
            assert row["evidence"].split("; found for ")[1].split(", ") != [row["sample_id"]]
