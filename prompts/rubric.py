"""What makes a prompt a rubric: its criteria and scales, what it cannot do without, and the rules for what was said.

The judge gives, for each criterion, a reason and then a rating; the reply's schema follows from the criteria, so that
a user who writes a rubric writes none. What the ratings come to (caps, zeroing, totals) is never left to the
judge: `Rubric.settle` works it out, and says for each criterion what was said and which rule changed it.
`prompt_file` reads the section `rubric` of a prompt file with the models here; `tasks/grade.py` asks.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from evalhouse.prompts.errors import PromptProblem, make_fault

Need = Literal["answer", "ground_truth", "contexts"]
CriterionKind = Literal["rating", "spread", "flag", "preference"]
Better = Literal["high", "low"]

SAMPLE_COLUMNS: Mapping[str, str] = {
    name: name for name in ("question", "answer", "ground_truth", "contexts", "contexts_role", "schema")
} | {"expected_sql": "ground_truth", "sql": "answer"}
"""The blocks that are made from a sample, each with the column it is made from; other blocks belong to single steps."""
PREFERENCES: tuple[str, ...] = ("first", "second", "tie")
"""What the judge can say of two answers, by their places."""
PAIR: tuple[str, ...] = ("first_answer", "second_answer")
"""The blocks of two answers that one of them is preferred of; beside them stands what both answer to."""
_BESIDE_PAIR = ("question", "ground_truth", "contexts")
_AS_CONTEXTS = "answer_as_contexts"
"""The answer of samples without contexts, which is another input than the answer of all."""
# Steps that are no rubrics keep their grades under these names.
_RESERVED = ("relevancy", "result_sets", "tool_calls")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NAME_RULE = "names are small letters, digits and underscores, beginning with a letter"


class Criterion(BaseModel):
    """One thing that is judged.

    `rating` is a whole number from `min` to `max`; `spread` is two neighbouring numbers of that scale with
    probabilities, of which the weighted mean counts; `flag` is true or false, 1 or 0. `preference` rates nothing: it
    says which of two answers is preferred, and gives no score. `anchors` are the ratings that the instructions
    describe. `metric` names the score made of it (rating / max) where that is not the rubric's own name; null for none.
    `better: low` is for ratings of faults.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    kind: CriterionKind = "rating"
    min: int = Field(default=0, ge=0)
    max: int = Field(default=1, ge=1, le=100)
    anchors: list[int] = []
    metric: str | None = ""
    better: Better = "high"


class When(BaseModel):
    """A condition: no contexts, or what a criterion came to (at most a number, or a flag that is true or false)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    no_contexts: Literal[True] | None = None
    criterion: str | None = None
    at_most: int | None = None
    is_true: bool | None = Field(default=None, alias="is")


class Rule(BaseModel):
    """Under a condition some criteria are set to a number, or come to no more than one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    when: When
    set: dict[str, int] = {}
    cap: dict[str, int] = {}


class Total(BaseModel):
    """A score of its own: the sum of criteria over a number, rounded half up to so many decimals."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    sum: list[str] = Field(min_length=1)
    over: int = Field(ge=1)
    decimals: int = Field(ge=0, le=6)
    metric: str
    better: Better = "high"


class RubricContent(BaseModel):
    """The section `rubric` of a prompt file.

    `needs` are the texts without which a sample is not rated. In a file each is a name, or a list of names of which the
    first that the sample has is rated, and the others are left empty.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    needs: list[Annotated[list[Need], Field(min_length=1)]]
    criteria: dict[str, Criterion] = Field(min_length=1)
    rules: list[Rule] = []
    totals: dict[str, Total] = {}

    @field_validator("needs", mode="before")
    @classmethod
    def _list_names(cls, needs: object) -> object:
        return [[need] if isinstance(need, str) else need for need in needs] if isinstance(needs, list) else needs


