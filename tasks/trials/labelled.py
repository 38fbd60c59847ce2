"""Sets of texts that people have labelled, and a judge's verdicts on them by the steps of a run.

A set is a folder with JSON Lines files, each row an object. Its columns show its kind:

- support: `statement`, `contexts`, `label` supported | partial | unsupported. Does any context support the statement?
- correctness: `question`, `ground_truth`, `answer`, `label` correct | partial | incorrect; maybe `score` 0 to 1.
- relevance: `question`, `contexts` with a `grade` each (above 0 is useful), `grade_scale` in words; `ground_truth` may
  be there.
- decomposition: `text`, `statements` as people split it, `source` (who did); `llm_statements`, a model's own split.
- rubric: `question`, `answer`, `scores` {dimension: [a number from each person]}, and the texts that these were judged
  by: `ground_truth`, `contexts`.
- pairwise: `question`, `ground_truth`, `answer_a`, `answer_b`, `preference` a | b | tie.

`contexts` are [{id, text}] or texts. Any row may have `id`, `lang` (en or zh), `group` (rows of one group share a
question or document, and are drawn together), `annotators` (the verdicts of single people: labels, or for pairwise
{dimension: [numbers]}, above 0 for b) and the verdicts of earlier judges: `llm_judges` or `judges` {name: label, text
or number}, `judge_NAME` {a, b} for pairwise. A row with any other label, such as `generic`, is left out.
LLM-AggreFact is read in its own columns.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from evalhouse.prompts import Item
from evalhouse.tasks.asking.pairs import read_score as read_pair_score
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.tasks.extract import extract_answer, extract_ground_truth, extract_statements
from evalhouse.tasks.fused import judge_together
from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.protocol import LEXICAL, LOCAL, RunCancelled
from evalhouse.tasks.lexical.judge import read_score
from evalhouse.tasks.pipeline.live_run import Extraction, LiveRun, SampleWork, make_work
from evalhouse.tasks.rank import rank_contexts
from evalhouse.tasks.reviews.labels import read_objects
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.steps import PLANS, SEPARATE, add_earlier

Kind = Literal["support", "correctness", "relevance", "decomposition", "rubric", "pairwise"]
Half = Literal["choose", "report", "all"]
LANGUAGES: Final = ("en", "zh")
AGGREFACT: Final = "LLM-AggreFact"
_AGGREFACT_COLUMNS: Final = frozenset(("dataset", "doc", "claim", "label"))
_MAX_PROBLEMS = 10


@dataclass(frozen=True, kw_only=True)
class Row:
    """One labelled row; `data` has the columns of its kind, checked."""

    id: str
    group: str
    data: Mapping[str, Any]

    @property
    def question(self) -> str:
        """The row's own, or empty."""
        return str(self.data.get("question") or "")

    @property
    def ground_truth(self) -> str:
        """The row's own, or empty."""
        return str(self.data.get("ground_truth") or "")

    @property
    def contexts(self) -> list[str]:
        """The texts of the contexts, in order."""
        return [context if isinstance(context, str) else context["text"] for context in self.data.get("contexts") or ()]

    @property
    def grades(self) -> list[float | None]:
        """A grade for each context; None if people gave none."""
        return [None if context["grade"] is None else float(context["grade"]) for context in self.data["contexts"]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows of one set in one language. `n_left_out` have a label that is not compared.

    `benchmark` is the public benchmark in whose columns the rows are, if they are.
    """

    name: str
    kind: Kind
    language: str
    rows: tuple[Row, ...]
    n_left_out: int = 0
    benchmark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The sets of the folders; `passed_over` has the columns of each set of an unknown kind."""

    parts: tuple[Part, ...]
    passed_over: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The columns that make a kind with their types, and the allowed labels of its column for them."""

    needs: Mapping[str, str]
    labels: tuple[str, ...] = ()
    label_column: str = "label"


# The types of columns as messages describe them.
_TEXT, _TEXTS = "a text", "a list of texts"
_ANSWER = "a text, empty for no answer"
_CONTEXTS = "a list of texts, or of objects with a text"
_GRADED = "a list of objects with a text and a grade"
_SCORES = "an object that gives each dimension a list of numbers, one a person"
# The first whose columns are all there is the kind of a set.
SHAPES: Final[Mapping[Kind, Shape]] = {
    "support": Shape(
        needs={"statement": _TEXT, "contexts": _CONTEXTS, "label": _TEXT},
        labels=("supported", "partial", "unsupported"),
    ),
    "pairwise": Shape(
        needs={
            "question": _TEXT, "ground_truth": _TEXT, "answer_a": _ANSWER, "answer_b": _ANSWER, "preference": _TEXT,
        },
        labels=("a", "b", "tie"),
        label_column="preference",
    ),
    "relevance": Shape(needs={"question": _TEXT, "contexts": _GRADED, "grade_scale": _TEXT}),
    "decomposition": Shape(needs={"text": _TEXT, "statements": _TEXTS, "source": _TEXT}),
    "rubric": Shape(needs={"question": _TEXT, "answer": _ANSWER, "scores": _SCORES}),
    "correctness": Shape(
        needs={"question": _TEXT, "ground_truth": _TEXT, "answer": _ANSWER, "label": _TEXT},
        labels=("correct", "partial", "incorrect"),
    ),
}  # fmt: skip
_KNOWN_KINDS: Final = "known kinds by their columns: " + "; ".join(
    f"{kind} has {', '.join(shape.needs)}" for kind, shape in SHAPES.items()
)


def find_problem(kind: str, value: object) -> str | None:
    """Return what is wrong with the value of a column of this type; None if nothing is."""

    def is_number(item: object) -> bool:
        return isinstance(item, int | float) and not isinstance(item, bool)

    items = list(value) if isinstance(value, list) else []
    if kind in (_TEXT, _ANSWER):
        fits = isinstance(value, str) and (kind == _ANSWER or bool(value.strip()))
    elif kind == _SCORES:
        rated = list(value.values()) if isinstance(value, Mapping) else []
        fits = bool(rated) and all(isinstance(each, list) and each and all(map(is_number, each)) for each in rated)
    elif kind == _TEXTS:
        fits = bool(items) and all(isinstance(item, str) and item.strip() for item in items)
    else:
        texts = [item.get("text") if isinstance(item, Mapping) else item for item in items]
        fits = bool(items) and all(isinstance(text, str) for text in texts)
        if fits and kind == _GRADED:
            grades = [item.get("grade", "nothing") if isinstance(item, Mapping) else "nothing" for item in items]
            wrong = [grade for grade in grades if grade is not None and not is_number(grade)]
            return f"has the grade {wrong[0]!r:.40}, allowed: a number, null for none" if wrong else None
        kind = _CONTEXTS
    return None if fits else f"is {value!r:.40}, allowed: {kind}"


def read_labelled(folders: Sequence[Path], *, language: str | None = None) -> Labelled:
    """Return the sets in these folders, by language; raises DatasetError for one that cannot be read.

    A folder with JSON Lines files is a set, any other is one of sets. In a folder of sets other kinds are passed over;
    a set that is named itself has to fit. With `language` only its rows are taken; a row without `lang` is in it, or in
    English.
    """
    parts: list[Part] = []
    passed_over: list[str] = []
    for folder in folders:
        for name, path, files in _find_sets(folder):
            outcome = _read_set(name, path, files, language)
            if isinstance(outcome, str) and path == folder:  # the user named this very set, and not a folder of sets
                raise DatasetError(f"{path}: {outcome}; {_KNOWN_KINDS}")
            if isinstance(outcome, str):
                passed_over.append(f"{name} ({outcome})")
            else:
                parts += outcome
    if not parts:
        of_language = f" in {language}" if language and not passed_over else ""
        others = f"; passed over: {'; '.join(passed_over)}" if passed_over else ""
        names = ", ".join(map(str, folders))
        raise DatasetError(f"{names} holds no labelled set{of_language}{others}; {_KNOWN_KINDS}")
    counted = Counter((part.name, part.language) for part in parts)
    twice = next((name for (name, _), n in counted.items() if n > 1), None)
    if twice is not None:
        raise DatasetError(
            f"two sets are called {twice}; rename the folder of one, so that their figures can be distinguished"
        )
    return Labelled(parts=tuple(parts), passed_over=tuple(passed_over))


def pick_half(group: str) -> Half:
    """Return `choose` or `report`, by hash: rows of one group are in the same half, in all sets."""
    return "report" if hashlib.sha256(group.encode()).digest()[-1] % 2 else "choose"


def pick_rows(part: Part, *, half: Half, limit: int | None, seed: int) -> Part:
    """Return a half of the rows, or `limit` of these drawn by hash, so that the same seed gives the same rows."""
    rows = [row for row in part.rows if half in ("all", pick_half(row.group))]
    if limit is not None:
        drawn = sorted(rows, key=lambda row: hashlib.sha256(f"{seed}/{row.id}".encode()).digest())[:limit]
        drawn_ids = {row.id for row in drawn}
        rows = [row for row in rows if row.id in drawn_ids]
    return replace(part, rows=tuple(rows))


def _find_sets(folder: Path) -> Iterator[tuple[str, Path, Sequence[Path]]]:
    """Yield the name, path and files of each set in a folder, or of the one set that the path itself is."""
    if folder.is_file():
        name = folder.parent.name if folder.stem == "dev" else folder.stem
        yield name or folder.stem, folder, (folder,)
        return
    if not folder.is_dir():
        raise DatasetError(f"{folder} does not exist; give a folder of sets, or a set itself")
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        files = sorted(path for path in place.iterdir() if path.suffix == ".jsonl" and path.is_file())
        if files and place is folder:
            yield folder.resolve().name, folder, files
            return
        if files:
            yield place.name, place, files


def _read_set(name: str, folder: Path, files: Sequence[Path], language: str | None) -> list[Part] | str:
    """Return the parts of a set, or its columns in words if these do not make a kind; raises DatasetError."""
    lines: dict[str, Mapping[str, Any]] = {}  # by their place
    for path in files:
        with path.open("rb") as opened:
            for number, row in read_objects(opened):
                if isinstance(row, str):
                    raise DatasetError(f"{path}, line {number}: {row}; one object a line")
                lines[f"{path.name} line {number}"] = row
    if not lines:
        return "no rows"
    columns = next(iter(lines.values())).keys()
    if columns >= _AGGREFACT_COLUMNS:
        # A part for each of LLM-AggreFact's subsets; claims about one document are a group.
        subsets: dict[str, list[Row]] = {}
        for place, value in lines.items() if language in (None, "en") else ():
            subset, doc, claim, label = (value.get(name) for name in ("dataset", "doc", "claim", "label"))
            if any(find_problem(_TEXT, text) for text in (subset, doc, claim)) or label not in (0, 1):
                raise DatasetError(f"{place}: {AGGREFACT} has texts in dataset, doc and claim, and the label 0 or 1")
            data = {"statement": claim, "contexts": [doc], "label": "supported" if label else "unsupported"}
            group = hashlib.sha256(str(doc).encode()).hexdigest()[:12]
            subsets.setdefault(str(subset), []).append(Row(id=place, group=group, data=data))
        return [
            Part(name=subset, kind="support", language="en", rows=tuple(of_subset), benchmark=AGGREFACT)
            for subset, of_subset in subsets.items()
        ]
    kind = next((kind for kind, shape in SHAPES.items() if shape.needs.keys() <= columns), None)
    if kind is None:
        return f"columns {', '.join(sorted(columns))}"
    shape, ids, problems = SHAPES[kind], set[str](), list[str]()
    rows: dict[str, list[Row]] = {}
    left_out: Counter[str] = Counter()
    for place, value in lines.items():
        wrong = [f"{column} {problem}" for column, need in shape.needs.items()
                 if (problem := find_problem(need, value.get(column)))]  # fmt: skip
        spoken = value.get("lang") or language or "en"
        if spoken not in LANGUAGES:
            wrong.append(f"lang is {spoken!r:.40}, allowed: {', '.join(LANGUAGES)}")
        row_id = str(value.get("id") or place)
        if row_id in ids:
            wrong.append(f"id {row_id!r:.60} came before; ids differ within a set")
        if wrong:
            problems.append(f"{place}: {', '.join(wrong)}")
            continue
        ids.add(row_id)
        of_language = rows.setdefault(spoken, [])
        if shape.labels and value[shape.label_column] not in shape.labels:
            left_out[spoken] += 1
        else:
            of_language.append(Row(id=row_id, group=str(value.get("group") or row_id), data=value))
    if problems:
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        shown = "; ".join(problems[:_MAX_PROBLEMS])
        raise DatasetError(f"{folder}, taken for {kind}: {shown}{more}")
    return [
        Part(name=name, kind=kind, language=spoken, rows=tuple(of_language), n_left_out=left_out[spoken])
        for spoken, of_language in sorted(rows.items())
        if language in (None, spoken)
    ]


# --- a judge's verdicts
#
# The steps of a run over the rows, with the requests that a run would send. A row of support comes with its statement,
# so nothing is split; a row of correctness or pairwise is split and classified as an answer is in a run. The verdicts
# become:
#
# - support: supported by any context.
# - correctness: the metric statement_recall, the share of the ground truth's statements that the answer states, correct
#   from 0.5. People call an answer correct for its agreement with the truth, however much it adds.
# - relevance: useful, for each context.
# - pairwise: the answer with the higher F1 of its statements and the truth's, a tie within 0.05.
# - rubric: the metrics faithfulness, factual_recall, factual_f1, and the rating of `accuracy` by a model.
# - decomposition: the statements.
#
# Labels decide. Rows are ordered by the judge's own scores where it gives some, as the lexical judge and classifiers
# do, else by 1 for yes and 0 for no.

CORRECT_FROM: Final = 0.5
TIE_WITHIN: Final = 0.05
_AT_ONCE = 64
_NOT_THERE = ("no_contexts", "no_statements")

STEPS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "support": ("attribute_answer",),
    "correctness": ("extract_answer", "extract_ground_truth", "classify"),
    "relevance": ("rank",),
    "decomposition": ("extract_answer",),
    "rubric": ("extract_answer", "extract_ground_truth", "classify", "attribute_answer"),
    "pairwise": ("extract_answer", "extract_ground_truth", "classify"),
}
GRADED_BY: Final = "accuracy"
"""The rubric by which a model rates rows of kind rubric."""
_JOINED: Final = {classify_statements: "classify", attribute_statements: "attribute_answer", rank_contexts: "rank"}
"""The steps that a plan may join into one request, with the names of their verdicts."""
_Step = Callable[[LiveRun, SampleWork], Awaitable[None]]
# Judges with scores in their reasons.
_SCORE_PARSERS: Final[Mapping[str, Callable[[str], float | None]]] = {LEXICAL: read_score, LOCAL: read_pair_score}


def list_steps(kind: Kind, plan: str) -> frozenset[str]:
    """Return the steps of a kind; of a plan that joins some of them all joined ones, as a run would ask."""
    if plan == SEPARATE or kind == "decomposition":
        return frozenset(STEPS[kind])
    return add_earlier((*STEPS[kind], *PLANS[plan].joins))


@dataclass(frozen=True, kw_only=True)
class ScoredLabel:
    """One verdict: a label and a number that orders rows by it."""

    label: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A judge's verdicts on a row; `failure` is why it has none.

    `verdicts` has one entry, for relevance one a context; `values` are the metrics of a row of kind rubric.
    """

    row: Row
    verdicts: tuple[ScoredLabel, ...] = ()
    statements: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


class _NoVerdict(Exception):
    """A step gave no verdict; states why."""


_Judge = Callable[[LiveRun, str, Row], Awaitable[Judged]]


async def judge_part(live_run: LiveRun, part: Part, note_done: Callable[[], None]) -> list[Judged]:
    """Return the verdicts of the live run's judge on all rows, in their order; `note_done` is called after each.

    A row that was given up states why. When the run is cancelled, the rows until then are returned with their verdicts
    and the others with that failure; any other FatalJudgeError is raised.
    """
    free = asyncio.Semaphore(max(_AT_ONCE, 2 * live_run.settings.concurrency))
    judge = _JUDGES[part.kind]

    async def take(row: Row) -> Judged:
        async with free:
            try:
                judged = await judge(live_run, f"{part.name}/{row.id}", row)
            except (_NoVerdict, RunCancelled) as error:
                return Judged(row=row, failure=str(error))
            note_done()
            return judged

    results = await asyncio.gather(*map(take, part.rows), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Judged)]


