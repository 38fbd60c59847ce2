"""Grade: rate a sample by rubrics, each a prompt file that says what is judged, on which scale and by which rules.

One request a rubric gives all its criteria. What the judge said and what the rules made of it are both kept, in
`grades`. Endpoints without structured output may write `[[7]]` for a rubric of one rating.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from prefect import task

from evalhouse.prompts import BlockValue, Grade, Prompt, Rating, Rubric
from evalhouse.tasks.asking.asker import Answer
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.judge.errors import FatalJudgeError, JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.measures.expected_ratings import expect_ratings, find_expectable
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleWork, collect_turns
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard
from evalhouse.tasks.pipeline.sql_results import prove_by_running
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.samples import StoredSample

_MARKED = re.compile(r"\[\[([^\[\]]*)\]\]")
_WHOLE = re.compile(r"-?[0-9]{1,4}(\.0+)?")
_THINK, _THOUGHT = "<think>", "</think>"
# Models round probabilities; more than this is no rounding.
_SPREAD_SLACK = 0.02
_ROLES = ("authoritative", "supplementary")

# What can be proved needs no judge.
_PROOFS: dict[str, Callable[[StoredSample], Awaitable[Grade | None]]] = {"sql_equivalence": prove_by_running}


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """A reply that keeps to its rubric: the text, the object in it, and the rating of each criterion."""

    text: str
    reply: Mapping[str, object]
    ratings: Mapping[str, Rating]


async def grade_sample(live_run: LiveRun, work: SampleWork) -> None:
    """Rate one sample by all rubrics of the run, side by side."""
    await gather_all([_grade_by(live_run, work, prompt) for prompt in live_run.rubrics])


@task(name="grade", task_run_name="grade shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def grade(run_id: str, shard: int) -> None:
    """Rate the samples of a shard by the run's rubrics."""
    await take_shard(run_id, shard, grade_sample)


async def _grade_by(live_run: LiveRun, work: SampleWork, prompt: Prompt) -> None:
    rubric, step = prompt.rubric, f"grade_{prompt.name}"
    assert rubric is not None
    rated = _pick_texts(work.sample, rubric)
    reason, detail = next((f"no_{need}" for need, name in rated.items() if name is None), None), None
    proof = await _PROOFS[prompt.name](work.sample) if reason is None and prompt.name in _PROOFS else None
    if proof is not None:
        work.add_grade(rubric.name, proof)
    elif reason is None and not getattr(work.sample, rated.get("contexts") or "question"):
        for given in _grade_nothing(rubric, rated):
            work.add_grade(rubric.name, given)
    elif reason is None:
        try:
            answer = await _ask_grades(live_run, work, prompt, rubric, rated)
            for given in answer.value:
                work.add_grade(rubric.name, given, answer.call_id)
        except JudgeFailed as error:
            reason, detail = error.reason, str(error)
    work.note_outcome(step, reason, detail)


def _pick_texts(sample: StoredSample, rubric: Rubric) -> dict[str, str | None]:
    """By text that the rubric needs the one that is rated: itself, what stands in for it, or None without either."""
    return {
        first: next((name for name in (first, *others) if getattr(sample, name) is not None), None)
        for first, *others in rubric.needs
    }


def _grade_nothing(rubric: Rubric, rated: Mapping[str, str | None]) -> list[Grade]:
    """What a retrieval that found nothing gets where contexts are what is rated: the worst ratings, by rule."""
    reason = "no context was retrieved" if rated["contexts"] == "contexts" else "the answer is empty"
    worst = {
        name: Rating(reason=reason, rating=float(criterion.min if criterion.better == "high" else criterion.max))
        for name, criterion in rubric.criteria.items()
    }
    grades = rubric.settle(worst, has_contexts=False, totals_said={})
    return [replace(grade, said=None, rule="settled without asking") for grade in grades]


async def _ask_grades(
    live_run: LiveRun, work: SampleWork, prompt: Prompt, rubric: Rubric, rated: Mapping[str, str | None]
) -> Answer[list[Grade]]:
    def read(text: str) -> _Reading:
        return _read_reply(text, rubric)

    before = collect_turns(work.sample, live_run.settings.request_tokens)
    question = Question(
        step=f"grade_{prompt.name}",
        sample_id=work.sample.sample_id,
        prompt=prompt.after(before.turns),
        data={**before.block, **_build_data(live_run, work, prompt, rated)},
        logprobs=live_run.settings.logprobs and bool(find_expectable(rubric)),
    )
    answer = await live_run.asker.ask(question, read)
    reading = answer.value
    ratings = reading.ratings
    if question.logprobs:
        ratings = expect_ratings(ratings, reading.reply, reading.text, answer.logprobs, rubric)
    grades = _settle(ratings, reading, rubric, has_contexts=bool(work.sample.contexts))
    return Answer(call_id=answer.call_id, value=_note_stand_ins(grades, rated))


def _note_stand_ins(grades: list[Grade], rated: Mapping[str, str | None]) -> list[Grade]:
    notes = [f"{name} rated in place of {need}" for need, name in rated.items() if name != need]
    if not notes:
        return grades
    return [replace(grade, rule="; ".join([*notes, *([grade.rule] if grade.rule else [])])) for grade in grades]


