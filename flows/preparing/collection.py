"""What a run needs to ask the application under test, or to do without: made and checked before anything is asked."""

from typing import TYPE_CHECKING

from evalhouse.tasks.targets.collection import (
    Collection,
    KnownResponses,
    ParentResponses,
    Pose,
    ReadSamples,
    find_unaffected,
    group_turns,
    list_missing,
    pose_question,
    read_own_samples,
    refuse_missing,
)
from evalhouse.tasks.targets.protocol import FirstQuestions, Target
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.rows.calls import count_responses, list_open_samples
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

_IGNORED = "The dataset brings answers or contexts for {} of its {} samples; the target is asked, and they are ignored."
_NOT_ANNOUNCED = "No changed documents were announced to this run, so every question is asked."


def make_collection(
    live_run: "LiveRun",
    run: RunRow,
    target: Target | None,
    parent: RunRow | None,
    *,
    known: KnownResponses | None = None,
    pose: Pose = pose_question,
) -> Collection | None:
    """Return what brings the run's responses; None when its dataset has the answers.

    `known` responses are taken in place of those that the settings name; `pose` makes the question of a sample.
    Raises FatalJudgeError when they are to be taken from a run that lacks some.
    """
    if target is None and parent is None:
        return None
    size, settings, warehouse = live_run.settings.shard_size, live_run.settings.target, live_run.warehouse
    of_parent = None if parent is None else find_parent_responses(warehouse, parent)
    responses = known or of_parent
    if responses is None and live_run.settings.only_affected and settings is not None:
        responses = find_unaffected(warehouse, run, settings)
        if responses is None and not live_run.resumed:
            live_run.notices.append(_NOT_ANNOUNCED)
    read: ReadSamples
    if live_run.staged is not None:
        read, n_samples = live_run.staged.staging.read_between, live_run.staged.n_samples
        numbers = list(range(-(-n_samples // size)))
        if target is not None and live_run.staged.n_answered:
            live_run.notices.append(_IGNORED.format(live_run.staged.n_answered, n_samples))
        if isinstance(responses, ParentResponses):
            missing: list[str] = []
            for first in range(1, n_samples + 1, size):
                missing += list_missing(responses, read(first, first + size - 1))
            if missing:
                raise refuse_missing(responses.parent, len(missing), missing[0], n_samples)
    else:
        # Whole shards, in which samples that have their response are skipped.
        read = read_own_samples(warehouse, run.run_id)
        numbers = sorted({(ordinal - 1) // size for ordinal in list_open_samples(warehouse, run.run_id)})
        n_samples = sum(min(size, (run.n_samples or 0) - number * size) for number in numbers)
    conversations = None
    # Where the answers that come, or those of the run that is judged again, are the history of later turns.
    if of_parent.own if of_parent is not None else settings is not None and settings.history == "own":
        n_in_all = live_run.staged.n_samples if live_run.staged is not None else run.n_samples or 0
        conversations = group_turns(read, n_in_all, size)
        shard_of = {ordinal: (held[0] - 1) // size for held in conversations for ordinal in held}
        if live_run.staged is None:
            # A conversation continues in the shard in which it began.
            open_samples = list_open_samples(warehouse, run.run_id)
            numbers = sorted({shard_of[ordinal] for ordinal in open_samples})
            n_samples = sum(len(held) for held in conversations if shard_of[held[0]] in set(numbers))
    counted = count_responses(warehouse, run.run_id) if live_run.resumed else {"n_ok": 0}
    return Collection(
        run_id=run.run_id,
        warehouse=warehouse,
        target=target,
        known=responses,
        record=Mover(warehouse, "responses"),
        read_samples=read,
        numbers=numbers,
        n_samples=n_samples,
        conversations=conversations,
        concurrency=settings.concurrency if settings else 1,
        pose=pose,
        first=FirstQuestions() if settings and settings.stop_early else None,
        is_resumed=live_run.resumed,
        has_answers=counted["n_ok"] > 0,
    )


def find_parent_responses(warehouse: Warehouse, parent: RunRow) -> ParentResponses:
    """Return the responses of a run that are taken in the place of those to come.

    Their history is the one with which they were asked for, by that run or by the one it took them from.
    """
    asked = parent
    while asked.config.get("responses"):
        asked = find_run(warehouse, asked.config["responses"])
    history = (asked.config.get("target") or {}).get("history", "dataset")
    return ParentResponses(warehouse=warehouse, parent=parent, own=history == "own")