async def judge_support(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    work = _make_sample(sample_id, row, ground_truth=row.ground_truth or None)
    statement = Item(id="A1", text=str(row.data["statement"]))
    work.hand_over("answer", Extraction(items=(statement,)))
    await _run_steps(live_run, work, (attribute_statements,))
    (verdict,) = [verdict for verdict in work.rows["attributions"] if verdict["statement_id"] == statement.id]
    label = "supported" if verdict["supported"] else "unsupported"
    return Judged(
        row=row,
        verdicts=(ScoredLabel(label=label, score=_score(live_run, "attribute", verdict, yes=label == "supported")),),
    )


async def judge_relevance(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    work = _make_sample(sample_id, row, ground_truth=row.ground_truth)
    await _run_steps(live_run, work, (rank_contexts,))
    verdicts = [
        ScoredLabel(
            label="useful" if verdict["useful"] else "not_useful",
            score=_score(live_run, "rank", verdict, yes=bool(verdict["useful"])),
        )
        for verdict in work.rows["context_verdicts"]
    ]
    return Judged(row=row, verdicts=tuple(verdicts))


async def judge_correctness(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    compared = await _compare(live_run, sample_id, row, str(row.data["answer"]))
    label = "correct" if _mean(compared.stated) >= CORRECT_FROM else "incorrect"
    return Judged(row=row, verdicts=(ScoredLabel(label=label, score=_mean(compared.scores["G"])),))


async def judge_pair(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    answers = {side: str(row.data[f"answer_{side}"]) for side in "ab"}
    of_a, of_b = await asyncio.gather(
        *(_compare(live_run, f"{sample_id}/{side}", row, text) for side, text in answers.items())
    )
    # Of two long answers the labels alone are often equal.
    ahead = of_b.f1_by_scores - of_a.f1_by_scores
    label = "tie" if abs(ahead) < TIE_WITHIN else "b" if ahead > 0 else "a"
    return Judged(row=row, verdicts=(ScoredLabel(label=label, score=ahead),))


async def judge_split(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    work = _make_sample(sample_id, row, answer=str(row.data["text"]))
    await _run_steps(live_run, work, (extract_answer,))
    return Judged(row=row, statements=tuple(str(statement["text"]) for statement in work.rows["statements"]))


async def judge_rated(live_run: LiveRun, sample_id: str, row: Row) -> Judged:
    """Return the metrics of a rated row; a metric is left out if the row has no ground truth or contexts for it."""
    answer, truth = str(row.data["answer"]), row.ground_truth or None
    if not answer.strip():
        return Judged(row=row, failure="the answer is missing")
    work = _make_sample(sample_id, row, answer=answer, ground_truth=truth)
    splits, others = [extract_answer], [attribute_statements]
    if truth is not None:
        splits.append(extract_ground_truth)
        others += [classify_statements, grade_sample]
    # A step for which the row has no texts does not count as a failure of the judge.
    await _run_steps(live_run, work, splits, forgives=_NOT_THERE)
    await _run_steps(live_run, work, others, forgives=_NOT_THERE)
    # factual_recall and factual_f1, as the warehouse computes them.
    labels = [(str(entry["statement_id"])[0], entry["label"]) for entry in work.rows["classifications"]]
    right, wrong, missed = (labels.count(entry) for entry in (("A", "TP"), ("A", "FP"), ("G", "FN")))
    values = {}
    if right + missed:
        values["factual_recall"] = right / (right + missed)
    if right + wrong + missed:
        values["factual_f1"] = right / (right + 0.5 * (wrong + missed))
    of_answer = [verdict for verdict in work.rows["attributions"] if str(verdict["statement_id"]).startswith("A")]
    if of_answer:
        values["faithfulness"] = _mean([float(bool(verdict["supported"])) for verdict in of_answer])
    for grade in work.rows["grades"]:
        rating, scale_max = grade["rating"], grade["scale_max"]
        assert isinstance(rating, int | float)
        assert isinstance(scale_max, int | float)
        values[GRADED_BY] = rating / scale_max
    return Judged(row=row, values=values)


_JUDGES: Mapping[Kind, _Judge] = {
    "support": judge_support,
    "correctness": judge_correctness,
    "relevance": judge_relevance,
    "decomposition": judge_split,
    "rubric": judge_rated,
    "pairwise": judge_pair,
}


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """An answer compared with the ground truth: which statements of the truth it states, and the judge's scores of the
    answer's statements (A) and of the truth's (G). All are empty for an empty answer."""

    stated: Sequence[float] = ()
    scores: Mapping[str, Sequence[float]] = field(default_factory=lambda: {"A": [], "G": []})

    @property
    def f1_by_scores(self) -> float:
        """The F1 of the means of both sides."""
        precision, recall = _mean(self.scores["A"]), _mean(self.scores["G"])
        return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


async def _compare(live_run: LiveRun, sample_id: str, row: Row, answer: str) -> _Compared:
    if not answer.strip():
        return _Compared()
    work = _make_sample(sample_id, row, answer=answer, ground_truth=row.ground_truth)
    await _run_steps(live_run, work, (extract_answer, extract_ground_truth))
    await _run_steps(live_run, work, (classify_statements,))
    stated: list[float] = []
    scores: dict[str, list[float]] = {"A": [], "G": []}
    for verdict in work.rows["classifications"]:
        side, is_right = str(verdict["statement_id"])[0], verdict["label"] == "TP"
        scores[side].append(_score(live_run, "classify", verdict, yes=is_right))
        if side == "G":
            stated.append(float(is_right))
    return _Compared(stated=stated, scores=scores)


def _make_sample(sample_id: str, row: Row, *, answer: str | None = None, ground_truth: str | None = None) -> SampleWork:
    return make_work(
        StoredSample(
            ordinal=0,
            sample_id=sample_id,
            input_hash="",
            question=row.question,
            answer=answer,
            ground_truth=ground_truth,
            # People who labelled without contexts did not see a retrieval, whether the row has an empty list or none.
            contexts=row.contexts or None,
            context_ids=None,
            reference_context_ids=None,
        )
    )


async def _run_steps(
    live_run: LiveRun, work: SampleWork, steps: Sequence[_Step], *, forgives: Sequence[str] = ()
) -> None:
    """Run independent steps side by side; raises _NoVerdict when one gave no verdict.

    A plan that joins steps asks everything that the row has texts for in one request; the other verdicts do not count.
    """
    joined = [step for step in steps if step in _JOINED] if live_run.settings.plan != SEPARATE else []
    passed_over: set[str] = set()
    if joined:
        for source, extraction in work.extractions.items():
            if not extraction.done() and not (work.sample.answer if source == "answer" else work.sample.ground_truth):
                work.hand_over(source, Extraction(reason=f"no_{source}"))
        await extract_statements(live_run, work)
        passed_over = set(PLANS[live_run.settings.plan].joins) - {_JOINED[step] for step in joined}
        steps = [*(step for step in steps if step not in _JOINED), partial(judge_together, least=1)]
    results = await asyncio.gather(*(step(live_run, work) for step in steps), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    for outcome in work.rows["outcomes"]:
        is_counted = outcome["step"] not in passed_over and outcome["reason"] not in (None, *forgives)
        if is_counted:
            raise _NoVerdict(str(outcome["detail"] or outcome["reason"]))


def _score(live_run: LiveRun, step: str, verdict: Mapping[str, Any], *, yes: bool) -> float:
    """Return the judge's score of a verdict, or 1 and 0 if it gives none."""
    read = _SCORE_PARSERS.get(live_run.asker.find(step).judge.name.partition(":")[0])
    score = read(str(verdict["reason"])) if read else None
    return float(yes) if score is None else score


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
