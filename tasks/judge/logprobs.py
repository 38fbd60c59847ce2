"""Log-probabilities of a reply's tokens, packed to the numbers in the reply.

A reply's tokens with twenty alternatives each are a hundred times its length, and a grade rests on one or two of them.
So only numbers behind a colon or a bracket are kept, with the digits that could have been in their place. The packed
form is recorded with the call, and `expected_ratings` reads nothing else, for new and for reused replies.
"""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import orjson

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
