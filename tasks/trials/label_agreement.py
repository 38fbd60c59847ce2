"""Agreement with people on labels: support, correctness, relevance and pairs of answers.

The judge is compared with people among each other, earlier judges whose verdicts are in the rows, a naive judge and the
label that people gave most often. The naive judge uses the share of a text's words that another text contains, and
nothing else: if a judge is not clearly better, the set does not distinguish judges. Partly right counts as a no for
labels and is left out where an order is measured (AUC), for it belongs to neither side.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from evalhouse.tasks.comparing.agreement import (
    MIN_EFFECTIVE,
    MIN_LABELS,
    MIN_SAMPLES,
    Labels,
    compute_ndcg,
    weigh_auc,
    weigh_mean,
    weigh_spearman,
)
from evalhouse.tasks.comparing.intervals import Estimate, Groups, average
from evalhouse.tasks.lexical.split import stem_word
from evalhouse.tasks.trials.labelled import AGGREFACT, TIE_WITHIN, Judged, Kind, Part, Row, ScoredLabel

Figure = Literal["accuracy", "balanced_accuracy", "kappa", "f1", "auc", "ndcg", "correlation", "match"]
Figures = Mapping[Figure, Estimate]

JUDGE: Final = "judge"
PEOPLE: Final = "people"
NAIVE: Final = "word count"
MAJORITY: Final = "most frequent label"
NAIVE_FROM: Final = 0.5
"""The share of words from which the naive judge's label is yes."""
_LATIN = re.compile(r"[a-z0-9]+")
_HAN = re.compile(r"[\u3400-\u9fff]+")
# The labels of a kind, yes and no; F1 and AUC measure the first. Pairs have sides.
_LABELS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "support": ("supported", "unsupported"),
    "correctness": ("correct", "incorrect"),
    "relevance": ("useful", "not_useful"),
    "pairwise": ("a", "b", "tie"),
}
# The first words of a single person's or a recorded judge's verdict.
_YES = re.compile(r"\W*(yes|true|correct|supported|useful|right)\b", re.IGNORECASE)
_NO = re.compile(r"\W*(no|false|incorrect|unsupported|partial|not|wrong|useless)\b", re.IGNORECASE)
# Our metrics by the dimension that people rate.
DIMENSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "faithfulness": ("faithfulness",),
    "groundedness": ("faithfulness",),
    "completeness": ("factual_recall",),
    "comprehensiveness": ("factual_recall",),
    "correctness": ("factual_f1", "accuracy"),
    "accuracy": ("factual_f1", "accuracy"),
    "overall": ("factual_f1", "accuracy"),
    "win-rate": ("factual_f1", "accuracy"),
}
_WHO: Final = "published: "


@dataclass(frozen=True, kw_only=True)
class Line:
    """One judge's figures over a set: `who`, of how many decisions, and on how many it gave no verdict.

    `is_own` marks a further line of the judge itself, asked by another plan.
    """

    who: str
    n: int
    n_missing: int
    figures: Figures
    is_own: bool = False


@dataclass(frozen=True, kw_only=True)
class SetAgreement:
    """The agreement on one set in one language; `about` is the measured quantity if a set has several.

    `labels` counts people's labels, `given` are their labels on the judge's decisions.
    """

    part: Part
    n_rows: int
    n_groups: int
    judge: Line
    others: Sequence[Line]
    about: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)
    given: Sequence[str] = ()

    @property
    def notes(self) -> list[str]:
        """The warnings about figures from too few decisions."""
        notes = []
        if self.judge.n < MIN_EFFECTIVE:
            notes.append(f"too few decisions: {self.judge.n} of {MIN_EFFECTIVE}")
        if self.n_groups < MIN_SAMPLES:
            notes.append(f"too few groups: {self.n_groups} of {MIN_SAMPLES}")
        counts = Counter(self.given)
        rare = [f"{label} {count}" for label, count in counts.items() if count < MIN_LABELS]
        if rare:
            notes.append(f"rare labels: {', '.join(rare)}")
        if len(counts) == 1:
            notes.append("people gave one label only: κ and AUC are meaningless")
        return notes


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """People's decision on one item, and a judge's verdict on it."""

    group: str
    question: str
    human: str
    verdict: ScoredLabel | None
    is_partial: bool = False
    grade: float | None = None


