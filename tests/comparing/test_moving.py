"""Why a mean moved: the parts add up to the whole, and each thing that changes alone makes one part alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.flows.results.comparison import write_also
from evalhouse.prompts import load_prompts
from evalhouse.tasks.comparing.changes import (
    CAUSES,
    INPUTS,
    NOISE,
    Flags,
    Part,
    find_causes,
    join_inputs,
    list_call_steps,
    list_inputs,
    name_changes,
    split_difference,
)
from evalhouse.warehouse.metric_files import load_metrics

# value in base, value in candidate, is it in base, is it in candidate, what changed
Row = tuple[float | None, float | None, bool, bool, str]

VALUES = st.none() | st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0])
NAMES = st.sampled_from(["answer", "contexts", "ground_truth", "judge", "formula", "answer+contexts", NOISE])


@st.composite
def draw_row(draw: st.DrawFn) -> Row:
    where = draw(st.sampled_from(["base", "candidate", "both"]))
    in_base, in_candidate = where != "candidate", where != "base"
    base = draw(VALUES) if in_base else None
    candidate = draw(VALUES) if in_candidate else None
    return base, candidate, in_base, in_candidate, draw(NAMES)


def split(rows: list[Row]) -> list[Part]:
    values = np.array([row[:2] for row in rows], dtype=float).reshape(-1, 2)
    return split_difference(
        base=values[:, 0],
        candidate=values[:, 1],
        in_base=np.array([row[2] for row in rows], dtype=bool),
        in_candidate=np.array([row[3] for row in rows], dtype=bool),
        changed=[row[4] for row in rows],
    )


def keep(base: float | None, candidate: float | None, changed: str = NOISE) -> Row:
    """A sample of both runs."""
    return base, candidate, True, True, changed


def add(value: float | None) -> Row:
    return None, value, False, True, NOISE


def remove(value: float | None) -> Row:
    return value, None, True, False, NOISE


def as_values(parts: list[Part]) -> dict[str, float]:
    return {part.name: part.value for part in parts}


@given(st.lists(draw_row(), max_size=40))
def test_the_parts_add_up_to_the_difference_of_the_means(rows: list[Row]) -> None:
    before = [row[0] for row in rows if row[0] is not None]
    after = [row[1] for row in rows if row[1] is not None]
    parts = split(rows)
    if not before or not after:
        assert parts == []
        return
    assert sum(part.value for part in parts) == pytest.approx(np.mean(after) - np.mean(before), abs=1e-12)
    # Each sample that has a score is in one part.
    assert sum(part.n for part in parts) == sum(row[0] is not None or row[1] is not None for row in rows)
    assert all(0 <= part.n_moved <= part.n and part.n > 0 for part in parts)
    assert len({part.name for part in parts}) == len(parts)


def test_parts_by_hand() -> None:
    parts = split([keep(0.0, 1.0, "answer"), keep(1.0, 0.5, "contexts"), keep(0.5, 0.5, "answer"), keep(0.5, 0.6)])
    assert [(part.name, part.n, part.n_moved) for part in parts] == [
        ("answer", 2, 1),
        ("contexts", 1, 1),
        (NOISE, 1, 1),
    ]
    assert as_values(parts) == pytest.approx({"answer": 0.25, "contexts": -0.125, NOISE: 0.025})


def test_samples_that_come_and_go_count_by_their_distance_from_the_others() -> None:
    # The two in both have the mean 0.5 before and after; 0.9 comes into a mean of three, 0.2 leaves one of three.
    parts = split([keep(0.4, 0.4), keep(0.6, 0.6), add(0.9), remove(0.2)])
    assert as_values(parts) == pytest.approx({NOISE: 0.0, "added": 0.4 / 3, "removed": 0.3 / 3})
    assert parts[0].n_moved == 0


def test_without_a_common_sample_both_sides_have_their_half() -> None:
    parts = split([remove(0.2), remove(0.4), add(0.9)])
    assert as_values(parts) == pytest.approx({"added": 0.3, "removed": 0.3})


@pytest.mark.parametrize("rows", [[], [add(0.5)], [remove(0.5)], [keep(None, 0.5)], [keep(None, None)]])
def test_without_a_mean_on_both_sides_nothing_is_split(rows: list[Row]) -> None:
    assert split(rows) == []


def flag(*names: str, n: int = 1) -> dict[str, np.ndarray]:
    """Inputs that changed in every one of so many samples."""
    return {name: np.full(n, name in names) for name in INPUTS}


def name_one(
    steps: set[str],
    *changed: str,
    judges: tuple[str, ...] = (),
    formula: bool = False,
    rubrics: Mapping[str, list[str]] | None = None,
) -> str:
    causes = find_causes(
        steps,
        inputs=flag(*changed),
        judges={step: np.array([True]) for step in judges},
        is_formula_changed=formula,
        rubrics=rubrics or {},
    )
    (name,) = name_changes(causes)
    return name


@pytest.mark.parametrize(("steps", "changed", "name"), [
    ({"classify"}, ("answer",), "answer"),
    ({"classify"}, ("contexts",), NOISE),
    ({"classify"}, ("answer", "contexts"), "answer"),
    ({"classify", "attribute_answer"}, ("contexts", "answer"), "answer+contexts"),
    ({"attribute_ground_truth"}, ("answer",), NOISE),
    ({"attribute_ground_truth"}, ("ground_truth", "contexts"), "contexts+ground_truth"),
    ({"rank"}, ("reference_context_ids",), "ground_truth"),
    ({"rank"}, ("context_ids",), "contexts"),
    ({"tool_calls"}, ("tool_calls", "answer"), "answer"),
    ({"tool_calls"}, ("expected_tool_calls",), "ground_truth"),
    ({"classify"}, ("tool_calls",), NOISE),
    ({"result_sets"}, ("tables",), "question"),
    ({"grade_accuracy"}, ("contexts",), NOISE),
    ({"grade_own_rubric"}, ("contexts",), "contexts"),
    (set(), ("answer",), "answer"),
    (set(), ("contexts", "question"), "question+contexts"),
])  # fmt: skip
def test_only_what_a_metric_rests_on_can_move_it(steps: set[str], changed: tuple[str, ...], name: str) -> None:
    assert name_one(steps, *changed) == name


# A preference is about two runs and scores neither.
RUBRICS = {name: prompt for name, prompt in load_prompts().items() if prompt.rubric and name != "preference"}
# A block that a sample's column goes by another name in, and what is read before a judge is asked.
OTHER_NAMES = {"sql": "answer", "expected_sql": "ground_truth"}
READ_BY_PROOFS = {"sql_equivalence": {"setup", "tables"}}


@pytest.mark.parametrize("rubric", RUBRICS)
def test_only_the_inputs_of_its_prompt_can_move_a_rubric(rubric: str) -> None:
    taken = {OTHER_NAMES.get(name, name) for name in RUBRICS[rubric].variables} | READ_BY_PROOFS.get(rubric, set())
    taken |= {"ground_truths"} if "ground_truth" in taken else set()
    taken |= {"conversation", "earlier_answers"}  # every request holds the earlier turns
    for name, cause in INPUTS.items():
        assert name_one({f"grade_{rubric}"}, name) == (cause if name in taken else NOISE), name


@pytest.mark.parametrize("rubric", ["own_rubric", "relevance"])
def test_a_rubrics_inputs_are_those_of_the_prompts_on_record(rubric: str) -> None:
    """Also of a user's, and of a built-in one of which an earlier version took something else."""
    template, later = (
        f"name: {rubric}\nvariables: {{{name}: text, question: text}}\nrubric: {{needs: [], criteria: {{tone: {{}}}}}}"
        for name in ("ground_truth", "schema")
    )
    on_record = {f"grade_{rubric}": [template]}
    named = {name: name_one({f"grade_{rubric}"}, name, rubrics=on_record) for name in INPUTS}
    assert {name for name, cause in named.items() if cause != NOISE} == {
        "conversation", "earlier_answers", "ground_truth", "ground_truths", "question",
    }  # fmt: skip
    on_record[f"grade_{rubric}"].append(later)
    assert name_one({f"grade_{rubric}"}, "schema", rubrics=on_record) == "question", "of either run"


