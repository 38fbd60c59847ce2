"""Expected ratings: the mean of a scale's numbers, weighted with the probabilities that the endpoint gives them.

A judge that writes 7 may have been near to writing 8. Where the endpoint tells how near, a rating is the mean over the
scale at the place where its number stands, and a spread is that of each of its scores, in the proportions the judge
wrote: judges name the lower neighbour first, so that the first place alone would lean to it. What cannot be determined
is never guessed: the number as it was said counts then, and the grade says why. `logprobs` packs what is
read here; `grading` has checked the reply by then.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evalhouse.prompts import Criterion, Rating, Rubric
from evalhouse.tasks.judge.logprobs import NumberTokens, unpack_logprobs

# Below this the tokens seen tell too little: an endpoint that names the written token alone, say.
_LEAST_SHARE = 0.5
# A "1" may be the beginning of a 10; as little as this moves no grade by more than a tenth of a point.
_MOST_UNDECIDED = 0.01
_MARKED = re.compile(r"\[\[\s*([0-9]+)\s*\]\]")
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A number of the reply with its weight in the grade."""

    value: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a number stands in the reply, counted in characters."""

    at: int
    value: int


@dataclass(frozen=True, kw_only=True)
class _Expected:
    """A mean over the scale, and the share of all probability that lay on the scale."""

    mean: float
    share: float


def find_expectable(rubric: Rubric) -> frozenset[str]:
    """The criteria that may be graded by log-probabilities: spreads, and a rating that is the only criterion."""
    alone = len(rubric.criteria) == 1
    return frozenset(
        name for name, one in rubric.criteria.items() if one.kind == "spread" or (one.kind == "rating" and alone)
    )


def expect_ratings(
    said: Mapping[str, Rating], reply: Mapping[str, object], text: str, packed: str | None, rubric: Rubric
) -> dict[str, Rating]:
    """What was said, each expectable criterion with its expected rating or the reason why there is none.

    `reply` is the checked object within `text`, `packed` the call's log-probabilities.

    A rating of 7, whose token had the probability 0.6 where 8 had 0.3 and a quotation mark 0.1, is expected to be
    (7 * 0.6 + 8 * 0.3) / 0.9, which is 7.33; 90% of the probability lay on the scale.
    """
    expected = dict(said)
    for name in find_expectable(rubric):
        found = _expect(reply[name], text, packed, name, rubric.criteria[name])
        if isinstance(found, str):
            expected[name] = replace(said[name], note=f"as said: {found}")
        else:
            note = f"expected from log-probabilities; {found.share:.1%} of the probability lay on the scale"
            expected[name] = replace(said[name], expected=found.mean, note=note)
    return expected


def _expect(entry: object, text: str, packed: str | None, name: str, criterion: Criterion) -> _Expected | str:
    if packed is None:
        return "the endpoint gave no log-probabilities"
    written = _list_written(entry, criterion)
    places = _find_places(text, name, "rating" if criterion.kind == "rating" else "score")
    numbers = unpack_logprobs(packed)
    if [one.value for one in written] != [place.value for place in places]:
        return "it is not clear where in the reply its number stands"
    parts = []
    for one, place in zip(written, places, strict=True):
        if not one.weight:
            continue
        if place.at not in numbers:
            return "its number could not be found among the tokens"
        part = _weigh(numbers[place.at], range(criterion.min, criterion.max + 1))
        if isinstance(part, str):
            return part
        parts.append(_Expected(mean=one.weight * part.mean, share=one.weight * part.share))
    whole = sum(one.weight for one in written)
    return _Expected(mean=sum(part.mean for part in parts) / whole, share=sum(part.share for part in parts) / whole)


def _list_written(entry: object, criterion: Criterion) -> list[_Written]:
    """The numbers of a checked entry, in their order."""
    assert isinstance(entry, Mapping)
    if criterion.kind == "rating":
        return [_Written(value=int(entry["rating"]), weight=1.0)]
    return [_Written(value=int(one["score"]), weight=float(one["probability"])) for one in entry["scores"]]


def _find_places(text: str, name: str, key: str) -> Sequence[_Place]:
    """Where the criterion's numbers stand: in the last object under its name, or in the last marks.

    A quotation mark within a text of the reply has a backslash before it, so what a reason quotes is not taken for it.
    """
    opened = list(re.finditer(rf'(?<!\\)"{re.escape(name)}"\s*:\s*(?=\{{)', text))
    if not opened:
        found = list(_MARKED.finditer(text))[-1:]
    else:
        start = opened[-1].end()
        try:
            _, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return []
        found = list(re.compile(rf'(?<!\\)"{key}"\s*:\s*([0-9]+)(?![0-9.eE])').finditer(text, start, end))
    return [_Place(at=match.start(1), value=int(match[1])) for match in found]


def _weigh(number: NumberTokens, scale: range) -> _Expected | str:
    """The mean of the scale's numbers at one place, weighted with their probabilities.

    A number may be several tokens, "1" and "0": the probability of "1" is then shared out by what follows it. That is
    known for the digits that were written; of others that begin a longer number it is not.
    """
    masses: Counter[int] = Counter()
    undecided, path, prefix = 0.0, 1.0, ""
    # Where one number of two digits is a token the others are, and "1" is no beginning of a 10.
    are_whole = any(len(digits) > 1 for top in number.tops for digits in top)
    for place, top in enumerate(number.tops):
        own = number.tokens[place] if place < len(number.tokens) else ""
        for digits, logprob in top.items():
            mass, spelled = path * math.exp(logprob), prefix + digits
            if digits == own or not spelled:
                continue
            if digits and not are_whole and _begins_longer(spelled, scale):
                undecided += mass
            else:
                masses[int(spelled)] += mass  # type: ignore[assignment]
        path *= math.exp(top[own])
        prefix += own
    masses[int(prefix)] += path  # type: ignore[assignment]
    share = math.fsum(masses[value] for value in scale)
    if share < _LEAST_SHARE:
        return f"only {share:.1%} of the probability lay on the scale"
    if undecided > _MOST_UNDECIDED:
        return f"{undecided:.1%} of the probability lay on digits that may begin a longer number"
    return _Expected(mean=math.fsum(value * masses[value] for value in scale) / share, share=min(1.0, share))


def _begins_longer(spelled: str, scale: range) -> bool:
    return any(len(str(value)) > len(spelled) and str(value).startswith(spelled) for value in scale)
