"""What a test set, or the documents it is made from, is refused with.

    TestsetError        its message says what came, what was allowed, what to do

Like a dataset, a knowledge base is refused once, with everything that is wrong with it in one message.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

LISTED_PROBLEMS: Final = 20
Note = Callable[[str], None]


class TestsetError(Exception):
    """Documents, or a test set, that cannot be used as they are."""

    __test__: ClassVar = False  # pytest takes a class for a test by its name


class UnreadableFile(Exception):
    """A file cannot be read; the message says why, without its name, and what to do."""

    def __init__(self, why: str, to_do: str) -> None:
        super().__init__(why)
        self.to_do = to_do


def refuse(came: str, *, allowed: str, to_do: str) -> TestsetError:
    """A refusal for one reason, in a line."""
    return TestsetError(f"{came}; allowed: {allowed}; {to_do}")


def refuse_all(name: str, problems: Sequence[str], advice: Sequence[str]) -> TestsetError:
    """A refusal for all problems of a source: each on a line, then what to do about them."""
    lines = [f"{name}: {len(problems):,} problem{'' if len(problems) == 1 else 's'}; nothing was read"]
    lines += [f"  {problem}" for problem in problems[:LISTED_PROBLEMS]]
    if len(problems) > LISTED_PROBLEMS:
        lines.append(f"  and {len(problems) - LISTED_PROBLEMS:,} more")
    return TestsetError("\n".join([*lines, *(f"to do: {text}" for text in advice)]))
