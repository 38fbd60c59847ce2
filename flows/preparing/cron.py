"""Cron expressions, read by the very library that Prefect's schedules are made of.

Prefect carries its own copy of croniter. It is loaded from its file, because importing anything of Prefect fixes
Prefect's settings for good, and a suite is read before they are known.
"""

import importlib.util
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from zoneinfo import ZoneInfo

_NAME = "evalhouse_prefect_croniter"
_EXAMPLE = "five fields: minute, hour, day of month, month, day of week, such as '0 3 * * *' for each night at three"


def explain_bad_cron(cron: str) -> str | None:
    """What is wrong with a cron expression, or None for one that Prefect takes and that fires some day."""
    croniter = _load_croniter()
    # Prefect refuses croniter's own random and hashed fields.
    if any(field.casefold() in ("r", "h") for field in cron.split()):
        return f"random and hashed fields (R, H) are not allowed; write {_EXAMPLE}"
    try:
        croniter.croniter(cron).get_next()
    except croniter.CroniterBadDateError:
        return "there is no such day, so it would never fire"
    except (croniter.CroniterError, ValueError, AttributeError, KeyError):
        return f"it is no cron expression; write {_EXAMPLE}"
    return None


def list_fires(cron: str, timezone: str, *, n: int, after: datetime) -> Sequence[datetime]:
    """The next times at which a schedule fires, in its own time zone; `after` has a zone.

    As in Prefect the clock on the wall counts: croniter's own reckoning is an hour off after a change of clocks.
    """
    zone = ZoneInfo(timezone)
    iterator = _load_croniter().croniter(cron, after.astimezone(zone).replace(tzinfo=None))
    return [iterator.get_next(datetime).replace(tzinfo=zone) for _ in range(n)]


@cache
def _load_croniter() -> ModuleType:
    prefect = importlib.util.find_spec("prefect")
    if prefect is None or prefect.origin is None:
        raise ModuleNotFoundError("prefect is not installed")
    path = Path(prefect.origin).parent / "_vendor" / "croniter" / "croniter.py"
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no croniter in {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module
