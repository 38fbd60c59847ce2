"""Expected ratings: the mean of a scale's numbers, weighted with the probabilities that the endpoint gives them.

A judge that writes 7 may have been near to writing 8. If the endpoint returns log-probabilities, a rating is the mean
over the scale at the place of its number, and a spread is the mean over its scores, in the proportions the judge wrote:
judges name the lower neighbour first, so that the first place alone would lean to it. An undetermined value is never
guessed: the written number counts then, and the grade has the reason. `logprobs` packs the probabilities; `grade` has
checked the reply before.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from evalhouse.prompts import Criterion, Rating, Rubric
from evalhouse.tasks.judge.logprobs import NumberTokens, unpack_logprobs

# Below this share the named tokens are too few, as from an endpoint that names only the written token.
_MIN_SHARE = 0.5
# A "1" may be the beginning of a 10; this little moves no grade by more than a tenth of a point.
_MAX_UNDECIDED = 0.01
_MARKED = re.compile(r"\[\[\s*([0-9]+)\s*\]\]")
_DECODER = json.JSONDecoder(strict=False)


def find_expectable(rubric: Rubric) -> frozenset[str]:
    """Return the criteria that may be graded by log-probabilities: spreads, and a rating that is the only criterion."""
    is_single = len(rubric.criteria) == 1
    return frozenset(
        name
        for name, criterion in rubric.criteria.items()
        if criterion.kind == "spread" or (criterion.kind == "rating" and is_single)
    )


def expect_ratings(
    written: Mapping[str, Rating], reply: Mapping[str, object], text: str, packed: str | None, rubric: Rubric
) -> dict[str, Rating]:
    """Return the written ratings, each expectable criterion with its expected rating or the reason for having none.

    `reply` is the checked object within `text`, `packed` the call's log-probabilities.

    A rating of 7, whose token had the probability 0.6 where 8 had 0.3 and a quotation mark 0.1, is expected to be
    (7 * 0.6 + 8 * 0.3) / 0.9, which is 7.33; 90% of the probability lay on the scale.
    """
    ratings = dict(written)
    for name in find_expectable(rubric):
        expected = _expect(reply[name], text, packed, name, rubric.criteria[name])
        if isinstance(expected, str):
            ratings[name] = replace(written[name], note=f"as written: {expected}")
        else:
            mean, share = expected
            note = f"expected from log-probabilities; {share:.1%} of the probability lay on the scale"
            ratings[name] = replace(written[name], expected=mean, note=note)
    return ratings


def _expect(entry: object, text: str, packed: str | None, name: str, criterion: Criterion) -> tuple[float, float] | str:
    """Return the expected rating of a criterion and the share of all probability that lay on the scale, or the reason
    for having none."""
    if packed is None:
        return "the endpoint gave no log-probabilities"
    assert isinstance(entry, Mapping)  # the reply is checked
    # The numbers of the criterion with their weights in the grade, in their order.
    key, written = "rating", [(int(entry.get("rating", 0)), 1.0)]
    if criterion.kind != "rating":
        key, written = "score", [(int(score["score"]), float(score["probability"])) for score in entry["scores"]]
    # Their places in the reply: in the last object under the criterion's name, or in the last marks. A quotation mark
    # within a text of the reply has a backslash before it, so a number that a reason quotes is not taken for it.
    places: list[re.Match[str]] = []
    opened = list(re.finditer(rf'(?<!\\)"{re.escape(name)}"\s*:\s*(?=\{{)', text))
    if not opened:
        places = list(_MARKED.finditer(text))[-1:]
    else:
        start = opened[-1].end()
        with suppress(ValueError, RecursionError):
            _, end = _DECODER.raw_decode(text, start)
            number = re.compile(rf'(?<!\\)"{key}"\s*:\s*([0-9]+)(?![0-9.eE])')
            places = list(number.finditer(text, start, end))
    if [value for value, _ in written] != [int(place[1]) for place in places]:
        return "it is not clear where in the reply its number is"
    numbers = unpack_logprobs(packed)
    mean = share = whole = 0.0
    for (_, weight), place in zip(written, places, strict=True):
        if not weight:
            continue
        if place.start(1) not in numbers:
            return "its number could not be found among the tokens"
        part = _weigh(numbers[place.start(1)], range(criterion.min, criterion.max + 1))
        if isinstance(part, str):
            return part
        mean, share, whole = mean + weight * part[0], share + weight * part[1], whole + weight
    return mean / whole, share / whole


def _weigh(number: NumberTokens, scale: range) -> tuple[float, float] | str:
    """Return the mean of the scale's numbers at one place, weighted with their probabilities, and the scale's share.

    A number may be several tokens, "1" and "0": the probability of "1" is then shared out by what follows it. That is
    known for the digits that were written; for others that begin a longer number it is not.
    """
    masses: Counter[int] = Counter()
    undecided, path, prefix = 0.0, 1.0, ""
    # If one number of two digits is a token, the others are too, and "1" does not begin a 10.
    are_whole = any(len(digits) > 1 for top in number.tops for digits in top)
    for place, top in enumerate(number.tops):
        token = number.tokens[place] if place < len(number.tokens) else ""
        for digits, logprob in top.items():
            mass, spelled = path * math.exp(logprob), prefix + digits
            if digits == token or not spelled:
                continue
            begins_longer = any(len(str(value)) > len(spelled) and str(value).startswith(spelled) for value in scale)
            if digits and not are_whole and begins_longer:
                undecided += mass
            else:
                masses[int(spelled)] += mass  # type: ignore[assignment]
        path *= math.exp(top[token])
        prefix += token
    masses[int(prefix)] += path  # type: ignore[assignment]
    share = math.fsum(masses[value] for value in scale)
    if share < _MIN_SHARE:
        return f"only {share:.1%} of the probability lay on the scale"
    if undecided > _MAX_UNDECIDED:
        return f"{undecided:.1%} of the probability lay on digits that may begin a longer number"
    return math.fsum(value * masses[value] for value in scale) / share, min(1.0, share)
