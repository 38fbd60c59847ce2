"""The metrics of rubrics: one file for each score that has none, and no name for two things."""

from dataclasses import replace

import pytest

from evalhouse.flows.preparing.live_run import find_taken_scores, make_rubric_metrics
from evalhouse.prompts import Prompt, load_prompts
from evalhouse.prompts.rubric import Criterion, Rubric
from evalhouse.warehouse.metric_files import MetricFileError, load_metrics

KNOWN = load_metrics()
OURS = load_prompts()


def make_rubric(name: str, **criteria: str | None) -> Prompt:
    """A rubric with some criteria and the names they give their scores."""
    rubric = Rubric(
        name=name,
        needs=["answer"],
        criteria={key: Criterion(min=1, max=5, metric=metric) for key, metric in criteria.items()},
    )
    return replace(OURS["answer_validity"], name=name, rubric=rubric)


def test_our_own_prompts_have_their_files() -> None:
    assert make_rubric_metrics(OURS.values(), KNOWN) == {}


def test_each_score_of_a_rubric_becomes_a_metric_that_rests_on_its_grading() -> None:
    made = make_rubric_metrics([*OURS.values(), make_rubric("tone", warm="", brief="brevity", steer=None)], KNOWN)
    assert sorted(made) == ["brevity", "tone_warm"], "a criterion without a metric only steers rules"
    assert made["brevity"].needs == ("grade_tone",)
    assert "criterion = 'brief'" in made["brevity"].sql


def test_users_metric_file_for_a_rubrics_score_is_that_score() -> None:
    own = replace(KNOWN["accuracy"], name="tone", needs=("grade_tone",))
    assert make_rubric_metrics([make_rubric("tone", warm="")], {**KNOWN, "tone": own}) == {}


def test_a_name_that_is_taken_is_refused_with_all_others() -> None:
    rubrics = [make_rubric("mrr", x=""), make_rubric("tone", y=""), make_rubric("manner", z="tone")]
    problems = [
        "rubric 'mrr': its score 'mrr' is that of the metric file mrr.sql too; give x another name under `metric`",
        "rubric 'manner': its score 'tone' is that of the rubric 'tone' too; give z another name under `metric`",
    ]
    assert list(find_taken_scores(rubrics, KNOWN)) == problems
    with pytest.raises(MetricFileError) as refused:
        make_rubric_metrics(rubrics, KNOWN)
    assert str(refused.value) == "; ".join(problems)
