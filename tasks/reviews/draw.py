"""Which verdicts a person is asked about: the groups they fall into, and a draw from each with known probabilities.

`votes`: the votes on it were not of one mind. `judges`: the lexical judge says something else than the run's judge.
`gate`: its sample's score of a metric that rests on the step is not what it was in the run before, and so decides
whether a comparison or a gate calls the run worse; for a first run, this verdict alone makes its sample's score.
`rest`: all others.

The groups of a step do not overlap, and from each of them `n` of its `N` items are drawn at random without
replacement, so every item of a group has the same probability n / N and weights of N / n make sums over the picked
ones unbiased for sums over all (Horvitz and Thompson 1952). A share of a step's places goes to the groups in
proportion to their size, as a plain random sample would give them; the others in equal parts to the groups that were
made for a person's eyes. Each group gets two places at least, or all its items: one without a place would be
missing from every estimate, and one with a single place would leave its spread unknown.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from evalhouse.tasks.lexical.judge import judge_lexically

Stratum = Literal["votes", "judges", "gate", "rest"]
Row = Mapping[str, Any]

LEXICAL_SAMPLES: Final = 400
"""Samples that the lexical judge reads at most, picked at random; some milliseconds each."""

_LEAST: Final = 2
_Name = TypeVar("_Name", bound=str)


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
    """Rows of `read_items` as items, the first of each content; what is true of any of its verdicts is said of it."""
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
    labels: dict[tuple[str, str, str], str] = {}
    for sample_id, sample in texts.items():
        for step in steps:
            for item_id, label in _ask_lexical(step, sample, statements.get(sample_id, ())).items():
                labels[sample_id, step, item_id] = label
    return labels


def _ask_lexical(step: str, sample: Row, statements: Sequence[Row]) -> dict[str, str]:
    sides = {
        f"{source}_statements": [
            {"id": row["statement_id"], "text": row["text"]} for row in statements if row["source"] == source
        ]
        for source in ("answer", "ground_truth")
    }
    data = {
        "question": sample["question"],
        "ground_truth": sample["ground_truth"] or "",
        "contexts": [{"id": f"C{n}", "text": text} for n, text in enumerate(sample["contexts"] or (), start=1)],
        **sides,
    }
    verdicts: Any = judge_lexically(step, data)["verdicts"]
    if step == "attribute":
        return {verdict["id"]: "supported" if verdict["contexts"] else "unsupported" for verdict in verdicts}
    return {verdict["id"]: verdict["label"] for verdict in verdicts}


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One item with the group it was drawn from and the probability of that."""

    item: Item
    stratum: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class StratumDraw:
    """What was drawn from one group of a step."""

    step: str
    stratum: Stratum
    size: int
    picks: tuple[Pick, ...]

    @property
    def probability(self) -> float:
        """That of each of its items, picked or not."""
        return len(self.picks) / self.size


def share_places(n: int, sizes: Mapping[_Name, int]) -> dict[_Name, int]:
    """`n` places in equal parts, none with more than its size; what one cannot take goes to the larger ones."""
    shares: dict[_Name, int] = {}
    for place, name in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        shares[name] = min(sizes[name], (n - sum(shares.values())) // (len(sizes) - place))
    return shares


def draw(
    strata: Mapping[Stratum, Sequence[Item]], n: int, *, share_random: float, generator: random.Random
) -> list[StratumDraw]:
    """Draw `n` items of one step from its groups. With too few places for all groups they are drawn from as one."""
    if n < _LEAST * len(strata):
        strata = {"rest": [item for items in strata.values() for item in items]}
    places = allocate({stratum: len(items) for stratum, items in strata.items()}, n, share_random=share_random)
    return [
        _draw_from(stratum, items, places[stratum], generator) for stratum, items in sorted(strata.items()) if items
    ]


def allocate(sizes: Mapping[Stratum, int], n: int, *, share_random: float) -> dict[Stratum, int]:
    """Places by group: two each, then towards its part of the random share and its equal part of the others."""
    n = min(n, sum(sizes.values()))
    targeted: dict[Stratum, int] = {stratum: size for stratum, size in sizes.items() if stratum != "rest"}
    n_random = n if not targeted else round(n * share_random)
    equal: dict[Stratum, int] = share_places(n - n_random, targeted)
    total = sum(sizes.values())
    targets = {stratum: n_random * size / total + equal.get(stratum, 0) for stratum, size in sizes.items()}
    least = min(_LEAST, n // len(sizes))
    places = {stratum: min(size, least) for stratum, size in sizes.items()}
    for _ in range(n - sum(places.values())):
        # The one furthest below what it is to have; full groups cannot take more.
        open_strata = [stratum for stratum in sizes if places[stratum] < sizes[stratum]]
        neediest = max(open_strata, key=lambda stratum: targets[stratum] - places[stratum])
        places[neediest] += 1
    return places


def _draw_from(stratum: Stratum, items: Sequence[Item], n: int, generator: random.Random) -> StratumDraw:
    chosen = generator.sample(items, n)
    picks = tuple(Pick(item=item, stratum=stratum, probability=n / len(items)) for item in chosen)
    return StratumDraw(step=items[0].step, stratum=stratum, size=len(items), picks=picks)