@dataclass(frozen=True, kw_only=True)
class Rating:
    """What the judge said of one criterion: a number of its scale (a spread's weighted mean), with the reason.

    `expected` counts in place of `rating` where log-probabilities gave one; `note` says so, or why they did not.
    """

    reason: str
    rating: float
    expected: float | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What a criterion or total came to: `said` by the judge (None when it was not asked), `rating` after the rules.

    `rule` says what changed it, None when nothing did; where log-probabilities were asked for, what came of them too.
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
    def is_of_pairs(self) -> bool:
        """Whether it prefers one of two answers, in place of rating one."""
        return _is_of_pairs(self)

    @property
    def stand_in(self) -> str | None:
        """What is rated where a text is missing, in a sentence; None where nothing stands in for another."""
        lists = [(first, " or ".join(others)) for first, *others in self.needs if others]
        return " ".join(f"A sample without {first} is rated by its {others}." for first, others in lists) or None

    @property
    def metrics(self) -> dict[str, str]:
        """The scores this rubric gives: metric -> criterion or total."""
        return {metric: name for name, metric in _name_scores(self.name, self.criteria, self.totals).items()}

    def find_better(self, name: str) -> Better:
        """Which way the score of a criterion or total is better."""
        return (self.criteria.get(name) or self.totals[name]).better

    def find_minimum(self, name: str) -> float:
        """The lowest score of a criterion or total."""
        if name in self.criteria:
            return self.criteria[name].min / self.criteria[name].max
        total = self.totals[name]
        return round_half_up(sum(self.criteria[part].min for part in total.sum) / total.over, total.decimals)

    def settle(
        self, ratings: Mapping[str, Rating], *, has_contexts: bool, totals_said: Mapping[str, float]
    ) -> list[Grade]:
        """Apply the rules in their order and add the totals; `totals_said` is what the judge, unasked, made of them."""
        rated = {
            name: answer.rating if answer.expected is None else answer.expected for name, answer in ratings.items()
        }
        changes: dict[str, str] = {}
        for rule in self.rules:
            cause = _describe_cause(rule.when, rated, has_contexts=has_contexts)
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
            judged = totals_said.get(name)
            is_right = judged is None or math.isclose(judged, value)
            grades.append(
                Grade(
                    criterion=name,
                    said=judged,
                    rating=value,
                    reason=f"({parts}) / {total.over}",
                    rule=None if is_right else f"recomputed: the judge said {judged:g}",
                )
            )
        return grades


def round_half_up(value: float, decimals: int) -> float:
    """Round as people do by hand: 0.25 to one decimal is 0.3. Python's own `round` gives 0.2."""
    scaled = value * 10**decimals
    # A quotient such as 8.5 may have come out a hair below; twelve digits are far finer than any scale here.
    return float(math.floor(round(scaled, 9) + 0.5) / 10**decimals)


def list_columns(variables: Iterable[str], needs: Iterable[object]) -> Iterator[str]:
    """The columns of a sample that these blocks are made from."""
    has_stand_in = ["contexts", "answer"] in list(needs)
    for name in variables:
        yield _AS_CONTEXTS if has_stand_in and name == "answer" else SAMPLE_COLUMNS[name]


def make_rubric(name: str, content: RubricContent) -> Rubric:
    """The rubric of a section in which `find_rubric_faults` found nothing."""
    return Rubric(name=name, **dict(content))


def build_reply_schema(content: RubricContent) -> dict[str, Any]:
    """The schema of a reply: an object by criterion, the reason before the rating."""
    return _make_object(
        {name: _make_object(_describe_verdict(criterion)) for name, criterion in content.criteria.items()}
    )


def find_rubric_faults(content: RubricContent, *, variables: Mapping[str, str], file: str) -> Iterator[PromptProblem]:
    """What does not agree within the section: names, scales, anchors, rules and totals, blocks that are needed."""
    yield from _find_naming_faults(content, PurePath(file).stem)
    for name, criterion in content.criteria.items():
        key = f"rubric.criteria.{name}"
        if criterion.kind == "flag" and (criterion.min, criterion.max) != (0, 1):
            yield make_fault(key, "a flag is 0 or 1; leave `min` and `max` out")
        if criterion.kind == "preference" and criterion != Criterion(kind="preference"):
            yield make_fault(key, "a preference has neither a scale nor a metric; give its `kind` alone")
        if criterion.min >= criterion.max:
            yield make_fault(key, f"min {criterion.min} must be below max {criterion.max}")
        outside = [anchor for anchor in criterion.anchors if not criterion.min <= anchor <= criterion.max]
        if outside:
            message = f"anchor {outside[0]} is not on the scale from {criterion.min} to {criterion.max}"
            yield make_fault(f"{key}.anchors", message)
    is_of_pairs = _is_of_pairs(content)
    if is_of_pairs:
        if len(content.criteria) > 1 or content.rules or content.totals:
            yield make_fault(
                "rubric", "prefers one of two answers by one criterion; leave out the others, rules and totals"
            )
        for name in PAIR:
            if name not in variables:
                yield make_fault(
                    "variables", f"'{name}' is missing: a preference is asked for between {' and '.join(PAIR)}"
                )
    allowed = (*_BESIDE_PAIR, *PAIR) if is_of_pairs else tuple(SAMPLE_COLUMNS)
    for name in variables:
        if name not in allowed:
            whose = "a rubric of two answers" if is_of_pairs else "a rubric"
            message = f"is not a block that {whose} is given; allowed: {', '.join(allowed)}"
            yield make_fault(f"variables.{name}", message)
    given = {SAMPLE_COLUMNS.get(name) for name in variables}
    for need in (name for names in content.needs for name in names):
        if need not in given:
            yield make_fault("rubric.needs", f"'{need}' is needed but no variable: declare its block under `variables`")
    for position, rule in enumerate(content.rules):
        yield from _find_rule_faults(content, rule, key=f"rubric.rules[{position}]")
    for name, total in content.totals.items():
        key = f"rubric.totals.{name}"
        yield from _find_name_faults(content, total.sum, key=f"{key}.sum")
        most = sum(content.criteria[name].max for name in total.sum if name in content.criteria)
        if most > total.over:
            yield make_fault(
                f"{key}.over", f"{total.over} is less than the sum can be ({most}), and a score is at most 1"
            )


