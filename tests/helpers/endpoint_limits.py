"""Limits by the minute of the local endpoint: how much is let in, and what is told of it in headers.

Providers count in three ways, and all three are here: `sliding` lets in what fits into the last minute, whenever that
began; `fixed` begins anew each minute; `bucket` refills all the time (OpenAI, Groq). Neighbour of `endpoint.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, Protocol

Window = Literal["sliding", "fixed", "bucket"]


class Rules(Protocol):
    """What of the endpoint's options is looked at here."""

    @property
    def rpm(self) -> int | None: ...
    @property
    def tpm(self) -> int | None: ...
    @property
    def rpm_window_s(self) -> float: ...
    @property
    def window(self) -> Window: ...


@dataclass(frozen=True, kw_only=True)
class _Entry:
    at: float
    units: int


@dataclass(kw_only=True)
class Allowance:
    """What has been used of one limit, of requests or of tokens. Times are on the monotonic clock."""

    entries: deque[_Entry] = field(default_factory=deque)  # sliding and fixed: what was let in
    used: float = 0.0
    at: float | None = None  # fixed: when the window began; bucket: when `used` was right

    def refresh(self, limit: int, window_s: float, window: Window, now: float) -> None:
        """Forget what no longer counts."""
        if window == "bucket":
            self.used = max(0.0, self.used - (now - (self.at or now)) * limit / window_s)
            self.at = now
            return
        if window == "fixed":
            if self.at is None or now >= self.at + window_s:
                self.at, self.used = now, 0.0
            return
        while self.entries and self.entries[0].at <= now - window_s:
            self.used -= self.entries.popleft().units

    def take(self, units: int, window: Window, now: float) -> None:
        """Count what is let in."""
        self.used += units
        if window == "sliding":
            self.entries.append(_Entry(at=now, units=units))

    def find_reset_s(self, limit: int, window_s: float, window: Window, now: float) -> float:
        """Seconds until more is left: all of it, or with a sliding window some."""
        if window == "bucket":
            return self.used * window_s / limit
        if window == "fixed":
            return (self.at or now) + window_s - now
        return self.entries[0].at + window_s - now if self.entries else 0.0

    def find_wait_s(self, units: int, limit: int, window_s: float, window: Window, now: float) -> float:
        """Seconds until it is worth to ask for so many again."""
        if window == "bucket":
            return min(self.used, self.used + units - limit) * window_s / limit
        return self.find_reset_s(limit, window_s, window, now)


@dataclass(kw_only=True)
class Counted:
    """Both allowances of an endpoint."""

    requests: Allowance = field(default_factory=Allowance)
    tokens: Allowance = field(default_factory=Allowance)

    def let_in(self, tokens: int, rules: Rules, now: float) -> float | None:
        """None if a request of so many tokens is let in and counted, else the seconds until it is worth another try."""
        needs = ((self.requests, rules.rpm, 1), (self.tokens, rules.tpm, tokens))
        waits = []
        for allowance, limit, units in needs:
            if limit is None:
                continue
            allowance.refresh(limit, rules.rpm_window_s, rules.window, now)
            # What is larger than the limit is let in when nothing else is counted.
            if allowance.used + units > limit + 1e-6 and allowance.used > 0:
                waits.append(allowance.find_wait_s(units, limit, rules.rpm_window_s, rules.window, now))
        if waits:
            return max(waits)
        for allowance, limit, units in needs:
            if limit is not None:
                allowance.take(units, rules.window, now)
        return None