def measure_labels(part: Part, judged: Sequence[Judged], *, seed: int) -> SetAgreement:
    """Return the agreement of the judge and of others with people's labels."""
    ours = [decision for decided in judged for decision in _decide(part, decided.row, decided.verdicts)]
    naive = [
        decision for row in part.rows for decision in _decide(part, row, _label_scores(part, score_naively(part, row)))
    ]
    lines = [_measure_line(NAIVE, part, naive, seed)]
    counted = Counter(decision.human for decision in naive)
    if counted:
        majority = counted.most_common(1)[0][0]
        groups = Groups([decision.group for decision in naive], seed=seed)
        share = groups.measure(weigh_mean([float(decision.human == majority) for decision in naive]), is_share=True)
        lines.append(Line(who=f"{MAJORITY} ({majority})", n=len(naive), n_missing=0, figures={"accuracy": share}))
    judged_decisions = [decision for decision in ours if decision.verdict is not None]
    labels = [decision.human for decision in naive]
    if part.kind in ("support", "correctness"):
        labels = [str(row.data["label"]) for row in part.rows]  # with the partly right ones
    return SetAgreement(
        part=part,
        n_rows=len(part.rows),
        n_groups=len({decision.group for decision in judged_decisions}),
        judge=_measure_line(JUDGE, part, ours, seed),
        others=(*_measure_recorded(part, seed), *lines),
        labels=dict(Counter(labels).most_common()),
        given=[decision.human for decision in judged_decisions],
    )


def _decide(part: Part, row: Row, verdicts: Sequence[ScoredLabel]) -> Iterator[_Decision]:
    """Yield people's decisions on a row with a judge's verdicts on them, or None."""
    data = row.data
    if part.kind == "relevance":
        yes, no = _LABELS["relevance"]
        for place, grade in enumerate(row.grades):
            if grade is not None:
                yield _Decision(
                    group=row.group,
                    question=row.id,
                    human=yes if grade > 0 else no,
                    verdict=verdicts[place] if verdicts else None,
                    grade=grade,
                )
        return
    first = verdicts[0] if verdicts else None
    if part.kind == "pairwise":
        # How far b is ahead for people: the mean of their overall ratings, else by the preference.
        overall = _parse_overall(data)
        yield _Decision(
            group=row.group,
            question=row.id,
            human=str(data["preference"]),
            verdict=first,
            grade=float(np.mean(overall)) if overall else {"a": -1.0, "tie": 0.0, "b": 1.0}[str(data["preference"])],
        )
        return
    yes, no = _LABELS[part.kind]
    score = data.get("score")
    yield _Decision(
        group=row.group,
        question=row.id,
        human=yes if data["label"] == yes else no,
        verdict=first,
        is_partial=data["label"] == "partial",
        grade=float(score) if isinstance(score, int | float) else None,
    )


def _parse_overall(data: Mapping[str, Any]) -> list[float]:
    """Return how far each person rates b above a overall."""
    people = data.get("annotators")
    overall = people.get("overall") if isinstance(people, Mapping) else None
    return [float(lead) for lead in overall] if isinstance(overall, list) else []


def _label_scores(part: Part, scores: Sequence[float]) -> list[ScoredLabel]:
    """Return the labels of scores: yes from `NAIVE_FROM`, or the side that is ahead."""
    if part.kind == "pairwise":
        return [
            ScoredLabel(label="tie" if abs(score) < TIE_WITHIN else "b" if score > 0 else "a", score=score)
            for score in scores
        ]
    yes, no = _LABELS[part.kind]
    return [ScoredLabel(label=yes if score >= NAIVE_FROM else no, score=score) for score in scores]


def _measure_line(who: str, part: Part, decisions: Sequence[_Decision], seed: int, *, ranks: bool = True) -> Line:
    """Return a judge's figures; with `ranks` also the figures of the order by its scores."""
    decided = [decision for decision in decisions if decision.verdict is not None]
    groups = Groups([decision.group for decision in decided], seed=seed)
    given = [decision.verdict.label for decision in decided if decision.verdict is not None]
    labels = Labels(names=_LABELS[part.kind], first=given, second=[decision.human for decision in decided])
    figures: dict[Figure, Estimate] = {}
    if decided:
        figures = {
            "accuracy": groups.measure(labels.agree, is_share=True),
            "balanced_accuracy": groups.measure(labels.balance, is_share=True),
            "kappa": groups.measure(labels.kappa),
        }
        if part.kind != "pairwise":
            figures["f1"] = groups.measure(labels.f1)
        if ranks:
            scores = [decision.verdict.score for decision in decided if decision.verdict is not None]
            clear = [place for place, decision in enumerate(decided) if not decision.is_partial]
            if part.kind != "pairwise" and clear:
                positive = [decided[place].human == _LABELS[part.kind][0] for place in clear]
                weighed = weigh_auc([scores[place] for place in clear], positive)
                is_clear = np.array([not decision.is_partial for decision in decided])
                figures["auc"] = groups.pick(is_clear).measure(weighed)
            if part.kind == "relevance":
                by_question: dict[str, list[_Decision]] = {}
                for decision in decided:
                    by_question.setdefault(decision.question, []).append(decision)
                values, names = [], []
                for decisions_on in by_question.values():
                    ranked = [decision.verdict.score for decision in decisions_on if decision.verdict is not None]
                    value = compute_ndcg([decision.grade or 0.0 for decision in decisions_on], ranked)
                    if value is not None:
                        values.append(value)
                        names.append(decisions_on[0].group)
                if values:
                    figures["ndcg"] = Groups(names, seed=seed).measure(weigh_mean(values))
            graded = [decision.grade for decision in decided if decision.grade is not None]
            if len(graded) == len(decided) and len(set(graded)) > 2 and part.kind != "relevance":
                figures["correlation"] = groups.measure(weigh_spearman(scores, graded))
    return Line(who=who, n=len(decided), n_missing=len(decisions) - len(decided), figures=figures)


