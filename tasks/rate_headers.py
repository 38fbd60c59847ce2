"""What an endpoint tells of its limits in the headers of an answer."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RateLimits:
    """Limits, what is left of them, and the seconds until they are full again; None where the endpoint did not say."""

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset_s: float | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset_s: float | None = None


def read_rate_limits(headers: Mapping[str, str]) -> RateLimits | None:
    """None when there is no such header."""
    return None
