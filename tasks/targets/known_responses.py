"""What need not be asked: responses that are on record already, of a named run or of the last asking of a suite.

After an announced change of documents a response stays what it was as long as it cited none of them. That is a guess
from the contexts of the last time, with one known gap: a document that was never cited may now be the better source.
Runs without changed ids ask everything, and close it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.warehouse.rows.responses import StoredResponse, read_brought_responses, read_last_asked, read_responses
from evalhouse.warehouse.rows.runs import RunRow, list_runs
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

SEPARATORS = "#:/|@"
"""What may stand between a document's id and the rest of a context's id."""

# They say how the application is asked, not what or whom.
_MANNERS = {"timeout_s", "attempts", "concurrency", "rpm"}


class KnownResponses(Protocol):
    """Where responses are taken from instead of being asked for."""

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """The responses that stand for some of these samples, by sample id; the others are asked for."""


@dataclass(frozen=True, kw_only=True)
class ParentResponses:
    """All responses of one run, for judging them again."""

    warehouse: Warehouse
    parent: RunRow

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """The parent's responses to the same questions, failed ones included."""
        asked = self.parent.config.get("target") or self.parent.config.get("responses")
        read = read_responses if asked else read_brought_responses
        found = read(self.warehouse, self.parent.run_id, [sample.sample_id for sample in samples])
        questions = {sample.sample_id: sample.question for sample in samples}
        # A response of a run that died before it was loaded has no question on record.
        return {name: one for name, one in found.items() if one.question in (None, questions[name])}


@dataclass(frozen=True, kw_only=True)
class UnaffectedResponses:
    """The last responses of a suite that cite no document that was announced as changed since they were asked for.

    `asking_runs` are the runs whose responses count, with their starts; `announced` says of each changed document when
    a run last began that was told of it, and `unknown_until` when the last one began that was told of a change and not
    of which.
    """

    warehouse: Warehouse
    asking_runs: Mapping[str, datetime]
    announced: Mapping[str, datetime]
    unknown_until: datetime | None = None

    def find(self, samples: Sequence[StoredSample]) -> Mapping[str, StoredResponse]:
        """The responses that still hold, of samples whose question and metadata are what they were."""
        found = read_last_asked(self.warehouse, self.asking_runs, [sample.sample_id for sample in samples])
        return {
            sample.sample_id: found[sample.sample_id]
            for sample in samples
            if sample.sample_id in found and self._still_holds(sample, found[sample.sample_id])
        }

    def _still_holds(self, sample: StoredSample, last: StoredResponse) -> bool:
        # "{}" says "none this time" where a run before had some.
        same_metadata = (sample.metadata_json or "{}") == (last.metadata_json or "{}")
        if last.status != "ok" or last.question != sample.question or not same_metadata:
            return False
        asked_at = self.asking_runs[last.asked_run_id]
        if self.unknown_until is not None and self.unknown_until > asked_at:
            return False
        documents = list_cited_documents(last)
        return documents is not None and not any(
            document in self.announced and self.announced[document] > asked_at for document in documents
        )


@dataclass(kw_only=True)
class _Announcements:
    announced: dict[str, datetime] = field(default_factory=dict)
    unknown_until: datetime | None = None

    def add(self, run: RunRow) -> None:
        for document in run.kb_changed or ():
            self.announced[document] = max(run.started_at, self.announced.get(document, run.started_at))
        if run.trigger == "event" and not run.kb_changed:
            self.unknown_until = max(run.started_at, self.unknown_until or run.started_at)


def find_unaffected(warehouse: Warehouse, run: RunRow, target: TargetSettings) -> UnaffectedResponses | None:
    """What a run of a suite need not ask again; None when it was not told which documents changed.

    Only responses of the same application count: an address or a template that changed makes it another one.
    """
    if run.suite is None or not run.kb_changed:
        return None
    earlier = [
        one
        for one in list_runs(warehouse)
        if one.suite == run.suite and one.kind != "noise" and one.started_at < run.started_at
    ]
    known = _Announcements()
    for one in (*earlier, run):
        known.add(one)
    whom = _describe_application(target.model_dump(mode="json"))
    asking = {one.run_id: one.started_at for one in earlier if _describe_application(one.config.get("target")) == whom}
    return UnaffectedResponses(
        warehouse=warehouse, asking_runs=asking, announced=known.announced, unknown_until=known.unknown_until
    )


def list_cited_documents(response: StoredResponse) -> set[str] | None:
    """Every document that a response's context ids may belong to; None when that cannot be told.

    The id of a context is the document's own, or begins with it and goes on with one of `SEPARATORS`: `doc#3`, `doc:3`
    and `doc/3` belong to `doc`, and `doc3` does not.
    """
    if response.contexts is not None and not response.contexts:
        return set()
    ids = response.context_ids
    if not ids or not all(ids) or (response.contexts is not None and len(ids) < len(response.contexts)):
        return None
    found = set(ids)
    for one in ids:
        found.update(one[:place] for place, letter in enumerate(one) if letter in SEPARATORS)
    return found


def list_missing(known: ParentResponses, samples: Sequence[StoredSample]) -> list[str]:
    """The ids of samples to whose questions the parent has no response."""
    found = known.find(samples)
    return [sample.sample_id for sample in samples if sample.sample_id not in found]


def refuse_missing(parent: RunRow, n_missing: int, first: str, n_samples: int) -> FatalJudgeError:
    """The error for questions that a run to be judged again has no response to."""
    have = "has" if n_missing == 1 else "have"
    return FatalJudgeError(
        f"{n_missing} of {n_samples} questions {have} no response in run {parent.run_id} (the first: {first}); go on "
        f"with `evalhouse resume {parent.run_id}` where it did not finish, or run without --responses to ask them"
    )


def _describe_application(target: Mapping[str, object] | None) -> Mapping[str, object] | None:
    return None if target is None else {name: value for name, value in target.items() if name not in _MANNERS}
