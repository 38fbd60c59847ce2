"""Log-probabilities: what an endpoint says of a reply's tokens, packed to what the numbers in the reply need.

A reply's tokens with twenty alternatives each are a hundred times its length, and a grade rests on one or two of them.
So only numbers that stand behind a colon or a bracket are kept, with the digits that could have stood in their place.
The packed form stands on record with the call, and `expected_ratings` reads nothing else, be the reply new or reused.
"""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import orjson

# The most that OpenAI gives, and enough for every scale's numbers that have any probability to speak of.
TOP_LOGPROBS = 20
_NUMBER = re.compile(r"[:\[]\s*([0-9]{1,3})(?![0-9]|\.[0-9])")
_DIGITS = re.compile(r"([^0-9]*)([0-9]{1,3})[\s,}\]]*")
# Endpoints write -9999 and the like for what cannot be; a probability must stay a number above zero.
_LEAST = -100.0
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


@dataclass(frozen=True, kw_only=True)
class _Token:
    """A token of the reply, in UTF-8 since some hold half a character, and all that could have stood there with it."""

    spelled: bytes
    logprobs: Mapping[bytes, float]


def pack_logprobs(logprobs: object, text: str) -> str | None:
    """The numbers of `text` by their tokens, as JSON, from the `logprobs` of a completion; None where it has none.

    The list is empty when the tokens do not spell the text, as where an endpoint takes thoughts out of one of the two.
    """
    tokens = _read_tokens(logprobs)
    if not tokens:
        return None
    spelled, stripped = b"".join(token.spelled for token in tokens), text.strip()
    base = spelled.rfind(_encode(stripped))
    if base == -1:
        return "[]"
    starts = [0, *accumulate(len(token.spelled) for token in tokens)]
    before = len(text) - len(text.lstrip())
    numbers, start, read = [], base, 0
    for match in _NUMBER.finditer(stripped):
        start, read = start + len(_encode(stripped[read : match.start(1)])), match.start(1)
        first = bisect_right(starts, start) - 1
        offset = start - starts[first]
        numbers.append(_pack_number(before + match.start(1), tokens[first:], offset=offset, length=len(match[1])))
    return orjson.dumps(numbers).decode()


def unpack_logprobs(packed: str) -> dict[int, NumberTokens]:
    """The numbers of a reply by the character at which each begins."""
    return {item["at"]: NumberTokens(**item) for item in orjson.loads(packed)}


def _pack_number(at: int, tokens: Sequence[_Token], *, offset: int, length: int) -> NumberTokens:
    """The number of `length` digits that begins at byte `offset` of the first of `tokens`."""
    digits: list[str] = []
    tops: list[Mapping[str, float]] = []
    rest = offset + length
    for place, token in enumerate(tokens):
        lead = token.spelled[:offset].decode(errors="replace") if place == 0 else None
        own = token.spelled[0 if place else offset : rest].decode(errors="replace") if rest > 0 else ""
        tops.append(_sum_by_digits(token, own, lead))
        if rest <= 0:
            break
        digits.append(own)
        rest -= len(token.spelled)
        if rest < 0:
            break  # a comma or bracket that belongs to the token says that the number ends with it
    return NumberTokens(at=at, tokens=digits, tops=tops)


def _sum_by_digits(token: _Token, own: str, lead: str | None) -> dict[str, float]:
    """Logarithms of probabilities by the digits that a token adds to the number; `own` are those of the token itself.

    `lead` is what stands before the number in its first token; another one may have other spaces there.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for spelled, logprob in token.logprobs.items():
        digits = own if spelled == token.spelled else _read_digits(spelled, lead)
        sums[digits] += math.exp(logprob)
    return {digits: round(math.log(total), _DECIMALS) for digits, total in sums.items()}


def _read_digits(spelled: bytes, lead: str | None) -> str:
    match = _DIGITS.fullmatch(spelled.decode(errors="replace"))
    if match is None:
        return ""
    fits = match[1] == "" if lead is None else match[1].strip() == lead.strip()
    return match[2] if fits else ""


def _read_tokens(logprobs: object) -> list[_Token]:
    """The tokens of a choice's `logprobs` in OpenAI's shape; none at all when one of them has another."""
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        return []
    tokens = []
    for entry in content:
        own = _read_entries([entry])
        if not own:
            return []
        tokens.append(_Token(spelled=next(iter(own)), logprobs=own | _read_entries(entry.get("top_logprobs"))))
    return tokens


def _read_entries(entries: object) -> dict[bytes, float]:
    """The log-probabilities of a list's tokens; entries without one of the two are left out."""
    logprobs: dict[bytes, float] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
            continue
        logprob, spelled = entry.get("logprob"), entry.get("bytes")
        if not isinstance(logprob, int | float) or isinstance(logprob, bool) or not math.isfinite(logprob):
            continue
        is_spelled = isinstance(spelled, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in spelled)
        token = bytes(spelled) if is_spelled else _encode(entry["token"])  # type: ignore[arg-type]
        logprobs[token] = min(0.0, max(_LEAST, float(logprob)))
    return logprobs


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
