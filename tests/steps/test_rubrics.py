"""Rubrics: their rules over ratings, errors of a section, and a user's rubric in a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_house import place_at, write_dataset
from endpoint import Endpoint, running_endpoint
from prompt_files import read_content, write_prompt

from evalhouse.prompts import Grade, Rating, check_prompts, load_prompts
from evalhouse.prompts.checks import find_rubric_faults
from evalhouse.prompts.rubric import RubricContent, build_reply_schema, make_rubric, round_half_up
from evalhouse.warehouse.metric_files import load_metrics, parse_metric, write_rubric_metric
from evalhouse.warehouse.steps import GRADE_STEP

VARIABLES = {"question": "text", "answer": "text", "ground_truth": "text"}
RATING = {"min": 0, "max": 10}
TONE = {"min": 1, "max": 4}


def read_section(**section: Any) -> RubricContent:  # noqa: ANN401  # as in a file
    return RubricContent.model_validate({"needs": ["answer"], "criteria": {"tone": RATING}, **section})


def settle(content: RubricContent, ratings: Mapping[str, float], **known: Any) -> dict[str, Grade]:  # noqa: ANN401
    written = {name: Rating(reason=f"of {name}", rating=rating) for name, rating in ratings.items()}
    options = {"has_contexts": True, "judged_totals": {}, **known}
    return {grade.criterion: grade for grade in make_rubric("manners", content).settle(written, **options)}


def test_a_flag_that_is_false_can_be_a_condition_too() -> None:
    rule = {"when": {"criterion": "polite", "is": False}, "cap": {"tone": 5}}
    content = read_section(criteria={"polite": {"kind": "flag"}, "tone": RATING}, rules=[rule])
    assert settle(content, {"polite": 0.0, "tone": 8})["tone"].rule == "capped at 5: polite is false"
    assert settle(content, {"polite": 1.0, "tone": 8})["tone"].rating == 8


def test_rules_apply_in_their_order_each_to_what_the_ones_before_left() -> None:
    rules = [
        {"when": {"criterion": "tone", "at_most": 5}, "cap": {"truth": 3}},
        {"when": {"criterion": "truth", "at_most": 3}, "set": {"tone": 0}},
    ]
    content = read_section(criteria=dict.fromkeys(("tone", "truth"), RATING), rules=rules)
    assert [grade.rating for grade in settle(content, {"tone": 5, "truth": 9}).values()] == [0, 3]
    assert [grade.rating for grade in settle(content, {"tone": 6, "truth": 9}).values()] == [6, 9]


def test_a_rule_that_changes_nothing_is_not_noted() -> None:
    content = read_section(rules=[{"when": {"no_contexts": True}, "set": {"tone": 0}}])
    assert settle(content, {"tone": 0}, has_contexts=False)["tone"].rule is None


@pytest.mark.parametrize(
    ("value", "decimals", "rounded"),
    [(0.25, 1, 0.3), (0.05, 1, 0.1), (0.35, 1, 0.4), (8.5, 0, 9), (0.449, 1, 0.4), (1.005, 2, 1.01), (0, 1, 0)],
)  # fmt: skip
def test_halves_are_rounded_up(value: float, decimals: int, rounded: float) -> None:
    assert round_half_up(value, decimals) == rounded


def test_each_criterion_gives_a_score_and_a_lone_one_that_of_the_rubrics_name() -> None:
    assert make_rubric("manners", read_section()).metrics == {"manners": "tone"}
    criteria = {"tone": RATING, "rude": {"kind": "flag", "metric": None}, "truth": {**RATING, "metric": "honesty"}}
    totals = {"final": {"sum": ["tone"], "over": 10, "decimals": 2, "metric": "manners_final"}}
    rubric = make_rubric("manners", read_section(criteria=criteria, totals=totals))
    assert rubric.metrics == {"manners_tone": "tone", "honesty": "truth", "manners_final": "final"}


def test_the_reply_has_each_reason_before_what_follows_from_it() -> None:
    criteria = {"tone": TONE, "rude": {"kind": "flag"}, "depth": {"kind": "spread", "min": 1, "max": 2}}
    schema = build_reply_schema(read_section(criteria=criteria))
    parts = schema["properties"]
    assert schema["required"] == ["tone", "rude", "depth"]
    assert {name: list(part["properties"]) for name, part in parts.items()} == {
        "tone": ["reason", "rating"], "rude": ["reason", "verdict"], "depth": ["reason", "scores"],
    }  # fmt: skip
    assert parts["tone"]["properties"]["rating"]["enum"] == [1, 2, 3, 4]
    assert parts["depth"]["properties"]["scores"]["items"]["properties"]["score"]["enum"] == [1, 2]


FINAL = {"sum": ["tone"], "over": 10, "decimals": 1, "metric": "manners_final"}


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ({"criteria": {"tone": {"min": 4, "max": 4}}}, "rubric.criteria.tone", "min 4 must be below max 4"),
        ({"criteria": {"tone": {"kind": "flag", "max": 5}}}, "rubric.criteria.tone", "a flag is 0 or 1"),
        ({"criteria": {"tone": {**TONE, "anchors": [0, 4]}}}, "rubric.criteria.tone.anchors", "anchor 0 is not on"),
        ({"criteria": {"it's": TONE}}, "rubric.criteria", "'it's' cannot be a name"),
        ({"criteria": {"tone": {**TONE, "metric": "My Tone"}}}, "rubric", "'My Tone' cannot be a name"),
        ({"criteria": {"a": {**TONE, "metric": "m"}, "b": {**TONE, "metric": "m"}}}, "rubric", "'m' is given 2 times"),
        ({"needs": ["contexts"]}, "rubric.needs", "'contexts' is needed but no variable"),
        ({"rules": [{"when": {}, "cap": {"tone": 1}}]}, "rubric.rules[0].when", "must be {no_contexts: true}"),
        ({"rules": [{"when": {"criterion": "tone"}, "cap": {"tone": 1}}]}, "rubric.rules[0].when", "must be {no_co"),
        ({"rules": [{"when": {"no_contexts": True, "criterion": "tone"}, "cap": {"tone": 1}}]},
         "rubric.rules[0].when", "must be {no_contexts"),
        ({"rules": [{"when": {"no_contexts": True}}]}, "rubric.rules[0]", "does nothing"),
        ({"rules": [{"when": {"no_contexts": True}, "set": {"tune": 1}}]},
         "rubric.rules[0]", "'tune' is not a criterion"),
        ({"rules": [{"when": {"criterion": "tune", "at_most": 1}, "set": {"tone": 1}}]}, "rubric.rules[0]", "'tune'"),
        ({"rules": [{"when": {"no_contexts": True}, "cap": {"tone": 11}}]}, "rubric.rules[0]", "tone: 11 is not on"),
        ({"rules": [{"when": {"criterion": "tone", "at_most": 11}, "cap": {"tone": 1}}]},
         "rubric.rules[0]", "tone: 11 is not on its scale"),
        ({"rules": [{"when": {"criterion": "tone", "is": True}, "cap": {"tone": 1}}]},
         "rubric.rules[0].when", "tone is not a flag"),
        ({"totals": {"final": {**FINAL, "sum": ["tune"]}}}, "rubric.totals.final.sum", "'tune' is not a criterion"),
        ({"totals": {"tone": FINAL}}, "rubric.totals.tone", "is a criterion"),
        ({"totals": {"final": {**FINAL, "over": 9}}}, "rubric.totals.final.over", "9 is less than the sum can be (10)"),
        ({"totals": {"final": {**FINAL, "metric": "manners"}}}, "rubric", "'manners' is given 2 times"),
    ],
)  # fmt: skip
def test_disagreement_is_reported_once_with_its_key(section: dict[str, Any], key: str, message: str) -> None:
    (problem,) = find_rubric_faults(read_section(**section), variables=VARIABLES, file="manners.yaml")
    assert problem.key == key
    assert message in problem.message


@pytest.mark.parametrize(
    ("file", "message"),
    [("tool_calls.yaml", "'tool_calls' is the name of a built-in step"), ("My-Rubric.yaml", "'My-Rubric' cannot be")],
)
def test_a_rubrics_name_must_do_as_a_step_and_a_score(file: str, message: str) -> None:
    problems = list(find_rubric_faults(read_section(), variables=VARIABLES, file=file))
    assert any(problem.key == "name" and message in problem.message for problem in problems)


def test_a_block_that_no_sample_has_is_refused() -> None:
    (problem,) = find_rubric_faults(read_section(), variables={**VARIABLES, "text": "text"}, file="manners.yaml")
    assert problem.key == "variables.text"
    assert "question, answer, ground_truth, contexts" in problem.message


def test_a_query_may_stand_for_answer_and_ground_truth() -> None:
    content = read_section(needs=["answer", "ground_truth"])
    variables = {"sql": "text", "expected_sql": "text"}
    assert list(find_rubric_faults(content, variables=variables, file="manners.yaml")) == []


@pytest.mark.parametrize(("edit", "key"), [
    ({"criteria": {}}, "rubric.criteria"),
    ({"criteria": {"tone": {"max": 1000}}}, "rubric.criteria.tone.max"),
    ({"criteria": {"tone": {"min": -1, "max": 5}}}, "rubric.criteria.tone.min"),
    ({"criteria": {"tone": {"kind": "guess"}}}, "rubric.criteria.tone.kind"),
    ({"needs": ["sleep"]}, "rubric.needs.0"),
    ({"needs": ["answer", ["contexts", "answer"]]}, "rubric.needs.1"),
    ({"weights": {}}, "rubric.weights"),
])  # fmt: skip
def test_what_the_section_cannot_hold_is_refused_with_its_key(tmp_path: Path, edit: dict[str, Any], key: str) -> None:
    content = make_manners()
    content["rubric"] |= edit
    write_prompt(tmp_path, content)
    assert key in [problem.key for problem in check_prompts(tmp_path)]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_score_of_a_built_in_rubric_has_the_metric_that_would_be_written(language: str) -> None:
    metrics = load_metrics()
    scores = {
        metric: (
            parse_metric(
                write_rubric_metric(metric, rubric=prompt.name, criterion=criterion), name=metric, place=""
            ).sql,
            prompt.rubric.find_minimum(criterion),
        )
        for prompt in load_prompts(language).values()
        if prompt.rubric
        for metric, criterion in prompt.rubric.metrics.items()
    }
    graded = {name for name, metric in metrics.items() if any(need.startswith(GRADE_STEP) for need in metric.needs)}
    assert {name: (metrics[name].sql, metrics[name].minimum) for name in graded} == scores


def test_both_languages_judge_by_the_same_rubrics() -> None:
    sections = [
        {name: prompt.rubric for name, prompt in load_prompts(language).items() if prompt.rubric}
        for language in ("en", "zh")
    ]
    assert len(sections[0]) >= 9
    assert sections[0] == sections[1]


def make_manners(name: str = "manners") -> dict[str, Any]:
    criteria = {"tone": {"kind": "rating", **TONE}, "rude": {"kind": "flag"}}
    return {
        "name": name, "version": 1, "language": "en", "description": "Rate the manners of an answer.",
        "variables": {"question": "text", "answer": "text"},
        "rubric": {"needs": ["answer"], "criteria": criteria},
        "system": "Rate the <answer> to the <question>: its tone from 1 to 4, and whether it is rude.",
        "examples": [],
    }  # fmt: skip


def test_a_name_that_is_built_in_is_refused(tmp_path: Path) -> None:
    taken = make_manners()
    taken["rubric"]["criteria"]["tone"]["metric"] = "accuracy"
    write_prompt(tmp_path, taken)
    (problem,) = check_prompts(tmp_path)
    assert problem.message == "gives the score 'accuracy', which is built in; give it another name"
    write_prompt(tmp_path / "other", make_manners("accuracy"))
    (problem,) = check_prompts(tmp_path / "other")
    assert "must be as in the built-in one" in problem.message


def test_a_built_in_rubric_may_have_other_words_and_no_other_scale(tmp_path: Path) -> None:
    content = read_content("accuracy") | {"version": 70}
    content["system"] += "\nBe kind."
    write_prompt(tmp_path, content)
    assert load_prompts("en", tmp_path)["accuracy"].version == "70"
    content["rubric"]["criteria"]["accuracy"]["max"] = 20
    write_prompt(tmp_path, content)
    assert [problem.key for problem in check_prompts(tmp_path)] == ["rubric"]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(expected_key="sk-any") as running:
        yield running


def test_a_rubric_can_say_that_low_is_good_and_nothing_else(tmp_path: Path) -> None:
    content = make_manners("rudeness")
    for better in ("low", "high"):
        content["rubric"]["criteria"]["tone"]["better"] = better
        write_prompt(tmp_path, content)
        rubric = load_prompts("en", tmp_path)["rudeness"].rubric
        assert rubric is not None
        assert (rubric.find_better("tone"), rubric.find_better("rude")) == (better, "high")
    content["rubric"]["criteria"]["tone"]["better"] = "sideways"
    write_prompt(tmp_path, content)
    (problem,) = check_prompts(tmp_path)
    assert problem.key == "rubric.criteria.tone.better"
    assert problem.message == "Input should be 'high', 'low' or 'neutral', not 'sideways'"


@pytest.mark.slow  # some ten seconds
def test_a_rise_of_a_rubric_of_faults_is_worse_from_its_file_to_the_gate(
    tmp_path: Path, prefect_home: Path, endpoint: Endpoint
) -> None:
    """The endpoint rates with the lowest of the scale: 1 of 4 on the first night, and 3 of 4 when it begins there; each
    flag is true."""
    rows = [{"id": f"s{n}", "question": "Who is there?", "answer": f"It is I, number {n}."} for n in range(8)]
    write_dataset(tmp_path, [*rows, {"id": "silent", "question": "Who is there?"}], "calls.jsonl")
    content = make_manners("rudeness")
    content["rubric"]["criteria"]["tone"]["better"] = "low"
    place = place_at(tmp_path, prefect_home, endpoint.base_url, key="sk-any")
    for night, least in (("calm", 1), ("rude", 3)):
        content["rubric"]["criteria"]["tone"]["min"] = least
        write_prompt(tmp_path / night, content | {"version": least})
        checked = place.call("prompts", "check", night)
        assert (checked.status, "rudeness" in checked.stdout) == (0, True), checked.stderr
        names = "rudeness_tone,rudeness_rude"
        options = ("--judge", "openai:judge", "--prompts", night, "--metrics", names, "--label", night)
        done = place.call("run", "calls.jsonl", *options, "--json")
        assert done.status == 0, done.stderr
        found = done.document["metrics"]
        assert {name: one["mean"] for name, one in found.items()} == {"rudeness_tone": least / 4, "rudeness_rude": 1.0}
        assert {one["n_unscored"] for one in found.values()} == {1}
    unscored = place.call("query", "select distinct unscored_reason from scores where value is null", "--format", "csv")
    assert unscored.lines[1:] == ["no_answer"]
    document = place.call("compare", "calm", "rude", "--json").document
    (compared,) = [one for one in document["metrics"] if one["metric"] == "rudeness_tone"]
    assert (compared["difference"], compared["verdict"]) == (0.5, "worse")
    assert [part["name"] for part in compared["parts"]] == ["judge"]
    gated = place.call("gate", "rude", "--max", "rudeness_tone=0.3")
    assert (gated.status, "rudeness" in gated.stdout) == (1, True)
    refused = place.call("gate", "rude", "--min", "rudeness_tone=0.3")
    assert (refused.status, "this metric is better when low" in refused.stderr) == (2, True)
    sql = "select distinct step, criterion, rating, share from verdicts join runs using (run_id)"
    of_rude = f"{sql} where runs.label = 'rude' order by criterion"
    assert place.call("query", of_rude, "--format", "json").document == [
        {"step": "grade_rudeness", "criterion": "rude", "rating": 1.0, "share": 1.0},
        {"step": "grade_rudeness", "criterion": "tone", "rating": 3.0, "share": 0.0},
    ]
