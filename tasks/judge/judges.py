"""The judges of a run, made and ready to be asked: the default, and those of steps that have one of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evalhouse.tasks.judge.protocol import Judge


@dataclass(frozen=True, kw_only=True)
class Judges:
    """`default` answers for every step that has no judge of its own in `of_tasks`, by task.

    `wrapped` are those that these stand before, where they were changed.
    """

    default: Judge
    of_tasks: Mapping[str, Judge] = field(default_factory=dict)
    wrapped: Sequence[Judge] = ()

    def find(self, task: str) -> Judge:
        """The judge of a step."""
        return self.of_tasks.get(task, self.default)

    @property
    def all(self) -> list[Judge]:
        """Each judge once, the default first."""
        return list({id(judge): judge for judge in (self.default, *self.of_tasks.values())}.values())

    @property
    def made(self) -> Sequence[Judge]:
        """The judges as they were made."""
        return self.wrapped or self.all

    def change(self, wrap: Callable[[Judge], Judge]) -> "Judges":
        """The same with each judge wrapped, once however many steps it answers for."""
        wrapped = {id(judge): wrap(judge) for judge in self.all}
        return Judges(
            default=wrapped[id(self.default)],
            of_tasks={task: wrapped[id(judge)] for task, judge in self.of_tasks.items()},
            wrapped=self.made,
        )
