"""Headers about limits: every provider's spelling is read, and nothing that came with a good answer is an error."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from evalhouse.tasks.judge.rate_headers import RateLimits, read_rate_limits

OPENAI = {
    "x-ratelimit-limit-requests": "5000",
    "x-ratelimit-limit-tokens": "160000",
    "x-ratelimit-remaining-requests": "4999",
    "x-ratelimit-remaining-tokens": "159976",
    "x-ratelimit-reset-requests": "12ms",
    "x-ratelimit-reset-tokens": "6m0s",
}


def test_openai() -> None:
    assert read_rate_limits(OPENAI) == RateLimits(
        requests_limit=5000,
        requests_remaining=4999,
        requests_reset_s=pytest.approx(0.012),
        tokens_limit=160000,
        tokens_remaining=159976,
        tokens_reset_s=360.0,
    )


@pytest.mark.parametrize("make", [dict, CIMultiDict, httpx.Headers], ids=["dict", "aiohttp", "httpx"])
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title], ids=["lower", "upper", "title"])
def test_the_case_of_names_does_not_matter(make: type, spell: object) -> None:
    headers = make({spell(name): value for name, value in OPENAI.items()})  # type: ignore[operator]
    assert read_rate_limits(headers) == read_rate_limits(OPENAI)


def test_nothing_is_told() -> None:
    assert read_rate_limits({"content-type": "application/json", "x-request-id": "req_1"}) is None
    assert read_rate_limits({}) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("120ms", 0.12),
        ("1h2m3.5s", 3723.5),
        ("2m59.56s", 179.56),
        ("1d2h", 93600.0),
        ("0", 0.0),
        ("59.7", 59.7),
        (" 7 ", 7.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    told = read_rate_limits({"x-ratelimit-reset-tokens": text})
    assert told is not None
    assert told.tokens_reset_s == pytest.approx(seconds)


@pytest.mark.parametrize("write", [
    lambda until: until.isoformat().replace("+00:00", "Z"),
    lambda until: until.astimezone().isoformat(),
    lambda until: until.replace(tzinfo=None).isoformat(),
    lambda until: str(int(until.timestamp())),
    lambda until: str(int(until.timestamp() * 1000)),
], ids=["Z", "offset", "naive", "epoch", "epoch in ms"])  # fmt: skip
def test_times_count_from_the_clock_of_the_endpoint(write: object) -> None:
    # The endpoint's clock is an hour behind ours, which must not look like an hour to wait.
    theirs = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    headers = {"Date": format_datetime(theirs, usegmt=True), "x-ratelimit-reset": write(theirs + timedelta(seconds=42))}  # type: ignore[operator]
    told = read_rate_limits(headers)
    assert told is not None
    assert told.requests_reset_s == pytest.approx(42.0)


def test_a_time_without_the_endpoints_clock_counts_from_ours_and_the_past_is_over() -> None:
    told = read_rate_limits({"x-ratelimit-reset-requests": str(time.time() + 100), "x-ratelimit-reset-tokens": "1e3"})
    assert told is not None
    assert told.requests_reset_s == pytest.approx(100.0, abs=5)
    past = read_rate_limits({"x-ratelimit-reset-requests": "2020-01-01T00:00:00Z"})
    assert past is not None
    assert past.requests_reset_s == 0.0


def test_anthropic() -> None:
    date = "Tue, 02 Jun 2026 10:00:00 GMT"
    told = read_rate_limits(
        {
            "date": date,
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2026-06-02T10:00:05Z",
            "anthropic-ratelimit-tokens-limit": "50000",
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-tokens-reset": "2026-06-02T10:01:00Z",
        }
    )
    assert told == RateLimits(
        requests_limit=50,
        requests_remaining=49,
        requests_reset_s=5.0,
        tokens_limit=50000,
        tokens_remaining=0,
        tokens_reset_s=60.0,
    )


def test_windows_in_the_name_and_plain_names() -> None:
    mistral = {"x-ratelimit-limit-req-minute": "60", "x-ratelimit-remaining-tokens-minute": "47300"}
    assert read_rate_limits(mistral) == RateLimits(requests_limit=60, tokens_remaining=47300)
    by_day = {"x-ratelimit-limit-requests-day": "14400", "x-ratelimit-remaining-tokens-day": "0"}
    assert read_rate_limits(by_day) is None
    plain = {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0"}
    assert read_rate_limits(plain) == RateLimits(requests_limit=20, requests_remaining=0)


@pytest.mark.parametrize("order", [1, -1])
def test_the_more_telling_name_rules(order: int) -> None:
    both = {"x-ratelimit-limit": "1000", "x-ratelimit-limit-requests": "60"}
    assert read_rate_limits(dict(list(both.items())[::order])) == RateLimits(requests_limit=60)


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "many", "100, 100;w=60", "1.5.2", "5s ago", "١٢x", "9" * 400])
def test_what_cannot_be_read_is_passed_over(text: str) -> None:
    garbage = dict.fromkeys(OPENAI, text)
    assert read_rate_limits(garbage) is None
    assert read_rate_limits({**garbage, "x-ratelimit-remaining-tokens": "7"}) == RateLimits(tokens_remaining=7)


def test_a_limit_of_nothing_is_no_limit() -> None:
    azure = {"x-ratelimit-limit-tokens": "0", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "0"}
    assert read_rate_limits(azure) is None
    assert read_rate_limits({**azure, "x-ratelimit-limit-requests": "9"}) == RateLimits(requests_limit=9)


_NAMES = st.sampled_from(
    [*OPENAI, "x-ratelimit-reset", "anthropic-ratelimit-tokens-reset", "Date", "X-RateLimit-Limit"]
)
_TEXTS = st.one_of(st.text(), st.from_regex(r"[0-9.:TZ+hmsd -]{1,25}"), st.datetimes().map(str), st.integers().map(str))


@given(st.dictionaries(_NAMES, _TEXTS))
def test_no_header_is_an_error_and_no_number_is_below_zero(headers: dict[str, str]) -> None:
    told = read_rate_limits(headers)
    if told is not None:
        values = [getattr(told, field) for field in RateLimits.__dataclass_fields__]
        assert any(value is not None for value in values)
        assert all(0 <= value < float("inf") for value in values if value is not None)
