"""Grade: rate a sample by rubrics, each a prompt file with the criteria, their scales and their rules.

One request a rubric gives all its criteria. `grades` keeps both the judge's rating and the one after the rules.
Endpoints without structured output may write `[[7]]` for a rubric of one rating.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from prefect import task

from evalhouse.prompts import BlockValue, Grade, Prompt, Rating, Rubric
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.judge.protocol import (
    MARKED_RATING,
    THINK,
    THOUGHT,
    FatalJudgeError,
    JudgeFailed,
    Question,
    UnusableReply,
)
from evalhouse.tasks.pipeline.live_run import STEP_OPTIONS, LiveRun, SampleWork, collect_turns, take_shard

_RATING_WORD = re.compile(
    r"(?:\A|(?<=[\n.!?;,。！？；，]))[^\S\n]*+[#*_> \t-]*+(?:(?:final|overall|my|the)\s++){0,3}"
    r"(?:rating|score|grade|最终评分|评分|打分|得分)[\s*_]*+(?:is|是|为)?[\s*_:：-]*+\Z",
    re.IGNORECASE,
)
"""The word that announces a rating, before `[[7]]`; it belongs to no reason."""
_WHOLE = re.compile(r"-?[0-9]{1,4}(\.0+)?")
# Models round probabilities; a larger difference from 1 is not rounding.
_SPREAD_SLACK = 0.02
_ROLES = ("authoritative", "supplementary")


@task(name="grade", task_run_name="grade shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def grade(run_id: str, shard: int) -> None:
    """Rate the samples of a shard by the run's rubrics."""
    await take_shard(run_id, shard, grade_sample)


async def grade_sample(live_run: LiveRun, work: SampleWork) -> None:
    """Rate one sample by all rubrics of the run, side by side."""
    await gather_all([grade_by_rubric(live_run, work, prompt) for prompt in live_run.rubrics])


async def grade_by_rubric(live_run: LiveRun, work: SampleWork, prompt: Prompt) -> None:
    """Rate one sample by one rubric, by rule where that needs no judge."""
    rubric, step, sample = prompt.rubric, f"grade_{prompt.name}", work.sample
    assert rubric is not None
    needs = sorted(rubric.needs, key=lambda need: need != "ground_truth")  # without one it does not apply
    missing = next((f"no_{need}" for need in needs if getattr(sample, need) is None), None)
    if missing is not None:
        work.note_outcome(step, missing)
        return
    proof = None
    if prompt.name == "sql_equivalence":  # what can be proved needs no judge
        from evalhouse.tasks.measures.structured_answers import prove_by_running  # noqa: PLC0415  # brings the sandbox

        proof = await prove_by_running(sample, live_run.settings.dataset)
    if proof is not None:
        work.add_grade(rubric.name, proof)
    elif "contexts" in rubric.needs and not sample.contexts:
        # The worst ratings, which a retrieval that found nothing gets where contexts are rated.
        worst = {
            name: Rating(
                reason="no context was retrieved",
                rating=float(criterion.max if criterion.better == "low" else criterion.min),
            )
            for name, criterion in rubric.criteria.items()
        }
        for grade in rubric.settle(worst, has_contexts=False, judged_totals={}):
            work.add_grade(rubric.name, replace(grade, said=None, rule="settled without asking"))
    else:
        try:
            from evalhouse.tasks.measures.expected_ratings import expect_ratings, find_expectable  # noqa: PLC0415

            before = collect_turns(sample, live_run.settings.request_tokens)
            role = sample.metadata.get("contexts_role") or live_run.settings.contexts_role
            if "contexts_role" in prompt.variables and role not in _ROLES:
                raise FatalJudgeError(
                    f"sample {sample.sample_id}, column contexts_role: {str(role)[:40]!r}; it must be "
                    f"{' or '.join(_ROLES)}, or empty for the setting of the run"
                )
            offered: dict[str, BlockValue] = {
                "question": sample.question,
                "answer": sample.answer or "",
                "ground_truth": "\n".join(sample.accepted_answers),
                "contexts": work.context_items,
                "contexts_role": str(role),
                "schema": str(sample.metadata.get("schema") or ""),
                "sql": sample.answer or "",
                "expected_sql": sample.ground_truth or "",
            }
            question = Question(
                step=step,
                sample_id=sample.sample_id,
                prompt=prompt.after(before.turns),
                data={**before.block, **{name: offered[name] for name in prompt.variables}},
                logprobs=live_run.settings.logprobs and bool(find_expectable(rubric)),
            )
            answer = await live_run.asker.ask(question, lambda text: _read_reply(text, rubric))
            reading, ratings = answer.value, answer.value.ratings
            if question.logprobs:
                ratings = expect_ratings(ratings, reading.reply, reading.text, answer.logprobs, rubric)
            for grade in _settle(ratings, reading, rubric, has_contexts=bool(sample.contexts)):
                work.add_grade(rubric.name, grade, answer.call_id)
        except JudgeFailed as error:
            work.note_outcome(step, error.reason, str(error))
            return
    work.note_outcome(step)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """A reply that keeps to its rubric: the text, the object in it, and the rating of each criterion."""

    text: str
    reply: Mapping[str, object]
    ratings: Mapping[str, Rating]


