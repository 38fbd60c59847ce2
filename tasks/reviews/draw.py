"""How many items to draw from which group, and the draw: stratified random sampling with known probabilities.

The groups of a step do not overlap, and from each of them `n` of its `N` items are drawn at random without
replacement, so every item of a group has the same probability n / N and weights of N / n make sums over the picked
ones unbiased for sums over all (Horvitz and Thompson 1952). A share of a step's places goes to the groups in
proportion to their size, as a plain random sample would give them; the others in equal parts to the groups that were
made for a person's eyes. Each group gets two places at least, or all its items: one without a place would be
missing from every estimate, and one with a single place would leave its spread unknown.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evalhouse.tasks.reviews.strata import Item, Stratum

_LEAST = 2
_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One item with the group it was drawn from and the probability of that."""

    item: Item
    stratum: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Drawn:
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
) -> list[Drawn]:
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
    wanted = {stratum: n_random * size / total + equal.get(stratum, 0) for stratum, size in sizes.items()}
    least = min(_LEAST, n // len(sizes))
    places = {stratum: min(size, least) for stratum, size in sizes.items()}
    for _ in range(n - sum(places.values())):
        # The one furthest below what it is to have; full groups cannot take more.
        open_strata = [stratum for stratum in sizes if places[stratum] < sizes[stratum]]
        neediest = max(open_strata, key=lambda stratum: wanted[stratum] - places[stratum])
        places[neediest] += 1
    return places


def _draw_from(stratum: Stratum, items: Sequence[Item], n: int, generator: random.Random) -> Drawn:
    chosen = generator.sample(items, n)
    picks = tuple(Pick(item=item, stratum=stratum, probability=n / len(items)) for item in chosen)
    return Drawn(step=items[0].step, stratum=stratum, size=len(items), picks=picks)
