"""What can go wrong with the application under test, by what has to be done about it.

TargetError        no question can get past this: a module that is missing, a variable that is not set
QuestionFailed     this question has failed; its response says why
└── PassingFailure the same question may be answered in a moment: 429, 5xx, no connection, no answer in time
"""


class TargetError(Exception):
    """The target cannot be asked at all until a person changes something. Texts hold no secret."""


class QuestionFailed(Exception):
    """One question was not answered, and asking again would not help. Texts hold no secret.

    `unasked`: the application never heard of it.
    """

    def __init__(self, message: str, *, unasked: bool = False) -> None:
        super().__init__(message)
        self.unasked = unasked


class PassingFailure(QuestionFailed):
    """The same question may be answered in a moment, in `retry_after_s` if that was told.

    `rate_limited`: it was asked too much, so the others had better wait as well. `unreached`: nobody was there.
    """

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, rate_limited: bool = False, unreached: bool = False
    ) -> None:
        super().__init__(message)
        self.unreached = unreached
        self.retry_after_s = retry_after_s
        self.rate_limited = rate_limited
