"""What can go wrong with an export or an import, as a sentence for the person at the terminal."""

from collections.abc import Sequence
from typing import Final

_MOST_PROBLEMS: Final = 40


class ReviewError(Exception):
    """An export or import that cannot be done; says why, and what to do."""


def list_problems(opening: str, problems: Sequence[str]) -> ReviewError:
    """All problems in one error, each on a line of its own; of very many the first ones and how many there are."""
    more = len(problems) - _MOST_PROBLEMS
    shown = [*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
    return ReviewError("\n".join([opening, *(f"  {problem}" for problem in shown)]))
