"""Which verdicts deserve a person's minute: every item of a run in one of four groups, the first that fits.

`votes`: the votes on it were not of one mind. `judges`: the lexical judge says something else than the run's judge.
`gate`: its sample's score of a metric that rests on the step is not what it was in the run before, and so decides
whether a comparison or a gate calls the run worse; for a first run, this verdict alone makes its sample's score.
`rest`: all others. `review_picking` draws from each group at random.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from evalhouse.tasks.lexical.judge import judge_lexically

Stratum = Literal["votes", "judges", "gate", "rest"]
Row = Mapping[str, Any]

LEXICAL_SAMPLES: Final = 400
"""Samples that the lexical judge reads at most, picked at random; some milliseconds each."""

_PREFIXES = {"answer": "A", "ground_truth": "G"}


@dataclass(frozen=True, kw_only=True)
class Item:
    """What a person is asked about: the first verdict of a run with this content."""

    item_hash: str
    question_hash: str
    sample_id: str
    step: str
    statement_id: str | None
    context_rank: int | None
    source: str | None
    text: str
    judge_label: str
    reason: str | None
    n_beside: int
    votes_differ: bool
    is_reviewed: bool

    @property
    def verdict_key(self) -> tuple[str, str, str]:
        """Sample, step and the short id that the judge was asked under."""
        return (self.sample_id, self.step, self.statement_id or f"C{self.context_rank}")


def collect_items(rows: Sequence[Row]) -> list[Item]:
    """Rows of `read_items` as items, the first of each content; what is true of any of its verdicts is told of it."""
    together: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        together[row["item_hash"]].append(row)
    names = [name for name in Item.__dataclass_fields__ if name not in ("votes_differ", "n_beside")]
    return [
        Item(
            **{name: same[0][name] for name in names},
            votes_differ=any(row["votes_differ"] for row in same),
            n_beside=min(row["n_beside"] for row in same),
        )
        for same in together.values()
    ]


def sort_into_strata(
    items: Sequence[Item],
    *,
    lexical_labels: Mapping[tuple[str, str, str], str],
    moved: Collection[tuple[str, str]] | None,
) -> dict[Stratum, list[Item]]:
    """The items of each group that has one, in their order.

    `lexical_labels` are by verdict_key, for as many as were read; `moved` are (sample, step as metrics name it) whose
    scores changed, None for a first run.
    """
    strata: defaultdict[Stratum, list[Item]] = defaultdict(list)
    for item in items:
        strata[_find_stratum(item, lexical_labels.get(item.verdict_key), moved)].append(item)
    return dict(strata)


def _find_stratum(item: Item, lexical: str | None, moved: Collection[tuple[str, str]] | None) -> Stratum:
    if item.votes_differ:
        return "votes"
    if lexical is not None and lexical != item.judge_label:
        return "judges"
    if moved is None:
        return "gate" if item.n_beside == 1 else "rest"
    step = f"attribute_{item.source}" if item.step == "attribute" else item.step
    return "gate" if (item.sample_id, step) in moved else "rest"


def pick_samples(items: Sequence[Item], generator: random.Random) -> list[str]:
    """The samples that the lexical judge reads: all, or as many as it may at random."""
    samples = list(dict.fromkeys(item.sample_id for item in items))
    return samples if len(samples) <= LEXICAL_SAMPLES else sorted(generator.sample(samples, LEXICAL_SAMPLES))


def label_lexically(
    texts: Mapping[str, Row], statements: Mapping[str, Sequence[Row]], steps: Collection[str]
) -> dict[tuple[str, str, str], str]:
    """What the lexical judge says of these samples, by verdict_key, in the words of review_items.judge_label."""
    found: dict[tuple[str, str, str], str] = {}
    for sample_id, sample in texts.items():
        for step in steps:
            for item_id, label in _ask_lexical(step, sample, statements.get(sample_id, ())).items():
                found[sample_id, step, item_id] = label
    return found


def _ask_lexical(step: str, sample: Row, statements: Sequence[Row]) -> dict[str, str]:
    sides = {
        f"{source}_statements": [
            {"id": one["statement_id"], "text": one["text"]} for one in statements if one["source"] == source
        ]
        for source in _PREFIXES
    }
    data = {
        "question": sample["question"],
        "ground_truth": sample["ground_truth"] or "",
        "contexts": [{"id": f"C{n}", "text": text} for n, text in enumerate(sample["contexts"] or (), start=1)],
        **sides,
    }
    verdicts: Any = judge_lexically(step, data)["verdicts"]
    if step == "attribute":
        return {one["id"]: "supported" if one["contexts"] else "unsupported" for one in verdicts}
    return {one["id"]: one["label"] for one in verdicts}
