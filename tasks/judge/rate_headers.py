"""What an endpoint reports of its limits in the headers of an answer.

Three families of names are read: `x-ratelimit-limit-requests` and its like (OpenAI, Azure, Groq; with the window in
the name, `-req-minute` and `-tokens-minute`, Mistral and Cerebras), `anthropic-ratelimit-requests-limit` and its like,
and plain `x-ratelimit-limit` (OpenRouter), which is about requests. They say when a limit is full again as a duration
(`6m0s`, `120ms`, `1.5`), as a time (RFC 3339), or as seconds or milliseconds since 1970. A value that is none of this
is passed over: an answer that was paid for is worth more than its headers. `limits.py` acts on what is read here.
"""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class RateLimits:
    """Limits, what is left of them, and the seconds until they are full again; None where the endpoint did not say."""

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset_s: float | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset_s: float | None = None


def _list_names() -> dict[str, str]:
    """Every known name, and the field of RateLimits it is read into; the more telling names come later."""
    names: dict[str, str] = {}
    spellings = {
        "requests": ("", "-req-minute", "-requests-minute", "-requests"),
        "tokens": ("-tokens-minute", "-tokens"),
    }
    for what, ends in spellings.items():
        for value, field in (("limit", "limit"), ("remaining", "remaining"), ("reset", "reset_s")):
            names.update({f"x-ratelimit-{value}{end}": f"{what}_{field}" for end in ends})
            names[f"anthropic-ratelimit-{what}-{value}"] = f"{what}_{field}"
    return names


_FIELDS = MappingProxyType(_list_names())
_RANKS = MappingProxyType({name: rank for rank, name in enumerate(_FIELDS)})
_COUNT = re.compile(r"\d{1,15}")
_SECONDS = re.compile(r"\d{1,15}(?:\.\d+)?")
_DURATION = re.compile(r"(?:\d{1,15}(?:\.\d+)?(?:ms|d|h|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_LONGEST = 64
_UNIT_S = MappingProxyType({"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0})
# Larger numbers of seconds (30 years) are a time since 1970, still larger ones (30,000 years) one in milliseconds.
_EPOCH_S = 1e9
_EPOCH_MS = 1e12


def read_rate_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """None when there is no such header with a value that can be read. Costs 2 µs then."""
    names = [name for name in headers if "ratelimit" in name or "atelimit" in name.lower()]
    if not names:
        return None
    values: dict[str, int | float] = {}
    ordered = sorted((name for name in names if name.lower() in _RANKS), key=lambda name: _RANKS[name.lower()])
    for name in ordered:
        field, text = _FIELDS[name.lower()], headers[name].strip()[:_LONGEST]
        value = _read_reset(text, headers) if field.endswith("_s") else _read_count(text)
        if value is not None:
            values[field] = value
    for what in ("requests", "tokens"):
        if values.get(f"{what}_limit") == 0:
            # Sent by gateways that know of no limit; one that really lets nothing through refuses and says why.
            for field in ("limit", "remaining", "reset_s"):
                values.pop(f"{what}_{field}", None)
    return RateLimits(**values) if values else None  # type: ignore[arg-type]  # counts are int, resets float, by name


def _read_count(text: str) -> int | None:
    """A number of requests or tokens; below zero (Azure's -1) it says that there is none."""
    return int(text) if _COUNT.fullmatch(text) else None


def _read_reset(text: str, headers: Mapping[str, str]) -> float | None:
    """Seconds from the answer until the reset, 0 when it is past."""
    if _DURATION.fullmatch(text):
        return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
    if _SECONDS.fullmatch(text):
        number = float(text)
        if number < _EPOCH_S:
            return number
        return max(0.0, (number if number < _EPOCH_MS else number / 1000.0) - _read_clock(headers))
    try:
        until = datetime.fromisoformat(text)
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        return max(0.0, until.timestamp() - _read_clock(headers))
    except (ValueError, OverflowError):
        return None


def _read_clock(headers: Mapping[str, str]) -> float:
    """The endpoint's own time, in seconds since 1970: this machine's clock may be minutes off."""
    try:
        return parsedate_to_datetime(next(headers[name] for name in headers if name.lower() == "date")).timestamp()
    except (StopIteration, ValueError, TypeError, OverflowError):
        return time.time()


def read_date(named: str, present: str | None) -> float:
    """Seconds until an HTTP date, by the clock of the server that named it; NaN for what is not a date."""
    try:
        now = parsedate_to_datetime(present).timestamp() if present else time.time()
        return parsedate_to_datetime(named).timestamp() - now
    except (TypeError, ValueError):
        return math.nan
