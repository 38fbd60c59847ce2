"""How fast requests may start, for one kind of thing that is counted by the minute: requests, or their tokens.

A rate of the settings is kept as a distance between starts, so that a minute has no burst at its beginning and no
window of 60 s has more than the rate (of tokens: more than the rate and one request). What the endpoint tells of
itself is treated as credit: as long as most of it is left, nothing is slowed down; then what is left is spread over
the time until it is full again; and when it is gone, nothing starts until then. Two kinds of endpoint are told apart
by what they say: those that count by the minute (or the second) and begin anew, and those that refill all the time
(OpenAI, Groq), where a little is back long before all of it is. `limits.py` holds one of these for requests and one
for tokens.
"""

import math
from dataclasses import dataclass

_MINUTE_S = 60.0
# So much of a delay (of a timer, of a busy event loop) is made up for by starting sooner afterwards.
_MADE_UP_S = 0.25
# A minute's worth is spread over a little more than a minute: what is made up for must not exceed the rate, nor may
# what the network delays and then delivers at once.
_SPREAD = 1 + 2 * _MADE_UP_S / _MINUTE_S
# A reset later than this is of a limit by the hour or the day, which is there to be used and not to be spread.
_MINUTE_LIMIT_S = 65.0
# Such a limit, once used up, is tried again this often: it may have been raised, or others may have returned some.
_PROBE_S = _MINUTE_S
_UNTOLD_RESET_S = 1.0
# Parts of a limit: with less than the first left the limit's own pace is kept, with less than the second what is left
# is spread, so that it lasts; but at no less than a part of that pace, since the next answer may know of more.
_PLENTY = 0.5
_RESERVE = 0.25
_LEAST_PACE = 0.1
_LEAST_PACE_REFILLING = 0.5
# Only between these shares of use does what is told tell a limit that refills from one that begins anew.
_LEAST_TELLING = 0.1
_MOST_TELLING = 0.6


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What an answer said of one kind: the limit, what is left of it, and the seconds until it is full again."""

    limit: int | None
    remaining: int | None
    reset_s: float | None


class Spacing:
    """A distance between starts. It is paid after a start, so a request of any size can go."""

    __slots__ = ("interval_s", "next_at")

    def __init__(self, interval_s: float = 0.0) -> None:
        self.interval_s = interval_s
        self.next_at = 0.0

    def take(self, units: float, now: float) -> None:
        """Count a start of so many units."""
        if self.interval_s:
            since = max(self.next_at, now - _MADE_UP_S) if self.next_at else now
            self.next_at = since + units * self.interval_s

    def change(self, interval_s: float, now: float) -> None:
        """Go on at another pace, with what is still to be waited for counted at the new one."""
        if self.interval_s == interval_s:
            return
        if self.interval_s and self.next_at > now:
            self.next_at = now + (self.next_at - now) * interval_s / self.interval_s
        elif not self.interval_s:
            self.next_at = now
        self.interval_s = interval_s


class Rate:
    """When the next request may start as far as one kind is concerned. All times are on the monotonic clock."""

    def __init__(self, per_minute: int | None) -> None:
        self._setting = per_minute
        self._fraction = 1.0
        self._own = Spacing(_SPREAD * _MINUTE_S / per_minute if per_minute else 0.0)
        self._told = Spacing()
        self._limit: int | None = None
        self._credit = math.inf
        self._heard_at = 0.0
        self._reset_at = 0.0
        self._remaining = math.inf
        self._starved = False  # somebody has waited for more credit since the endpoint told how much there is
        self._scarce = False  # more than half of the limit was used at some time
        self._longest_reset_s = 0.0
        self._window_s = _MINUTE_S  # of the told limit
        self._refilling = False
        self._refilling_since = 0.0
        self._begins_anew_at = -math.inf
        self._by_minute = True

    def share(self, fraction: float, now: float) -> None:
        """Keep to this part of the setting and of what the endpoint tells; a part of 0 changes nothing."""
        if fraction <= 0:
            return
        self._fraction = fraction
        if self._setting:
            self._own.change(_SPREAD * _MINUTE_S / (self._setting * fraction), now)

    def find_start(self, units: float, now: float) -> float:
        """When a request of so many units may start; in the past if it may at once."""
        if self._reset_at and now >= self._reset_at:
            self._begin_anew(now)
        at = max(self._own.next_at, self._told.next_at)
        return max(at, self._find_refill(units)) if self._credit < max(1.0, units) else at

    def take(self, units: float, now: float) -> None:
        """Count a start."""
        self._credit -= units
        self._own.take(units, now)
        self._told.take(units, now)
        if self._reset_at:
            self._told.next_at = min(self._told.next_at, self._reset_at)

    def correct(self, units: float, now: float) -> None:
        """Count so many more, or fewer, than was taken for a request that has been answered."""
        self._own.take(units, now)
        self._told.take(units, now)

    def note_refused(self, units: float, started_at: float) -> bool:
        """Whether a refused request was so for this rate: the endpoint has told that it has not so much left."""
        for_this = started_at <= self._heard_at < self._reset_at and self._remaining < max(1.0, units)
        if for_this and self._refilling and started_at > self._refilling_since:
            # Others take what is refilled: better to wait until all of it is back.
            self._refilling, self._begins_anew_at = False, self._heard_at
        return for_this

    def hear(self, told: Told, uncounted: float, now: float) -> None:
        """Believe the endpoint; `uncounted` has started since, or may have, and is not in what it says."""
        self._limit = told.limit or self._limit
        if told.remaining is None:
            self._told.change(self._spread_limit() if self._limit else 0.0, now)
            return
        reset_s = _UNTOLD_RESET_S if told.reset_s is None else told.reset_s
        self._by_minute = reset_s <= _MINUTE_LIMIT_S
        self._remaining = told.remaining
        self._starved = False
        self._heard_at = now
        self._reset_at = now + min(reset_s, _PROBE_S)
        self._credit = (told.remaining - uncounted) * self._fraction
        if self._limit and told.reset_s and self._by_minute:
            self._tell_window(reset_s, (self._limit - told.remaining) / self._limit)
        self._told.change(self._spread_credit(reset_s, told.reset_s is not None), now)

    def _tell_window(self, reset_s: float, used: float) -> None:
        """Learn from a reset that was told when this share of the limit was used.

        A window that begins anew is as long as the longest reset. What refills needs for all of it that much longer
        than for what is used as all is more than that; and as only it says so at all times, that tells it apart.
        """
        self._longest_reset_s = max(self._longest_reset_s, reset_s)
        if used >= _PLENTY:
            self._window_s = min(_MINUTE_S, max(self._longest_reset_s, reset_s / used))
        elif not self._scarce:
            self._window_s = min(_MINUTE_S, self._longest_reset_s)
        if not _LEAST_TELLING <= used <= _MOST_TELLING:
            return
        if abs(reset_s - _MINUTE_S * used) > 1.0 + _MINUTE_S * used / 10:
            self._begins_anew_at = self._heard_at
        refilling = self._heard_at - self._begins_anew_at > _MINUTE_LIMIT_S
        if refilling and not self._refilling:
            self._refilling_since = self._heard_at
        self._refilling = refilling

    def _spread_limit(self) -> float:
        """Seconds a unit at the pace of the told limit."""
        return _SPREAD * self._window_s / (self._limit * self._fraction) if self._limit else 0.0

    def _spread_credit(self, reset_s: float, reset_told: bool) -> float:
        """Seconds a unit, so that the credit lasts until the reset."""
        if not self._by_minute or not reset_told or not reset_s:
            return 0.0
        lasting_s = reset_s / max(1.0, self._credit)
        if self._limit is None:
            return lasting_s
        part = self._credit / (self._limit * self._fraction)
        self._scarce = self._scarce or part <= _PLENTY
        if not self._scarce:
            return 0.0
        pace_s = self._spread_limit()
        return pace_s if part > _RESERVE else min(max(pace_s, lasting_s), pace_s / self._least_pace)

    @property
    def _least_pace(self) -> float:
        return _LEAST_PACE_REFILLING if self._refilling else _LEAST_PACE

    def _find_refill(self, units: float) -> float:
        self._starved = True
        if not self._refilling or not self._limit:
            return self._reset_at
        back_s = (units - self._credit) * _MINUTE_S / (self._limit * self._fraction)
        return min(self._reset_at, self._heard_at + back_s)

    def _begin_anew(self, now: float) -> None:
        """What was told is over: at the limit's pace from here until more is told."""
        self._credit = math.inf
        self._reset_at = 0.0
        if not self._by_minute:
            self._told.change(_PROBE_S if self._starved else 0.0, now)
        else:
            self._told.change(self._spread_limit() if self._scarce else 0.0, now)
