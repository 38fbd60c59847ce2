"""Rubrics: prompts with criteria, scales, required texts, and rules for the judge's ratings.

The judge gives, for each criterion, a reason and then a rating; the reply's schema follows from the criteria, so that
a user who writes a rubric writes no schema. Caps, zeroing and totals are never left to the judge: `Rubric.settle`
computes them, and records for each criterion the judge's rating and the rule that changed it. `loader` reads the
section `rubric` of a prompt file with the models here; `tasks/grade.py` asks the judge.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Need = Literal["answer", "ground_truth", "contexts"]
CriterionKind = Literal["rating", "spread", "flag", "preference"]
Better = Literal["high", "low", "neutral"]

SAMPLE_COLUMNS: Mapping[str, str] = {
    name: name for name in ("question", "answer", "ground_truth", "contexts", "contexts_role", "schema")
} | {"expected_sql": "ground_truth", "sql": "answer"}
"""The blocks that are made from a sample, each with its column; other blocks belong to single steps."""
PREFERENCES: tuple[str, ...] = ("first", "second", "tie")
"""The judge's choices between two answers, by their places."""


class Criterion(BaseModel):
    """One criterion that is judged.

    `rating` is a whole number from `min` to `max`; `spread` is two neighbouring numbers of that scale with
    probabilities, of which the weighted mean counts; `flag` is true or false, 1 or 0. `preference` picks one of two
    answers and gives no score. `anchors` are the ratings that the instructions describe. `metric` is the name of its
    score (rating / max) if that is not the rubric's name; null for no score. `better: low` is for ratings of faults.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    kind: CriterionKind = "rating"
    min: int = Field(default=0, ge=0)
    max: int = Field(default=1, ge=1, le=100)
    anchors: list[int] = []
    metric: str | None = ""
    better: Better = "high"


class When(BaseModel):
    """A condition: no contexts, or a criterion's value (at most a number, or a flag that is true or false)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    no_contexts: Literal[True] | None = None
    criterion: str | None = None
    at_most: int | None = None
    is_true: bool | None = Field(default=None, alias="is")

    def explain(self, rated: Mapping[str, float], *, has_contexts: bool) -> str | None:
        """Return the reason why the condition is met in words; None if it is not met."""
        if self.no_contexts:
            return None if has_contexts else "there is no context"
        assert self.criterion is not None
        value = rated[self.criterion]
        if self.at_most is not None:
            return f"{self.criterion} is {value:g}, at most {self.at_most}" if value <= self.at_most else None
        return f"{self.criterion} is {'true' if value else 'false'}" if bool(value) is self.is_true else None


class Rule(BaseModel):
    """Some criteria are set to a number, or capped at one, under a condition."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    when: When
    set: dict[str, int] = {}
    cap: dict[str, int] = {}


class Total(BaseModel):
    """A score from several criteria: their sum over a number, rounded half up to so many decimals."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    sum: list[str] = Field(min_length=1)
    over: int = Field(ge=1)
    decimals: int = Field(ge=0, le=6)
    metric: str
    better: Better = "high"


class RubricContent(BaseModel):
    """The section `rubric` of a prompt file; `needs` are the texts that a sample must have to be rated."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    needs: list[Need]
    criteria: dict[str, Criterion] = Field(min_length=1)
    rules: list[Rule] = []
    totals: dict[str, Total] = {}

    @property
    def is_of_pairs(self) -> bool:
        """True if it picks one of two answers instead of rating one."""
        return any(criterion.kind == "preference" for criterion in self.criteria.values())

    def name_scores(self, rubric: str) -> dict[str, str]:
        """Return the metric of each criterion or total that has one, in a rubric of this name."""
        is_alone = len(self.criteria) == 1
        metrics = {
            name: criterion.metric or (rubric if is_alone else f"{rubric}_{name}")
            for name, criterion in self.criteria.items()
            if criterion.metric is not None and criterion.kind != "preference"
        }
        return metrics | {name: total.metric for name, total in self.totals.items()}


@dataclass(frozen=True, kw_only=True)
class Rating:
    """The judge's rating by one criterion: a number of its scale (a spread's weighted mean), with the reason.

    `expected` counts in place of `rating` if log-probabilities gave one; `note` reports that, or why they did not.
    """

    reason: str
    rating: float
    expected: float | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The value of a criterion or total: `said` by the judge (None when it was not asked), `rating` after the rules.

    `rule` is what changed it, None when nothing did; it also reports the use of log-probabilities.
    """

    criterion: str
    rating: float
    reason: str
    said: float | None = None
    scale_min: float = 0
    scale_max: float = 1
    rule: str | None = None