def _measure_recorded(part: Part, seed: int) -> Iterator[Line]:
    """Yield the figures of people among each other, then of earlier judges in the rows."""
    if part.kind == "relevance":
        return
    answered: list[tuple[Row, list[ScoredLabel]]] = []
    for row in part.rows:
        people = row.data.get("annotators")
        if part.kind == "pairwise":
            verdicts = [
                ScoredLabel(label="tie" if lead == 0 else "b" if lead > 0 else "a", score=lead)
                for lead in _parse_overall(row.data)
            ]
        else:
            given = people if isinstance(people, list) else []
            verdicts = [verdict for person in given for verdict in _parse_verdict(part, person)]
        if len(verdicts) > 1:
            answered.append((row, verdicts))
    if answered:
        groups = Groups([row.group for row, _ in answered], seed=seed)
        # Only the first two: a third one is often asked just where these disagree.
        first, second = ([verdicts[place] for _, verdicts in answered] for place in (0, 1))
        labels = [[verdict.label for verdict in person] for person in (first, second)]
        both = Labels(names=_LABELS[part.kind], first=labels[0], second=labels[1])
        figures: dict[Figure, Estimate] = {
            "accuracy": groups.measure(both.agree, is_share=True),
            "kappa": groups.measure(both.kappa),
        }
        if part.kind == "pairwise":
            leads = [[verdict.score for verdict in person] for person in (first, second)]
            figures["correlation"] = groups.measure(weigh_spearman(leads[0], leads[1]))
        yield Line(who=PEOPLE, n=len(answered), n_missing=len(part.rows) - len(answered), figures=figures)
    recorded: list[dict[str, list[ScoredLabel]]] = []  # by the names of the judges
    for row in part.rows:
        if part.kind == "pairwise":
            judged = {name: rated for name, rated in row.data.items() if name.startswith("judge_")}
            leads_of = {name.removeprefix("judge_"): _parse_lead(rated) for name, rated in judged.items()}
            recorded.append({name: _label_scores(part, lead) for name, lead in leads_of.items()})
        else:
            recorded.append({name: _parse_verdict(part, verdict) for name, verdict in find_judges(row).items()})
    for name in dict.fromkeys(name for verdicts in recorded for name in verdicts):
        decisions = [
            decision
            for row, verdicts in zip(part.rows, recorded, strict=True)
            for decision in _decide(part, row, verdicts.get(name, ()))
        ]
        yield _measure_line(name, part, decisions, seed, ranks=part.kind == "pairwise")


def _parse_verdict(part: Part, verdict: object) -> list[ScoredLabel]:
    """Return a recorded verdict as a label; empty if it is neither a yes nor a no."""
    yes, no = _LABELS[part.kind]
    if isinstance(verdict, bool):
        return [ScoredLabel(label=yes if verdict else no, score=float(verdict))]
    text = str(verdict or "")
    if _NO.match(text):
        return [ScoredLabel(label=no, score=0.0)]
    return [ScoredLabel(label=yes, score=1.0)] if _YES.match(text) else []


def _parse_lead(rated: object) -> list[float]:
    """Return how far a recorded judge rates b above a, by a number a side or the overall one; empty for neither."""
    if not isinstance(rated, Mapping) or not {"a", "b"} <= rated.keys():
        return []
    sides = []
    for side in ("b", "a"):
        value = rated[side]
        if isinstance(value, Mapping):
            value = next((rating for name, rating in value.items() if name.startswith("overall")), None)
        if not isinstance(value, int | float):
            return []
        sides.append(float(value))
    return [sides[0] - sides[1]]


