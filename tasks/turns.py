"""Turns: compare the answer with the earlier turns. One request gives both verdicts.

Of each statement of the answer: does it contradict an earlier turn of the assistant? And of the user's earlier
turns: which points matter for this question (facts, conditions, wishes), and does the answer heed them? The judge lists
these points itself, each with the turn that it comes from.

A question that begins its conversation has nothing before it, and no judge is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect import task

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import list_ranks, parse_object
from evalhouse.tasks.judge.protocol import LEXICAL, JudgeFailed, Question, UnusableReply
from evalhouse.tasks.pipeline.live_run import STEP_OPTIONS, LiveRun, SampleWork, collect_turns, take_shard

_MAX_POINTS = 50


@dataclass(frozen=True, kw_only=True)
class TurnVerdict:
    """A statement of the answer (A1, …) or a point of the user's (U1, …), with the turns that the verdict names."""

    id: str
    text: str
    label: str
    turns: tuple[str, ...]
    reason: str


@task(name="turns", task_run_name="turns shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def turns(run_id: str, shard: int) -> None:
    """Compare the answers of a shard's samples with the turns before them."""
    await take_shard(run_id, shard, judge_turns)


async def judge_turns(live_run: LiveRun, work: SampleWork) -> None:
    """Compare one sample's answer with the turns before it."""
    if "turns" not in live_run.steps:
        return
    extraction = await work.wait_for_statements("answer")
    reason = extraction.reason if work.sample.conversation else "no_conversation"
    if reason is None and live_run.asker.find("turns").judge.name == LEXICAL:
        # Comparing words it finds few contradictions of earlier turns, and names statements that contradict none.
        reason = "judge_not_suited"
    if reason is not None or not work.sample.answer:
        work.note_outcome("turns", reason)
        return
    statements = extraction.items
    before = collect_turns(work.sample, live_run.settings.request_tokens)
    roles = {turn.id: turn.text.partition(":")[0] for turn in before.turns}
    question = Question(
        step="turns",
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["turns"],
        data={
            **before.block,
            "question": work.sample.question,
            "answer": work.sample.answer,
            "answer_statements": statements,
        },
    )
    try:
        reply = await live_run.asker.ask(question, lambda text: read_turns(text, statements, roles))
    except JudgeFailed as error:
        work.note_outcome("turns", error.reason, str(error))
        return
    for verdict in reply.value:
        work.add_row(
            "turn_verdicts",
            statement_id=verdict.id,
            statement=verdict.text,
            label=verdict.label,
            turn_ranks=list_ranks(verdict.turns, "T"),
            reason=verdict.reason,
            call_id=reply.call_id,
        )
    work.note_outcome("turns")


def read_turns(text: str, statements: Sequence[Item], roles: Mapping[str, str]) -> list[TurnVerdict]:
    """Return the verdicts of a reply; raises UnusableReply unless each statement has one and all turns are there."""
    reply = parse_object(text, "statements", "points")
    given = {item.id: item.text for item in statements}
    entries, points = _read_list(reply, "statements"), _read_list(reply, "points")
    ids = [entry.get("id") for entry in entries]
    if sorted(map(str, ids)) != sorted(given):
        raise UnusableReply(
            f"the reply has verdicts for {', '.join(map(str, ids)) or 'none'}; asked: {', '.join(given)}"
        )
    if len(points) > _MAX_POINTS:
        raise UnusableReply(f"the reply lists {len(points)} points; {_MAX_POINTS} are allowed")
    answered = [turn for turn, role in roles.items() if role == "assistant"]
    asked = [turn for turn, role in roles.items() if role == "user"]
    verdicts = []
    for entry in entries:
        named = entry.get("turns")
        if not isinstance(named, list) or not all(turn in answered for turn in named):
            raise UnusableReply(
                f"{entry['id']} names {named!r:.60}; turns of the assistant: {', '.join(answered) or 'none'}"
            )
        label = "contradicts" if named else "consistent"
        reason = _read_words(entry, "reason")
        verdicts.append(
            TurnVerdict(id=entry["id"], text=given[entry["id"]], label=label, turns=tuple(named), reason=reason)
        )
    for place, entry in enumerate(points, start=1):
        turn, heeded = entry.get("id"), entry.get("heeded")
        if turn not in asked or not isinstance(heeded, bool):
            allowed = ", ".join(asked) or "none"
            raise UnusableReply(
                f"point {place} is of {turn!r:.20}, heeded {heeded!r:.20}; turns of the user: {allowed}"
            )
        point, reason = _read_words(entry, "point"), _read_words(entry, "reason")
        label = "heeded" if heeded else "ignored"
        verdicts.append(TurnVerdict(id=f"U{place}", text=point, label=label, turns=(str(turn),), reason=reason))
    return verdicts


def _read_list(reply: Mapping[str, object], name: str) -> list[dict[str, Any]]:
    entries = reply.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UnusableReply(f'the reply had no list of objects under "{name}"')
    return entries


def _read_words(entry: Mapping[str, Any], name: str) -> str:
    text = entry.get(name)
    if not isinstance(text, str) or not text.strip():
        raise UnusableReply(f'a verdict has no text under "{name}"')
    return " ".join(text.split())
