"""A deadline as people write it: a time of day, `06:00`, or a time from now, `8h`, `90m`, `1h30m`."""

import re
from datetime import datetime, timedelta

from pydantic_core import PydanticCustomError

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
_SPAN = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,5})m(?:in)?)?(?:(\d{1,6})s)?", re.ASCII)


def find_deadline(written: str, now: datetime) -> datetime:
    """When it is: the next such time of day after `now` in its zone, or so long after it.

    Raises PydanticCustomError, a ValueError, for what is neither.
    """
    if time := _TIME.fullmatch(written):
        today = now.replace(hour=int(time[1]), minute=int(time[2]), second=0, microsecond=0)
        return today if today > now else today + timedelta(days=1)
    span = _SPAN.fullmatch(written)
    if span is None or not any(span.groups()):
        raise PydanticCustomError(
            "not_a_deadline", "not a deadline; write a local time like 06:00, or a time from now like 8h or 90m"
        )
    hours, minutes, seconds = (int(part or 0) for part in span.groups())
    return now + timedelta(hours=hours, minutes=minutes, seconds=seconds)
