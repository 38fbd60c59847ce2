"""Expected ratings: the mean of a scale's numbers, weighted with the probabilities that the endpoint gives them.

A judge that writes 7 may have been near to writing 8. If the endpoint returns log-probabilities, a rating is the mean
over the scale at the place of its number, and a spread is the mean over its scores, in the proportions the judge wrote:
judges name the lower neighbour first, so that the first place alone would lean to it. An undetermined value is never
guessed: the written number counts then, and the grade has the reason. `grade` has checked the reply before.

A reply's tokens with twenty alternatives each are a hundred times its length, and a grade rests on one or two of them.
So only numbers behind a colon or a bracket are kept when a reply comes, with the digits that could have been in their
place. This packed form is recorded with the call, and nothing else is read, for new and for reused replies.
"""

import json
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate

import orjson

from evalhouse.prompts import Criterion, Rating, Rubric

# The most that OpenAI gives, and enough for every number of a scale that has any probability worth counting.
TOP_LOGPROBS = 20
_NUMBER = re.compile(r"[:\[]\s*([0-9]{1,3})(?![0-9]|\.[0-9])")
_DIGITS = re.compile(r"([^0-9]*)([0-9]{1,3})[\s,}\]]*")
# Endpoints write -9999 and the like for an impossible token; a probability must stay a number above zero.
_MIN_LOGPROB = -100.0
_DECIMALS = 6


@dataclass(frozen=True, kw_only=True)
class NumberTokens:
    """A number of a reply, which begins at character `at`, by its tokens.

    `tokens` are the digits of each in turn. `tops` are the natural logarithms of the probabilities at each of these
    places, by digits; "" is everything else together. Where the last token ends with the number there is one place
    more, that of the token behind it.
    """

    at: int
    tokens: Sequence[str]
    tops: Sequence[Mapping[str, float]]


def pack_logprobs(logprobs: object, text: str) -> str | None:
    """Return the numbers of `text` by their tokens, as JSON, from the `logprobs` of a completion in OpenAI's shape.

    None where it has none. The list is empty when the tokens do not spell the text, as where an endpoint takes thoughts
    out of one of the two.
    """
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    # The tokens, in UTF-8 since some hold half a character, with the log-probabilities at their places.
    tokens: list[tuple[bytes, Mapping[bytes, float]]] = []
    for entry in content if isinstance(content, list) else ():
        token = _read_entries([entry])
        if not token:
            return None
        alternatives = _read_entries(entry.get("top_logprobs"))
        tokens.append((next(iter(token)), token | alternatives))
    if not tokens:
        return None
    spelled, stripped = b"".join(token for token, _ in tokens), text.strip()
    base = spelled.rfind(stripped.encode(errors="surrogatepass"))
    if base == -1:
        return "[]"
    starts = [0, *accumulate(len(token) for token, _ in tokens)]
    before = len(text) - len(text.lstrip())
    numbers, start, read = [], base, 0
    for match in _NUMBER.finditer(stripped):
        start += len(stripped[read : match.start(1)].encode(errors="surrogatepass"))
        read = match.start(1)
        first = bisect_right(starts, start) - 1
        offset = start - starts[first]
        rest = offset + len(match[1])
        digits: list[str] = []
        tops: list[Mapping[str, float]] = []
        for place, (part, likely) in enumerate(tokens[first:]):
            # The text before the number in its first token; an alternative may have other spaces there.
            lead = part[:offset].decode(errors="replace") if place == 0 else ""
            digits_here = part[0 if place else offset : rest].decode(errors="replace") if rest > 0 else ""
            sums: defaultdict[str, float] = defaultdict(float)
            for alternative, logprob in likely.items():
                added, found = "", _DIGITS.fullmatch(alternative.decode(errors="replace"))
                if alternative == part:
                    added = digits_here
                elif found and (found[1].strip() == lead.strip() if place == 0 else found[1] == ""):
                    added = found[2]
                sums[added] += math.exp(logprob)
            tops.append({added: round(math.log(total), _DECIMALS) for added, total in sums.items()})
            if rest <= 0:
                break
            digits.append(digits_here)
            rest -= len(part)
            if rest < 0:
                break  # a comma or bracket that belongs to the token shows that the number ends with it
        numbers.append(NumberTokens(at=before + match.start(1), tokens=digits, tops=tops))
    return orjson.dumps(numbers).decode()


def unpack_logprobs(packed: str) -> dict[int, NumberTokens]:
    """Return the numbers of a reply by the character at which each begins."""
    return {item["at"]: NumberTokens(**item) for item in orjson.loads(packed)}


def _read_entries(entries: object) -> dict[bytes, float]:
    """Return the log-probabilities of a list's tokens; entries without one of the two are left out."""
    logprobs: dict[bytes, float] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
            continue
        logprob, spelled = entry.get("logprob"), entry.get("bytes")
        if not isinstance(logprob, int | float) or isinstance(logprob, bool) or not math.isfinite(logprob):
            continue
        is_spelled = isinstance(spelled, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in spelled)
        token = bytes(spelled) if is_spelled else entry["token"].encode(errors="surrogatepass")  # type: ignore[arg-type]
        logprobs[token] = min(0.0, max(_MIN_LOGPROB, float(logprob)))
    return logprobs


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
