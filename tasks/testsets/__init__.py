"""Test sets: questions made from the documents of a knowledge base and updated when the documents change.

TestsetError        documents, or a test set, that cannot be used: the message has what came, what is allowed, advice
UnreadableFile      one file that cannot be read: the message says why, without its name, `to_do` what to do
"""

from typing import ClassVar


class TestsetError(Exception):
    """Documents, or a test set, that cannot be used."""

    __test__: ClassVar = False  # pytest takes a class for a test by its name


class UnreadableFile(Exception):
    """A file of a knowledge base that cannot be read."""

    def __init__(self, why: str, to_do: str) -> None:
        super().__init__(why, to_do)  # it comes from another process: both are needed to make it again
        self.to_do = to_do

    def __str__(self) -> str:
        return str(self.args[0])


def refuse(came: str, *, allowed: str, to_do: str) -> TestsetError:
    """Return the error for one problem, in a line."""
    return TestsetError(f"{came}; allowed: {allowed}; {to_do}")