def test_a_judge_moves_the_metrics_that_ask_it() -> None:
    assert name_one({"classify"}, judges=("classify",)) == "judge"
    assert name_one({"classify"}, judges=("extract_answer",)) == "judge", "another split gives other statements"
    assert name_one({"classify"}, judges=("rank", "attribute_answer")) == NOISE
    assert name_one({"attribute_answer"}, judges=("attribute_answer",)) == "judge"
    assert name_one({"overlap"}, judges=("overlap", "classify")) == NOISE
    assert (
        name_one({"classify", "similarity"}, "answer", judges=("similarity",), formula=True) == "answer+judge+formula"
    )


def test_changes_are_named_by_sample_in_one_order() -> None:
    flags = {cause: np.array([cause in ("answer", "judge"), False, cause == "formula"]) for cause in CAUSES}
    assert name_changes(flags) == ["answer+judge", NOISE, "formula"]


def test_every_step_of_a_built_in_metric_has_its_inputs() -> None:
    for metric in load_metrics().values():
        steps = {*metric.needs, *metric.optional_needs}
        assert list_inputs(steps) != list(INPUTS), f"{metric.name} rests on a step whose inputs are not known"
        assert set(list_call_steps(steps)) or steps <= {"overlap", "tool_calls", "result_sets", "citations"}


N = 40


def flag_places(first: int, last: int) -> Flags:
    """True for the samples from first up to and without last."""
    return (np.arange(N) >= first) & (np.arange(N) < last)


ANSWERS, CONTEXTS = flag_places(0, 31), flag_places(3, 33)


def test_a_part_says_what_else_changed_in_its_samples() -> None:
    inputs = join_inputs({"answer": ANSWERS, "contexts": CONTEXTS, "context_ids": flag_places(0, 1)})
    everywhere = np.ones(N, dtype=bool)
    names = ["answer" if is_changed else "noise" for is_changed in ANSWERS]
    answer, noise = split_difference(
        base=np.ones(N),
        candidate=np.where(ANSWERS, 0.5, 1.0),
        in_base=everywhere,
        in_candidate=everywhere,
        changed=names,
        inputs=inputs,
    )
    assert (answer.n, answer.also) == (31, {"contexts": 29})
    assert write_also(answer.also) == "29 also had other contexts"
    assert (noise.n, noise.also) == (9, {"contexts": 2})
    assert write_also({}) == ""