class Rubric(RubricContent):
    """A checked rubric under its name. `metrics` gives each score's name its criterion or total."""

    name: str

    @property
    def metrics(self) -> dict[str, str]:
        """The scores of this rubric: metric -> criterion or total."""
        return {metric: name for name, metric in self.name_scores(self.name).items()}

    def find_better(self, name: str) -> Better:
        """Return the direction in which the score of a criterion or total is better."""
        return (self.criteria.get(name) or self.totals[name]).better

    def find_minimum(self, name: str) -> float:
        """Return the lowest score of a criterion or total."""
        if name in self.criteria:
            return self.criteria[name].min / self.criteria[name].max
        total = self.totals[name]
        return round_half_up(sum(self.criteria[part].min for part in total.sum) / total.over, total.decimals)

    def settle(
        self, ratings: Mapping[str, Rating], *, has_contexts: bool, judged_totals: Mapping[str, float]
    ) -> list[Grade]:
        """Apply the rules in their order and add the totals; `judged_totals` are the totals in the judge's reply."""
        rated = {
            name: answer.rating if answer.expected is None else answer.expected for name, answer in ratings.items()
        }
        changes: dict[str, str] = {}
        for rule in self.rules:
            cause = rule.when.explain(rated, has_contexts=has_contexts)
            if cause is not None:
                for name, number in rule.set.items():
                    if rated[name] != number:
                        rated[name] = number
                        changes[name] = f"set to {number}: {cause}"
                for name, number in rule.cap.items():
                    if rated[name] > number:
                        rated[name] = number
                        changes[name] = f"capped at {number}: {cause}"
        grades = [
            Grade(
                criterion=name,
                said=ratings[name].rating,
                rating=rated[name],
                scale_min=criterion.min,
                scale_max=criterion.max,
                reason=ratings[name].reason,
                rule="; ".join(text for text in (ratings[name].note, changes.get(name)) if text) or None,
            )
            for name, criterion in self.criteria.items()
        ]
        for name, total in self.totals.items():
            value = round_half_up(sum(rated[part] for part in total.sum) / total.over, total.decimals)
            parts = " + ".join(f"{rated[part]:g}" for part in total.sum)
            judged = judged_totals.get(name)
            is_right = judged is None or math.isclose(judged, value)
            grades.append(
                Grade(
                    criterion=name,
                    said=judged,
                    rating=value,
                    reason=f"({parts}) / {total.over}",
                    rule=None if is_right else f"recomputed: the judge gave {judged:g}",
                )
            )
        return grades


def round_half_up(value: float, decimals: int) -> float:
    """Round as people do by hand: 0.25 to one decimal is 0.3. Python's own `round` gives 0.2."""
    scaled = value * 10**decimals
    # A quotient such as 8.5 may have come out a hair below; twelve digits are far finer than any scale here.
    return float(math.floor(round(scaled, 9) + 0.5) / 10**decimals)


def make_rubric(name: str, content: RubricContent) -> Rubric:
    """Return the rubric of a section without faults."""
    return Rubric(name=name, **dict(content))


def build_reply_schema(content: RubricContent) -> dict[str, Any]:
    """Return the schema of a reply: an object by criterion, the reason before the rating."""
    criteria: dict[str, Any] = {}
    for name, criterion in content.criteria.items():
        scale = {"type": "integer", "enum": list(range(criterion.min, criterion.max + 1))}
        verdict: dict[str, Any] = {"reason": {"type": "string"}}
        if criterion.kind == "flag":
            verdict["verdict"] = {"type": "boolean"}
        elif criterion.kind == "preference":
            verdict["verdict"] = {"type": "string", "enum": list(PREFERENCES)}
        elif criterion.kind == "rating":
            verdict["rating"] = scale
        else:
            entry = _make_object({"score": scale, "probability": {"type": "number"}})
            verdict["scores"] = {"type": "array", "items": entry}
        criteria[name] = _make_object(verdict)
    return _make_object(criteria)


def _make_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
