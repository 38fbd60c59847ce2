"""Two answers to each of the same questions, read some at a time: those of two runs, or of two columns of a dataset.

The first side is called the base and the second the candidate, as where runs are compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

import orjson

from evalhouse.tasks.comparing.runs import choose_cluster
from evalhouse.tasks.datasets.read import StagedDataset
from evalhouse.warehouse.rows.preferences import count_common, read_pairs
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.samples import StoredSample

_AT_ONCE: Final = 500


@dataclass(frozen=True, kw_only=True)
class AnswerPair:
    """Two answers to one question; None for one that is missing.

    `sample` is that of the candidate, with the contexts of both sides, each once. `cluster` is its group of samples
    that are not independent. `problem` says why the two cannot be held against each other.
    """

    sample: StoredSample
    base: str | None
    candidate: str | None
    cluster: str | None = None
    problem: str | None = None


class AnswerPairs(Protocol):
    """Where pairs come from. `cluster` is the metadata column that groups them, None where each stands for itself."""

    @property
    def n(self) -> int:
        """How many there are."""

    @property
    def cluster(self) -> str | None:
        """What groups them."""

    def read(self) -> Iterator[list[AnswerPair]]:
        """All of them, some at a time."""


@dataclass(frozen=True, kw_only=True)
class PairsOfRuns:
    """The answers of two runs to the samples that both have, at most `limit`; `wanted` names what groups them."""

    runs: RunPair
    wanted: str | None = None
    limit: int | None = None

    @cached_property
    def n(self) -> int:
        """How many samples both have."""
        n = count_common(self.runs)
        return n if self.limit is None else min(n, self.limit)

    @cached_property
    def cluster(self) -> str | None:
        """What groups them, by the metadata of all."""
        frame = self.runs.read_metadata().join(
            self.runs.read_samples().filter("in_base", "in_candidate"), on="sample_id", how="semi"
        )
        return choose_cluster([_read_members(text) for text in frame["metadata"]], self.wanted)

    def read(self) -> Iterator[list[AnswerPair]]:
        """In the candidate's order."""
        after, left = 0, self.n
        while left > 0 and (rows := read_pairs(self.runs, after=after, most=min(left, _AT_ONCE))):
            yield [_make_pair(row, self.cluster) for row in rows]
            after, left = int(rows[-1]["ordinal"]), left - len(rows)


@dataclass(frozen=True, kw_only=True)
class PairsOfColumns:
    """The answers in two columns of one dataset, which was staged once with either as its answer."""

    base: StagedDataset
    candidate: StagedDataset
    wanted: str | None = None

    @property
    def n(self) -> int:
        """How many rows there are."""
        return self.candidate.n_samples

    @cached_property
    def cluster(self) -> str | None:
        """What groups them, by the metadata of all."""
        parts = self.candidate.staging.read_parts()
        return choose_cluster([sample.metadata for samples in parts for sample in samples], self.wanted)

    def read(self) -> Iterator[list[AnswerPair]]:
        """In the order of the file."""
        for first in range(1, self.n + 1, _AT_ONCE):
            last = first + _AT_ONCE - 1
            sides = (staged.staging.read_between(first, last) for staged in (self.base, self.candidate))
            yield [
                AnswerPair(
                    sample=ours, base=theirs.answer, candidate=ours.answer, cluster=_name_cluster(ours, self.cluster)
                )
                for theirs, ours in zip(*sides, strict=True)
            ]


def _make_pair(row: Mapping[str, Any], cluster: str | None) -> AnswerPair:
    names = ("ordinal", "sample_id", "input_hash", "question", "ground_truth", "metadata_json", "conversation_json")
    sample = StoredSample(
        **{name: row[name] for name in names},
        answer=row["candidate_answer"],
        contexts=_join_contexts(row["base_contexts"], row["candidate_contexts"]),
        context_ids=None,
        reference_context_ids=None,
    )
    pair = AnswerPair(
        sample=sample,
        base=row["base_answer"],
        candidate=row["candidate_answer"],
        cluster=_name_cluster(sample, cluster),
    )
    return replace(pair, problem="other_question") if row["is_other_question"] else pair


def _join_contexts(*sides: Sequence[str] | None) -> list[str] | None:
    """The contexts of both sides, each once, by the better of its ranks; None where neither has any.

    Which side is which makes no difference, so that the pair is found on record from either.
    """
    if all(side is None for side in sides):
        return None
    ranked = sorted((rank, text) for side in sides for rank, text in enumerate(side or ()))
    return list(dict.fromkeys(text for _, text in ranked))


def _name_cluster(sample: StoredSample, column: str | None) -> str | None:
    value = sample.metadata.get(column) if column is not None else None
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _read_members(text: str | None) -> Mapping[str, Any]:
    members: Mapping[str, Any] = orjson.loads(text) if text else {}
    return members
