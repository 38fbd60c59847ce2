"""How long what is kept of a suite's runs: their texts, their scores, and what Prefect has recorded of them."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

_AGE: Final = re.compile(r"([1-9][0-9]{0,4})([dwy])")
_DAYS: Final = {"d": 1, "w": 7, "y": 365}
_ALLOWED: Final = "write a number of days, weeks or years, such as 180d, 26w or 2y"
NEVER: Final = "never"
# As long as updates without a run are looked for: by its flow run one is known to have been tried.
_LEAST_HISTORY: Final = timedelta(days=30)


def read_age(text: str) -> timedelta:
    """An age as it is written, such as `180d`; raises ValueError that says what is allowed."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise ValueError(_ALLOWED)
    return timedelta(days=int(match[1]) * _DAYS[match[2]])


def _check_age(text: str) -> str:
    if _AGE.fullmatch(text) is None:
        raise PydanticCustomError("age", "{allowed}", {"allowed": _ALLOWED})
    return text


def _check_history_age(text: str) -> str:
    if text == NEVER:
        return text
    if _AGE.fullmatch(text) is None or read_age(text) < _LEAST_HISTORY:
        allowed = f'{_ALLOWED}, at least {_LEAST_HISTORY.days}d, or "{NEVER}"'
        raise PydanticCustomError("history_age", "{allowed}", {"allowed": allowed})
    return text


Age = Annotated[str, AfterValidator(_check_age)]
HistoryAge = Annotated[str, AfterValidator(_check_history_age)]


class Retention(BaseModel):
    """After which age a run of the suite is forgotten; what is not given is kept, but for Prefect's history."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    texts: Age | None = Field(default=None, description="age at which a run's texts, requests and replies go: 180d")
    scores: Age | None = Field(default=None, description="age at which a run goes altogether, scores and all: 5y")
    prefect: HistoryAge = Field(default="30d", description="age at which Prefect's record of a served run goes: 30d")

    @model_validator(mode="after")
    def _check_order(self) -> "Retention":
        if self.texts and self.scores and read_age(self.scores) < read_age(self.texts):
            raise PydanticCustomError("order", "scores go with the texts they rest on; let `scores` be the longer one")
        return self

    def list_ages(self) -> list[tuple[str, bool]]:
        """The ages at which something is forgotten in the warehouse, each with whether the scores go too."""
        return [(age, with_scores) for age, with_scores in ((self.scores, True), (self.texts, False)) if age]


def find_cutoff(age: str, now: datetime) -> datetime:
    """The time before which something is older than this age."""
    return now - read_age(age)