def read_grades(text: str, rubric: Rubric, *, has_contexts: bool) -> list[Grade]:
    """Return the grades of a reply after the rubric's rules; raises UnusableReply for missing or invalid ones."""
    reading = _read_reply(text, rubric)
    return _settle(reading.ratings, reading, rubric, has_contexts=has_contexts)


def _read_reply(text: str, rubric: Rubric) -> _Reading:
    try:
        reply = parse_object(text, next(iter(rubric.criteria)))
    except UnusableReply:
        # A rating as `[[7]]` in plain text: the last one, as models mention ratings before they give one.
        (name, criterion), *others = rubric.criteria.items()
        plain = text.rpartition(THOUGHT)[2]
        marked = list(MARKED_RATING.finditer(plain))
        # Within a JSON object that broke off, or thoughts that did, a marked rating may be a quotation.
        is_broken = THINK in plain or re.search(rf'\{{\s*"{re.escape(name)}"\s*:', plain) is not None
        if others or criterion.kind != "rating" or not marked or is_broken:
            raise UnusableReply(f'the reply held neither a JSON object with "{name}" nor a rating') from None
        last = marked[-1]
        written = last[1].strip()
        words = " ".join((_RATING_WORD.sub("", plain[: last.start()]).strip(), plain[last.end() :].strip())).strip()
        reply = {name: {"reason": words, "rating": int(float(written)) if _WHOLE.fullmatch(written) else written}}
    ratings: dict[str, Rating] = {}
    for name, criterion in rubric.criteria.items():
        entry = reply.get(name)
        if not isinstance(entry, dict):
            raise UnusableReply(f"the reply gave nothing for {name}")
        reason, verdict = entry.get("reason"), entry.get("verdict")
        if not isinstance(reason, str) or not reason.strip():
            raise UnusableReply(f"the reply gave no reason for {name}")
        if criterion.kind == "flag":
            if not isinstance(verdict, bool):
                raise UnusableReply(f"{name} is {verdict!r:.40}, allowed: true, false")
            rating = float(verdict)
        elif criterion.kind == "rating":
            rating = _read_rating(entry.get("rating"), name, minimum=criterion.min, maximum=criterion.max)
        else:
            # The weighted mean of two neighbouring scores; one alone must have all of the probability.
            spread = entry.get("scores")
            if (
                not isinstance(spread, list)
                or not 1 <= len(spread) <= 2
                or not all(isinstance(part, dict) for part in spread)
            ):
                raise UnusableReply(f"{name} needs one or two scores with probabilities")
            scores = sorted(
                _read_rating(part.get("score"), name, minimum=criterion.min, maximum=criterion.max) for part in spread
            )
            if len(scores) == 2 and scores[1] - scores[0] != 1:
                raise UnusableReply(f"{name} has the scores {scores[0]:g} and {scores[1]:g}, which are not neighbours")
            weights = [part.get("probability") for part in spread]
            if not all(_is_number(weight) and 0 <= weight <= 100 for weight in weights):
                raise UnusableReply(f"{name} has the probabilities {weights!r:.60}, allowed: numbers from 0 to 1")
            whole = sum(weights)
            # Shares, or the same in per cent.
            if min(abs(whole - 1), abs(whole / 100 - 1)) > _SPREAD_SLACK:
                raise UnusableReply(f"the probabilities of {name} sum to {whole:g}, not to 1")
            rating = float(sum(float(part["score"]) * part["probability"] for part in spread) / whole)
        ratings[name] = Rating(reason=reason.strip(), rating=rating)
    return _Reading(text=text, reply=reply, ratings=ratings)


def _settle(ratings: Mapping[str, Rating], reading: _Reading, rubric: Rubric, *, has_contexts: bool) -> list[Grade]:
    totals = {name: float(value) for name in rubric.totals if _is_number(value := reading.reply.get(name))}
    return rubric.settle(ratings, has_contexts=has_contexts, judged_totals=totals)


def _read_rating(value: object, name: str, *, minimum: int, maximum: int) -> float:
    if not _is_number(value) or not minimum <= value <= maximum or value != int(value):
        raise UnusableReply(f"{name} is rated {value!r:.40}, allowed: whole numbers from {minimum} to {maximum}")
    return float(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
