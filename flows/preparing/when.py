"""The tables of a suite that say when it runs: [schedule] and [trigger]."""

from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from evalhouse.flows.preparing.triggers import (
    UpdateSource,
    explain_bad_asset,
    explain_bad_cron,
    explain_bad_name,
    explain_bad_timezone,
    make_asset_source,
    make_kb_source,
)


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
