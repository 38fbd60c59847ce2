"""The view sample_causes for random verdicts: one cause a sample, with what decided it."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rows import FACT, Sample, add_stated, open_rows, read

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


IDS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=3)
DRAWN = st.tuples(draw_sample(), IDS, IDS, st.booleans())


@settings(deadline=None, max_examples=settings.default.max_examples // 8)
@given(drawn=st.lists(DRAWN, min_size=1, max_size=12))
def test_every_sample_has_one_cause_with_what_decided_it(
    drawn: list[tuple[Sample, list[str | None], list[str | None], bool]],
) -> None:
    """Some samples have reference ids, and some state the same."""
    samples = [
        replace(sample, sample_id=f"s{n:02}", context_ids=ids, reference_ids=wanted)
        for n, (sample, ids, wanted, _) in enumerate(drawn)
    ]
    like = [sample.sample_id for sample, (*_, is_like) in zip(samples, drawn, strict=True) if is_like]
    with open_rows() as con:
        add_stated(con, *samples)
        sql = "update statements set text = $text || statement_id where list_contains($ids, sample_id)"
        con.execute(sql, {"text": FACT, "ids": like})
        rows: list[dict[str, Any]] = read(con, "from sample_causes order by sample_id")
    assert [row["sample_id"] for row in rows] == [sample.sample_id for sample in samples]
    for row, (_, ids, wanted, _) in zip(rows, drawn, strict=True):
        assert (row["reason"] is None) == (row["cause"] != "not_judged")
        assert len(row["statement_ids"]) == row["n_deciding"] <= row["n_judged"]
        assert (row["n_deciding"] > 0) == (row["cause"] not in ("fine", "refused_rightly", "not_judged"))
        assert row["rule"] not in row["other_rules"]
        if row["rule"] in ("reference_not_retrieved", "references_lack_it"):
            assert ({*wanted} - {None} <= {*ids}) == (row["rule"] == "references_lack_it")
        if row["rule"] == "retrieved_elsewhere":
            assert row["evidence"].split("; found for ")[1].split(", ") != [row["sample_id"]]
