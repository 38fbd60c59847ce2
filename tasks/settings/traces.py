"""Which of the traces that were received are a suite's dataset: its `[traces]`."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

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
    """The traces that began in the time before a run. `until` is made for each run: a resumed one has the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    last: Annotated[str, AfterValidator(_check_span)] = Field(
        default="24h", description="how far back from the start of a run: 24h, 7d, 2w"
    )
    service: str | None = Field(default=None, min_length=1, description="only traces with a span of this service.name")
    until: Annotated[str | None, AfterValidator(_check_time)] = Field(
        default=None, description="end of the time, UTC; set by each run for itself"
    )

    def end_at(self, now: datetime) -> "TraceWindow":
        """The same window with its end; one that has an end keeps it."""
        return self if self.until is not None else self.model_copy(update={"until": now.isoformat()})

    def find_bounds(self, now: datetime) -> tuple[datetime, datetime]:
        """From when to when, the end not included."""
        match = _SPAN.fullmatch(self.last)
        assert match is not None  # it is checked above
        end = datetime.fromisoformat(self.until) if self.until is not None else now
        return end - timedelta(hours=int(match[1]) * _HOURS[match[2]]), end