def find_judges(row: Row) -> Mapping[str, Any]:
    """Return the verdicts of earlier judges on a row, by name."""
    judges = row.data.get("llm_judges") or row.data.get("judges")
    return judges if isinstance(judges, Mapping) else {}


def list_words(text: str) -> frozenset[str]:
    """Return the stems of Latin words and numbers, and pairs of Chinese characters."""
    words = {stem_word(word) for word in _LATIN.findall(text.lower())}
    for run in _HAN.findall(text):
        words |= {run[i : i + 2] for i in range(max(len(run) - 1, 1))}
    return frozenset(words)


def share_words(wanted: str, text: str) -> float:
    """Return the share of the words of `wanted` that `text` contains; 0 for no words."""
    words = list_words(wanted)
    return len(words & list_words(text)) / len(words) if words else 0.0


def score_naively(part: Part, row: Row) -> list[float]:
    """Return the naive judge's score of each decision of a row: one, or one a context if contexts are judged.

    The score of an answer is the share of the ground truth's words in it, of a pair how far b is ahead.
    """
    data = row.data
    match part.kind:
        case "support":
            return [max(share_words(str(data["statement"]), text) for text in row.contexts)]
        case "relevance":
            wanted = f"{row.question} {row.ground_truth}"
            return [share_words(wanted, text) for text in row.contexts]
        case "pairwise":
            share_a, share_b = (share_words(row.ground_truth, str(data[name])) for name in ("answer_a", "answer_b"))
            return [share_b - share_a]
        case _:
            return [share_words(row.ground_truth or row.question, str(data.get("answer") or ""))]


def list_unrated(part: Part) -> tuple[str, ...]:
    """Return the dimensions that people rated and no metric measures."""
    if part.kind != "rubric":
        return ()
    rated = dict.fromkeys(name for row in part.rows for name in row.data["scores"])
    return tuple(name for name in rated if name.lower() not in DIMENSIONS)


@dataclass(kw_only=True)
class _Rated:
    """The ratings of each row by people and others, in the same order; NaN for a missing one."""

    groups: list[str] = field(default_factory=list)
    human: list[float] = field(default_factory=list)
    by_person: list[list[float]] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    recorded: dict[str, list[float]] = field(default_factory=dict)

    def correlate(self, who: str, first: Sequence[float], second: Sequence[float], seed: int) -> Line:
        """Return Spearman's ρ over the rows where both gave a number."""
        both = ~(np.isnan(first) | np.isnan(second))
        groups = Groups(self.groups, seed=seed).pick(both)
        figures: Figures = {}
        if both.any():
            weighed = weigh_spearman(np.asarray(first)[both].tolist(), np.asarray(second)[both].tolist())
            figures = {"correlation": groups.measure(weighed)}
        return Line(who=who, n=int(both.sum()), n_missing=int((~both).sum()), figures=figures)


def measure_ratings(part: Part, judged: Sequence[Judged], *, seed: int) -> Iterator[SetAgreement]:
    """Yield the agreement on each dimension that people rated and a metric measures."""
    dimensions = dict.fromkeys(name for row in part.rows for name in row.data["scores"])
    given = {name for result in judged for name in result.values}
    for dimension in dimensions:
        for metric in DIMENSIONS.get(dimension.lower(), ()):
            if metric in given:
                rated = _Rated()
                names = list(dict.fromkeys(name for row in part.rows for name in find_judges(row)))
                for result in judged:
                    people = [float(value) for value in result.row.data["scores"].get(dimension, ())]
                    if not people:
                        continue
                    rated.groups.append(result.row.group)
                    rated.human.append(float(np.mean(people)))
                    rated.by_person.append(people)
                    rated.ours.append(result.values.get(metric, float("nan")))
                    rated.naive.append(score_naively(part, result.row)[0])
                    for name in names:
                        value = find_judges(result.row).get(name)
                        number = float(value) if isinstance(value, int | float) else float("nan")
                        rated.recorded.setdefault(name, []).append(number)
                # Each person with each other, on average.
                most_people = max((len(people) for people in rated.by_person), default=0)
                columns = [
                    [people[place] if place < len(people) else np.nan for people in rated.by_person]
                    for place in range(most_people)
                ]
                lines = [rated.correlate(PEOPLE, first, second, seed) for first, second in combinations(columns, 2)]
                mean = average([line.figures["correlation"] for line in lines if "correlation" in line.figures])
                people_line = []
                if mean is not None:
                    n, n_missing = lines[0].n, lines[0].n_missing
                    people_line = [Line(who=PEOPLE, n=n, n_missing=n_missing, figures={"correlation": mean})]
                others = [
                    *people_line,
                    *(rated.correlate(name, values, rated.human, seed) for name, values in rated.recorded.items()),
                    rated.correlate(NAIVE, rated.naive, rated.human, seed),
                ]
                yield SetAgreement(
                    part=part,
                    about=f"{dimension} by {metric}",
                    n_rows=len(rated.groups),
                    n_groups=len(set(rated.groups)),
                    judge=rated.correlate(JUDGE, rated.ours, rated.human, seed),
                    others=others,
                )