def _build_data(
    live_run: LiveRun, work: SampleWork, prompt: Prompt, rated: Mapping[str, str | None]
) -> Mapping[str, BlockValue]:
    """The blocks a rubric declares, from the sample. What the sample lacks is empty, and so is what only stands in."""
    sample, metadata = work.sample, work.sample.metadata
    offered: dict[str, BlockValue] = {
        "question": sample.question,
        "answer": sample.answer or "",
        "ground_truth": "\n".join(sample.accepted_answers),
        "contexts": work.context_items,
        "contexts_role": _find_role(sample, live_run.settings) if "contexts_role" in prompt.variables else "",
        "schema": str(metadata.get("schema") or ""),
        "sql": sample.answer or "",
        "expected_sql": sample.ground_truth or "",
    }
    assert prompt.rubric is not None
    spare = {name for names in prompt.rubric.needs for name in names} - set(rated.values())
    return {name: ([] if name == "contexts" else "") if name in spare else offered[name] for name in prompt.variables}


def _find_role(sample: StoredSample, settings: RunSettings) -> str:
    """What the sample says of its contexts, else the run; raises FatalJudgeError for a word that is neither."""
    role = sample.metadata.get("contexts_role") or settings.contexts_role
    if role not in _ROLES:
        raise FatalJudgeError(
            f"sample {sample.sample_id}, column contexts_role: {str(role)[:40]!r}; it must be {' or '.join(_ROLES)}, "
            "or empty for the setting of the run"
        )
    return str(role)


def read_grades(text: str, rubric: Rubric, *, has_contexts: bool) -> list[Grade]:
    """The grades of a reply after the rubric's rules; raises UnusableReply for what is missing or off its scale."""
    reading = _read_reply(text, rubric)
    return _settle(reading.ratings, reading, rubric, has_contexts=has_contexts)


def _read_reply(text: str, rubric: Rubric) -> _Reading:
    try:
        reply = parse_object(text, next(iter(rubric.criteria)))
    except UnusableReply:
        reply = _read_marked(text, rubric)
    ratings = {name: _read_criterion(reply.get(name), name, rubric) for name in rubric.criteria}
    return _Reading(text=text, reply=reply, ratings=ratings)


def _settle(ratings: Mapping[str, Rating], reading: _Reading, rubric: Rubric, *, has_contexts: bool) -> list[Grade]:
    totals = {name: float(value) for name in rubric.totals if _is_number(value := reading.reply.get(name))}
    return rubric.settle(ratings, has_contexts=has_contexts, totals_said=totals)


def _read_marked(text: str, rubric: Rubric) -> dict[str, object]:
    """A rating as `[[7]]` in plain text: the last one counts, for models speak of ratings before they give theirs."""
    (name, criterion), *others = rubric.criteria.items()
    text = text.rpartition(_THOUGHT)[2]
    marked = list(_MARKED.finditer(text))
    # Within a JSON object that broke off, or thoughts that did, what is marked may be a quotation.
    is_broken = _THINK in text or re.search(rf'\{{\s*"{re.escape(name)}"\s*:', text) is not None
    if others or criterion.kind != "rating" or not marked or is_broken:
        raise UnusableReply(f'the reply held neither a JSON object with "{name}" nor a rating')
    last = marked[-1]
    given = last[1].strip()
    reason = (text[: last.start()] + text[last.end() :]).strip()
    return {name: {"reason": reason, "rating": int(float(given)) if _WHOLE.fullmatch(given) else given}}


def _read_criterion(entry: object, name: str, rubric: Rubric) -> Rating:
    criterion = rubric.criteria[name]
    if not isinstance(entry, dict):
        raise UnusableReply(f"the reply gave nothing for {name}")
    reason = entry.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise UnusableReply(f"the reply gave no reason for {name}")
    if criterion.kind == "flag":
        rating = _read_flag(entry.get("verdict"), name)
    elif criterion.kind == "rating":
        rating = _read_rating(entry.get("rating"), name, least=criterion.min, most=criterion.max)
    else:
        rating = _read_spread(entry.get("scores"), name, least=criterion.min, most=criterion.max)
    return Rating(reason=reason.strip(), rating=rating)


def _read_flag(value: object, name: str) -> float:
    if not isinstance(value, bool):
        raise UnusableReply(f"{name} is {value!r:.40}, allowed: true, false")
    return float(value)


def _read_rating(value: object, name: str, *, least: int, most: int) -> float:
    if not _is_number(value) or not least <= value <= most or value != int(value):
        raise UnusableReply(f"{name} is rated {value!r:.40}, allowed: whole numbers from {least} to {most}")
    return float(value)


def _read_spread(entries: object, name: str, *, least: int, most: int) -> float:
    """The weighted mean of two neighbouring scores; one alone must have all of the probability."""
    if (
        not isinstance(entries, list)
        or not 1 <= len(entries) <= 2
        or not all(isinstance(entry, dict) for entry in entries)
    ):
        raise UnusableReply(f"{name} needs one or two scores with probabilities")
    scores = sorted(_read_rating(entry.get("score"), name, least=least, most=most) for entry in entries)
    if len(scores) == 2 and scores[1] - scores[0] != 1:
        raise UnusableReply(f"{name} has the scores {scores[0]:g} and {scores[1]:g}, which are not neighbours")
    weights = [entry.get("probability") for entry in entries]
    if not all(_is_number(weight) and 0 <= weight <= 1 for weight in weights):
        raise UnusableReply(f"{name} has the probabilities {weights!r:.60}, allowed: numbers from 0 to 1")
    whole = sum(weights)
    if abs(whole - 1) > _SPREAD_SLACK:
        raise UnusableReply(f"the probabilities of {name} sum to {whole:g}, not to 1")
    return float(sum(float(entry["score"]) * entry["probability"] for entry in entries) / whole)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