def _name_scores(rubric: str, criteria: Mapping[str, Criterion], totals: Mapping[str, Total]) -> dict[str, str]:
    """The metric of each criterion or total that has one."""
    alone = len(criteria) == 1
    named = {
        name: criterion.metric or (rubric if alone else f"{rubric}_{name}")
        for name, criterion in criteria.items()
        if criterion.metric is not None and criterion.kind != "preference"
    }
    return named | {name: total.metric for name, total in totals.items()}


def _find_naming_faults(content: RubricContent, rubric: str) -> Iterator[PromptProblem]:
    if rubric in _RESERVED:
        yield make_fault("name", f"'{rubric}' is the name of a step of ours; give the rubric another one")
    scores = _name_scores(rubric, content.criteria, content.totals)
    for key, names in {
        "name": [rubric],
        "rubric.criteria": content.criteria,
        "rubric.totals": content.totals,
        "rubric": scores.values(),
    }.items():
        # They become names of metrics and stand in their SQL.
        for odd in (name for name in names if not _NAME.fullmatch(name)):
            yield make_fault(key, f"'{odd}' cannot be a name; {_NAME_RULE}")
    for name in content.criteria.keys() & content.totals.keys():
        yield make_fault(f"rubric.totals.{name}", "is a criterion; give the total another name")
    for metric, times in Counter(scores.values()).items():
        if times > 1:
            yield make_fault("rubric", f"the score '{metric}' is given {times} times; give each a `metric` of its own")


def _is_of_pairs(content: RubricContent) -> bool:
    return any(criterion.kind == "preference" for criterion in content.criteria.values())


def _find_rule_faults(content: RubricContent, rule: Rule, *, key: str) -> Iterator[PromptProblem]:
    when = rule.when
    asked = [when.no_contexts is not None, when.at_most is not None, when.is_true is not None]
    if sum(asked) != 1 or (when.criterion is None) != (when.no_contexts is not None):
        message = "must be {no_contexts: true}, {criterion: NAME, at_most: NUMBER} or {criterion: NAME, is: true}"
        yield make_fault(f"{key}.when", message)
    if not rule.set and not rule.cap:
        yield make_fault(key, "does nothing; give it `set` or `cap` with a number by criterion")
    names = [*([when.criterion] if when.criterion else []), *rule.set, *rule.cap]
    yield from _find_name_faults(content, names, key=key)
    asked_of = content.criteria.get(when.criterion or "")
    if asked_of and when.is_true is not None and asked_of.kind != "flag":
        yield make_fault(f"{key}.when", f"{when.criterion} is not a flag; ask whether it is `at_most` a number")
    compared = [(when.criterion, when.at_most)] if when.criterion and when.at_most is not None else []
    for name, number in (*compared, *rule.set.items(), *rule.cap.items()):
        criterion = content.criteria.get(name)
        if criterion and not criterion.min <= number <= criterion.max:
            yield make_fault(key, f"{name}: {number} is not on its scale from {criterion.min} to {criterion.max}")


def _find_name_faults(content: RubricContent, names: list[str], *, key: str) -> Iterator[PromptProblem]:
    for name in names:
        if name not in content.criteria:
            yield make_fault(key, f"'{name}' is not a criterion; there are {', '.join(content.criteria)}")


def _describe_verdict(criterion: Criterion) -> dict[str, Any]:
    reason: dict[str, Any] = {"type": "string"}
    scale = list(range(criterion.min, criterion.max + 1))
    if criterion.kind == "flag":
        return {"reason": reason, "verdict": {"type": "boolean"}}
    if criterion.kind == "preference":
        return {"reason": reason, "verdict": {"type": "string", "enum": list(PREFERENCES)}}
    if criterion.kind == "rating":
        return {"reason": reason, "rating": {"type": "integer", "enum": scale}}
    entry = _make_object({"score": {"type": "integer", "enum": scale}, "probability": {"type": "number"}})
    return {"reason": reason, "scores": {"type": "array", "items": entry}}


def _make_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _describe_cause(when: When, rated: Mapping[str, float], *, has_contexts: bool) -> str | None:
    """Why a rule applies, in words; None when it does not."""
    if when.no_contexts:
        return None if has_contexts else "there is no context"
    assert when.criterion is not None
    value = rated[when.criterion]
    if when.at_most is not None:
        return f"{when.criterion} is {value:g}, at most {when.at_most}" if value <= when.at_most else None
    return f"{when.criterion} is {'true' if value else 'false'}" if bool(value) is when.is_true else None
