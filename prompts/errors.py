"""What can go wrong with a prompt, as one error and the list of problems behind it.

The loader gathers every problem of every file before it complains, so that a user who writes prompts of their own
sees all of them at once; `prompts check` prints the same list without raising.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PromptProblem:
    """One thing wrong with one prompt file: where it stands, what came and what was allowed."""

    file: str
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.message}" if self.key else f"{self.file}: {self.message}"


def make_fault(key: str, message: str) -> PromptProblem:
    """A problem within one file, whose name the reader of the file puts in."""
    return PromptProblem(file="", key=key, message=message)


class PromptError(Exception):
    """A prompt file is not as it must be, or a prompt was given other data than it declares.

    `problems` is empty when the fault lies with the data and not with a file.
    """

    def __init__(self, message: str, *, problems: Sequence[PromptProblem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def make_error(problems: Sequence[PromptProblem]) -> PromptError:
    """All problems of some files as one error, each on a line of its own."""
    return PromptError("\n".join(map(str, problems)), problems=problems)