def measure_splits(part: Part, judged: Sequence[Judged], *, seed: int) -> SetAgreement:
    """Return the similarity of the judge's statements to people's, beside that of the unsplit text.

    The similarity of two splits is the F1 of the best one-to-one match, 0 to 1; that of two statements is that of their
    words: 2·common / (words of one + words of the other).
    """
    split = [result for result in judged if result.failure is None]

    def compare(who: str, rows: Sequence[Row], splits: Sequence[Sequence[str]]) -> Line:
        f1s = []
        for row, ours in zip(rows, splits, strict=True):
            theirs = row.data["statements"]
            left, right = ([list_words(statement) for statement in side] for side in (ours, theirs))
            alike = np.array([[2 * len(a & b) / max(len(a) + len(b), 1) for b in right] for a in left])
            matched = alike[linear_sum_assignment(alike, maximize=True)].sum() if ours and theirs else 0.0
            f1s.append(2 * float(matched) / (len(ours) + len(theirs)) if matched else 0.0)
        groups = Groups([row.group for row in rows], seed=seed)
        figures: Figures = {"match": groups.measure(weigh_mean(f1s))} if rows else {}
        return Line(who=who, n=len(rows), n_missing=len(part.rows) - len(rows), figures=figures)

    recorded = [row for row in part.rows if row.data.get("llm_statements")]
    others = [compare("llm_statements", recorded, [row.data["llm_statements"] for row in recorded])] if recorded else []
    others.append(compare("the text unsplit", part.rows, [[str(row.data["text"])] for row in part.rows]))
    counts = {
        "statements by people": sum(len(result.row.data["statements"]) for result in split),
        "statements by the judge": sum(len(result.statements) for result in split),
    }
    return SetAgreement(
        part=part,
        n_rows=len(part.rows),
        n_groups=len({result.row.group for result in split}),
        judge=compare(JUDGE, [result.row for result in split], [result.statements for result in split]),
        others=others,
        labels=counts,
    )


@cache
def load_published() -> Mapping[str, Any]:
    table = tomllib.loads(files("evalhouse.tasks.trials").joinpath("published.toml").read_text(encoding="utf-8"))
    return {name: row for name, row in table.items() if name == AGGREFACT}


def list_published(part: Part) -> list[Line]:
    """Return the published figures on exactly these rows, by judge; none if the rows differ."""
    if part.benchmark is None or not _is_whole(part):
        return []
    return [
        Line(
            who=f"{_WHO}{judge}",
            n=len(part.rows),
            n_missing=0,
            figures={
                "balanced_accuracy": Estimate(value=round(figures[part.name] / 100, 4), draws=np.array([]), n_groups=0)
            },
        )
        for judge, figures in load_published()[part.benchmark]["judges"].items()
    ]


def explain_published(parts: Sequence[Part]) -> list[str]:
    """Return the sources of the published figures beside these parts, and why other parts have none."""
    of_benchmark = [part for part in parts if part.benchmark is not None]
    whole = [part for part in of_benchmark if _is_whole(part)]
    lines = [
        f"Published figures: {load_published()[str(name)]['source']}."
        for name in dict.fromkeys(p.benchmark for p in whole)
    ]
    for part in of_benchmark:
        if part not in whole:
            known = load_published()[str(part.benchmark)]["rows"].get(part.name)
            of = f"all {known:,} test rows of it" if known else "no subset of this name"
            lines.append(f"{part.name}: {len(part.rows):,} rows; published figures are for {of}, and are left out.")
    return lines


def _is_whole(part: Part) -> bool:
    record = load_published()[str(part.benchmark)]
    n_supported = sum(row.data["label"] == "supported" for row in part.rows)
    same_labels = record["supported"].get(part.name, n_supported) == n_supported
    return bool(record["rows"].get(part.name) == len(part.rows) and same_labels and not part.n_left_out)
