"""What `evalhouse receive` keeps of the traces that reach it, strict and typed: the tables of its file."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from evalhouse.tasks.settings.retention import Age

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
"""The built-in patterns of redaction by name; what they find becomes `[name]`. Each goes through any text in a time in
proportion to its length: what is repeated has an end."""


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
    """A regular expression and what takes the place of what it finds, in which \\1 is its first group."""

    pattern: Annotated[str, AfterValidator(_check_pattern)]
    replacement: str = "[redacted]"

    @field_validator("replacement")
    @classmethod
    def _check_replacement(cls, replacement: str) -> str:
        if _LONE_BACKSLASH.search(replacement):
            raise PydanticCustomError("replacement", "a backslash stands before a group's number here; write two")
        return replacement


class Redaction(_Table):
    """What is taken out of every text of a span before anything of it is stored."""

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
    """Which traces are kept: a share of all, and those that any of the other rules names, whatever the share."""

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
    """All that a receiver's file may say."""

    sampling: Sampling = Sampling()
    redaction: Redaction = Redaction()
    retention: TraceRetention = TraceRetention()
    body_mb: float = Field(default=16.0, gt=0, le=1024, description="largest request, unpacked, in MiB")
    waiting_spans: int = Field(
        default=200_000,
        ge=1,
        description="spans on disk that are not in the warehouse yet, from which on none are taken",
    )
