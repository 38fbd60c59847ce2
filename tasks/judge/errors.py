"""The errors of a judge, by what has to be done about them.

JudgeError
├── FatalJudgeError       nothing will work: wrong key, unknown model; the run stops with this message
│   └── RunCancelled      a person or a signal stopped the run
├── TransientJudgeError   the same request may work in a moment: 429, 5xx, timeout, reset
├── RefusedRequest        this request will never work: content filter, too long; the sample is unscored
├── UnusableReply         a reply came and cannot be read; asked again with a note
│   └── CutReply          the output limit cut it off before anything usable; the same is asked in parts
├── UnsupportedOption     the endpoint does not know an option we sent; sent again without it
├── EndpointDown          a question was given up on transport errors; Prefect may retry the task
└── JudgeFailed           a question was given up for good; the sample's verdict is `judge_failed`
    ├── QuestionRefused   because its request was refused
    └── BudgetExhausted   the run's budget is spent
"""

import math
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, TypeVar

from evalhouse.warehouse.messages import hide_secrets

if TYPE_CHECKING:
    from evalhouse.tasks.judge.protocol import ModelReply


class JudgeError(Exception):
    """Any failure of a judge. Texts hold no key and no header, even where a reply that they quote repeats one."""

    def __init__(self, message: str = "") -> None:
        super().__init__(hide_secrets(message))


class FatalJudgeError(JudgeError):
    """Nothing will work until a person changes something; stops the run."""


class RunCancelled(FatalJudgeError):
    """The run was stopped from outside; it can be resumed."""


class TransientJudgeError(JudgeError):
    """The same request may work in a moment. It is `unreachable` where no connection was made, `late` where no reply
    came in time.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        rate_limited: bool = False,
        unreachable: bool = False,
        late: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.rate_limited = rate_limited
        self.unreachable = unreachable
        self.late = late


class RefusedRequest(JudgeError):
    """This request will never work: refused, filtered, or too long. `reply` was paid for, if one came.

    It is `unexplained` where nothing shows it to be the fault of this one request: all others may end like it.
    Where it is `too_long`, less of the same may work.
    """

    def __init__(
        self,
        message: str,
        *,
        reply: "ModelReply | None" = None,
        unexplained: bool = False,
        too_long: bool = False,
    ) -> None:
        super().__init__(message)
        self.reply = reply
        self.unexplained = unexplained
        self.too_long = too_long


class UnusableReply(JudgeError):
    """A reply came that cannot be read as an answer; `reply` is it, where the judge itself refused to read it."""

    def __init__(self, message: str, *, reply: "ModelReply | None" = None) -> None:
        super().__init__(message)
        self.reply = reply


CUT_OFF: Final = "the reply was cut off at the model's output limit"
LATE: Final = "no reply within"
"""The beginning of the error of a request that was not answered in time."""
COPIED: Final = "the words of the prompt's own example"
"""The beginning of the error of verdicts whose reasons were copied from a worked example."""
NOT_TAKEN: Final = "the endpoint does not take "
"""The beginning of the error of a request that was sent again without an option."""


class CutReply(UnusableReply):
    """The model's output limit cut a reply off before anything usable; less has to be asked at once."""


class UnsupportedOption(JudgeError):
    """The endpoint does not take an option of our requests, and will not be sent it again.

    `options` may be meant by its message; with `is_value` it takes the option, but not with this value.
    """

    def __init__(self, message: str, *, options: Sequence[str], is_value: bool = False) -> None:
        super().__init__(message)
        self.options = tuple(options)
        self.is_value = is_value


class EndpointDown(JudgeError):
    """All attempts at a question failed on the way; a later one may not."""


class JudgeFailed(JudgeError):
    """A question was given up; `reason` is the `unscored_reason` of the sample."""

    reason = "judge_failed"


class QuestionRefused(JudgeFailed):
    """A question was given up because its request was refused: asked again, it will be again."""


class TooLong(QuestionRefused):
    """A request was larger than the model's context window; less of the same may be asked."""


class BudgetExhausted(JudgeFailed):
    """The budget is spent; nothing more is asked."""

    reason = "budget_exhausted"


Ending = TypeVar("Ending", bound=JudgeError)


def repeat_error(error: Ending) -> Ending:
    """Return the same error again, for another caller who has to end with it: a raised error belongs to one stack."""
    return type(error)(str(error))


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, from a number or a date; None for neither."""
    for header, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(header)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                # By the server's clock: that of this machine may be minutes off.
                now = parsedate_to_datetime(headers["date"]).timestamp() if headers.get("date") else time.time()
                seconds = parsedate_to_datetime(value).timestamp() - now
            except (TypeError, ValueError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
