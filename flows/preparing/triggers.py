"""Why and when a run happens: by hand, by schedule, or because a knowledge base announced an update, or another flow
has materialized an asset; and the tables of a suite that say so, [schedule] and [trigger].

Cron expressions are read by the very library that Prefect's schedules are made of. Prefect carries its own copy of
croniter; it is loaded from its file, because importing anything of Prefect fixes Prefect's settings for good, and a
suite is read before they are known.
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from evalhouse.flows.errors import SettingsError

UPDATED: Final = "knowledge-base.updated"
# What Prefect emits when a task that was made with `@materialize` has completed.
MATERIALIZED: Final = "prefect.asset.materialization.succeeded"
# What Prefect takes as an asset's key, without `*`, which a trigger would read as any text.
_ASSET_KEY = re.compile(r"[a-z][a-z0-9+.-]*://[^\s#?&%\"'<>\[\]{}|\\^`*]+")
_RESTRICTED = "* # ? & % \" ' < > [ ] { } | \\ ^ `"
_LONGEST_KEY = 512
# `*`, `?`, `[` and `!` would make Prefect's triggers match other names.
_NAME = re.compile(r"[\w./:@+-]+(?: [\w./:@+-]+)*")
_CRONITER = "evalhouse_prefect_croniter"
_EXAMPLE = "five fields: minute, hour, day of month, month, day of week, such as '0 3 * * *' for each night at three"


def check_kb_name(name: str) -> str:
    """The name, or SettingsError when it could be mistaken for another one."""
    if wrong := explain_bad_name(name):
        raise SettingsError(f"{name!r}: {wrong}")
    return name


def explain_bad_name(name: str) -> str | None:
    """What is wrong with the name of a knowledge base, and what is allowed; None when it is fine."""
    if _NAME.fullmatch(name) and len(name) <= 200:
        return None
    return (
        "it cannot name a knowledge base; allowed are letters, digits and . _ - / : @ +, with single blanks between "
        "them, at most 200"
    )


def explain_bad_asset(key: str) -> str | None:
    """What is wrong with the key of an asset, and what is allowed; None when it is fine."""
    if _ASSET_KEY.fullmatch(key) and len(key) <= _LONGEST_KEY:
        return None
    return (
        "it cannot be the key of an asset; write it as in @materialize: a scheme in small letters, :// and a name, "
        f"such as s3://kb/handbook, at most {_LONGEST_KEY} characters, no blanks and none of {_RESTRICTED}"
    )


@dataclass(frozen=True, kw_only=True)
class UpdateSource:
    """Where updates come from: its name on record, and the resource and the event of Prefect's that announce one."""

    name: str
    resource: str
    event: str

    @property
    def is_asset(self) -> bool:
        """Whether Prefect announces its updates, and nobody else has to."""
        return self.event == MATERIALIZED


def make_kb_source(kb_name: str) -> UpdateSource:
    """A knowledge base that announces its updates; raises SettingsError for what cannot be its name."""
    return UpdateSource(name=check_kb_name(kb_name), resource=f"knowledge-base.{kb_name}", event=UPDATED)


def make_asset_source(key: str) -> UpdateSource:
    """An asset that flows materialize; raises SettingsError for what cannot be its key."""
    if wrong := explain_bad_asset(key):
        raise SettingsError(f"{key!r}: {wrong}")
    return UpdateSource(name=key, resource=key, event=MATERIALIZED)


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
        return f"it is not a cron expression; write {_EXAMPLE}"
    return None


def explain_bad_timezone(timezone: str) -> str | None:
    """What is wrong with the name of a time zone, or None."""
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "there is no such time zone; allowed are names such as UTC, Europe/Berlin, Asia/Shanghai"
    return None


def list_fires(cron: str, timezone: str, *, n: int, after: datetime) -> Sequence[datetime]:
    """The next times at which a schedule fires, in its own time zone; `after` has a zone.

    As in Prefect the clock on the wall counts: croniter's own computation is an hour off after a change of clocks.
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
    spec = importlib.util.spec_from_file_location(_CRONITER, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"there is no croniter in {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_CRONITER] = module
    spec.loader.exec_module(module)
    return module


def refused_by(explain: Callable[[str], str | None]) -> AfterValidator:
    """A check of a text by what explains what is wrong with it."""

    def check(text: str) -> str:
        if wrong := explain(text):
            raise PydanticCustomError("refused", "{wrong}", {"wrong": wrong})
        return text

    return AfterValidator(check)


class Table(BaseModel):
    """A table of a suite: its keys are these and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Schedule(Table):
    """When a suite runs by itself."""

    cron: Annotated[str, refused_by(explain_bad_cron)]
    timezone: Annotated[str, refused_by(explain_bad_timezone)] = "UTC"


# Half an hour is worth a run; beyond a week Prefect has forgotten the first update.
_USUAL_WAIT_S: Final = 1_800.0
_LONGEST_WAIT_S: Final = 604_800.0


class KnowledgeBase(Table):
    """What starts a run by its updates: a knowledge base that announces them, or an asset that flows materialize.

    Prefect waits no shorter than ten seconds for quiet."""

    asset: Annotated[str, refused_by(explain_bad_asset)] | None = None
    knowledge_base: Annotated[str, refused_by(explain_bad_name)] | None = Field(default=None, validate_default=True)
    debounce_s: float = Field(default=60.0, ge=10, le=86_400)
    max_wait_s: float | None = Field(default=None, le=_LONGEST_WAIT_S)
    only_affected: bool = False

    @field_validator("knowledge_base")
    @classmethod
    def _is_one_of_two(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None and info.data.get("asset", "") is None:
            raise PydanticCustomError("absent", "is missing; give it, or `asset` in its place")
        if name is not None and info.data.get("asset") is not None:
            raise PydanticCustomError("refused", "there is an `asset` as well; a suite has one of the two")
        return name

    @field_validator("max_wait_s")
    @classmethod
    def _is_no_shorter_than_quiet(cls, seconds: float | None, info: ValidationInfo) -> float | None:
        quiet_s = info.data.get("debounce_s")
        if seconds is not None and quiet_s is not None and seconds < quiet_s:
            wrong = f"an update cannot wait shorter than debounce_s; give at least {quiet_s:g}"
            raise PydanticCustomError("refused", "{wrong}", {"wrong": wrong})
        return seconds

    @property
    def source(self) -> UpdateSource:
        """Where the updates come from."""
        return make_asset_source(self.asset) if self.asset is not None else make_kb_source(self.knowledge_base or "")

    @property
    def longest_wait_s(self) -> float:
        """How long the first update of a stream that does not end waits for its run."""
        if self.max_wait_s is not None:
            return self.max_wait_s
        return min(max(10 * self.debounce_s, _USUAL_WAIT_S), _LONGEST_WAIT_S)
