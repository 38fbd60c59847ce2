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
    from evalhouse.tasks.datasets.read import StagedDataset
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
    """How the run comes by its responses; None when its dataset brings the answers.

    `known` responses are taken in place of those that the settings name; `pose` makes the question of a sample.
    Raises FatalJudgeError when they are to be taken from a run that lacks some.
    """
    if target is None and parent is None:
        return None
    size = live_run.settings.shard_size
    responses = known or _find_known_responses(live_run, run, parent)
    read: ReadSamples
    if live_run.staged is not None:
        read, n_samples = live_run.staged.staging.read_between, live_run.staged.n_samples
        numbers = list(range(-(-n_samples // size)))
        if target is not None and live_run.staged.n_answered:
            live_run.notices.append(_IGNORED.format(live_run.staged.n_answered, n_samples))
        if isinstance(responses, ParentResponses):
            _check_parent(live_run.staged, responses, size)
    else:
        # Whole shards, of which those that have their response are passed over.
        read = read_own_samples(live_run.warehouse, run.run_id)
        numbers = sorted({(ordinal - 1) // size for ordinal in list_open_samples(live_run.warehouse, run.run_id)})
        n_samples = sum(min(size, (run.n_samples or 0) - number * size) for number in numbers)
    settings = live_run.settings.target
    conversations = None
    if _has_own_history(live_run, parent):
        n_in_all = live_run.staged.n_samples if live_run.staged is not None else run.n_samples or 0
        conversations = group_turns(read, n_in_all, size)
        shard_of = {ordinal: (held[0] - 1) // size for held in conversations for ordinal in held}
        if live_run.staged is None:
            # A conversation goes on in the shard in which it began.
            open_samples = list_open_samples(live_run.warehouse, run.run_id)
            numbers = sorted({shard_of[ordinal] for ordinal in open_samples})
            n_samples = sum(len(held) for held in conversations if shard_of[held[0]] in set(numbers))
    counted = count_responses(live_run.warehouse, run.run_id) if live_run.resumed else {"n_ok": 0}
    return Collection(
        run_id=run.run_id,
        warehouse=live_run.warehouse,
        target=target,
        known=responses,
        record=Mover(live_run.warehouse, "responses"),
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


def _has_own_history(live_run: "LiveRun", parent: RunRow | None) -> bool:
    """Whether the answers that come, or those of the run that is judged again, are the history of later turns."""
    if parent is None:
        return live_run.settings.target is not None and live_run.settings.target.history == "own"
    return _find_history(live_run.warehouse, parent) == "own"


def find_parent_responses(warehouse: Warehouse, parent: RunRow) -> ParentResponses:
    """The responses of a run that stand in for those to come."""
    return ParentResponses(warehouse=warehouse, parent=parent, own=_find_history(warehouse, parent) == "own")


def _find_history(warehouse: Warehouse, run: RunRow) -> str:
    """The history with which the responses of a run were asked for, by itself or by the run it took them from."""
    while run.config.get("responses"):
        run = find_run(warehouse, run.config["responses"])
    return str((run.config.get("target") or {}).get("history", "dataset"))


def _find_known_responses(live_run: "LiveRun", run: RunRow, parent: RunRow | None) -> KnownResponses | None:
    settings = live_run.settings
    if parent is not None:
        return find_parent_responses(live_run.warehouse, parent)
    if not settings.only_affected or settings.target is None:
        return None
    responses = find_unaffected(live_run.warehouse, run, settings.target)
    if responses is None and not live_run.resumed:
        live_run.notices.append(_NOT_ANNOUNCED)
    return responses


def _check_parent(staged: "StagedDataset", responses: ParentResponses, size: int) -> None:
    missing: list[str] = []
    for first in range(1, staged.n_samples + 1, size):
        missing += list_missing(responses, staged.staging.read_between(first, first + size - 1))
    if missing:
        raise refuse_missing(responses.parent, len(missing), missing[0], staged.n_samples)
