"""The settings of traces: which of the received traces a suite reads, and the file of `evalhouse receive`."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from evalhouse.tasks.settings.suite import Age

TraceFormat = Literal["otel", "openinference", "langfuse", "langsmith", "phoenix"]
TRACES: Final = "traces"
"""The dataset's name."""
_SPAN: Final = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 168}


def _check_span(text: str) -> str:
    if _SPAN.fullmatch(text) is None:
        raise PydanticCustomError("span", "write a number of hours, days or weeks, such as 24h, 7d or 2w")
    return text


def _check_time(text: str | None) -> str | None:
    try:
        is_utc = text is None or datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        is_utc = False
    if not is_utc:
        raise PydanticCustomError("time", "write a time in UTC, without a zone, such as 2026-03-14T02:00")
    return text


class TraceWindow(BaseModel):
    """The traces that began in the time before a run. `until` is set by each run: a resumed one has the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    last: Annotated[str, AfterValidator(_check_span)] = Field(
        default="24h", description="how far back from the start of a run: 24h, 7d, 2w"
    )
    service: str | None = Field(default=None, min_length=1, description="only traces with a span of this service.name")
    until: Annotated[str | None, AfterValidator(_check_time)] = Field(
        default=None, description="end of the time, UTC; set by each run for itself"
    )

    def end_at(self, now: datetime) -> "TraceWindow":
        """Return the same window with its end; one that has an end keeps it."""
        return self if self.until is not None else self.model_copy(update={"until": now.isoformat()})

    def find_bounds(self, now: datetime) -> tuple[datetime, datetime]:
        """Return begin and end, the end not included."""
        match = _SPAN.fullmatch(self.last)
        assert match is not None  # it is checked above
        end = datetime.fromisoformat(self.until) if self.until is not None else now
        return end - timedelta(hours=int(match[1]) * _HOURS[match[2]]), end


_LONE_BACKSLASH: Final = re.compile(r"\\(?![0-9\\g])")
_NUMBER: Final = r"(?<![\w.])"
PATTERNS: Final[dict[str, str]] = {
    "email": r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "phone": rf"{_NUMBER}(?:\+|00)\d{{1,3}}[ ./-]?(?:\(\d{{1,4}}\)[ ./-]?)?\d(?:[ ./-]?\d){{6,12}}(?!\w)"
    rf"|{_NUMBER}\(?0?\d{{2,5}}\)?[ ./-]\d{{3,4}}[ ./-]?\d{{3,5}}(?![\w.])|{_NUMBER}1[3-9]\d{{9}}(?!\w)",
    "card": rf"{_NUMBER}\d{{4}}[ -]?\d{{4}}[ -]?\d{{4}}[ -]?\d{{1,7}}(?!\w)",
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
    "ip": rf"{_NUMBER}(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?![\w.])",
    "key": r"\b(?:sk|pk|rk|ghp|gho|xox[abp])[-_][\w-]{16,}|\bAKIA[A-Z0-9]{16}\b"
    r"|\beyJ[\w-]{8,300}\.[\w-]{8,}\.[\w-]+|(?i:bearer)\s+[\w.~+/=-]{16,}",
}
"""The built-in patterns of redaction by name; a match becomes `[name]`. Each searches any text in a time in proportion
to its length: every repetition has an end."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _check_pattern(pattern: str) -> str:
    try:
        matches_nothing = re.compile(pattern).match("") is not None
    except re.error as error:
        raise PydanticCustomError("pattern", "not a regular expression: {why}", {"why": str(error)}) from None
    if matches_nothing:
        raise PydanticCustomError("empty_pattern", "this is found everywhere, in an empty text too; narrow it down")
    return pattern


class OwnPattern(_Table):
    """A regular expression and the replacement of its matches, in which \\1 is its first group."""

    pattern: Annotated[str, AfterValidator(_check_pattern)]
    replacement: str = "[redacted]"

    @field_validator("replacement")
    @classmethod
    def _check_replacement(cls, replacement: str) -> str:
        if _LONE_BACKSLASH.search(replacement):
            raise PydanticCustomError("replacement", "a backslash stands before a group's number here; write two")
        return replacement


class Redaction(_Table):
    """What is removed from every text of a span before it is stored."""

    patterns: tuple[str, ...] = Field(default=(), description=f"built-in patterns: {', '.join(PATTERNS)}")
    own: tuple[OwnPattern, ...] = Field(default=(), description="patterns of your own, each with its replacement")

    @field_validator("patterns")
    @classmethod
    def _check_patterns(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in PATTERNS]
        if unknown:
            known = {"unknown": ", ".join(unknown), "known": ", ".join(PATTERNS)}
            raise PydanticCustomError("unknown_pattern", "there is no pattern {unknown}; known: {known}", known)
        return names


class Sampling(_Table):
    """Which traces are kept: a share of all, and those that another rule names, whatever the share."""

    share: float = Field(default=1.0, ge=0, le=1, description="share of all traces, picked by their ids")
    errors: bool = Field(default=True, description="keep each trace that has a span with an error")
    slower_than_ms: float | None = Field(default=None, gt=0, description="keep each trace with a span that took longer")
    attributes: dict[str, tuple[str, ...]] = Field(
        default={}, description="keep each trace with a span whose attribute has one of these values; none means any"
    )
    wait_s: float = Field(
        default=30.0, gt=0, le=3600, description="how long the spans of a trace wait for one that keeps it"
    )


class TraceRetention(_Table):
    """How long received spans are kept."""

    traces: Age | None = Field(default=None, description="age at which spans go: 30d")


class ReceiverSettings(_Table):
    """All settings of a receiver's file."""

    sampling: Sampling = Sampling()
    redaction: Redaction = Redaction()
    retention: TraceRetention = TraceRetention()
    body_mb: float = Field(default=16.0, gt=0, le=1024, description="largest request, unpacked, in MiB")
    waiting_spans: int = Field(
        default=200_000,
        ge=1,
        description="spans on disk that are not in the warehouse yet, from which on none are taken",
    )
