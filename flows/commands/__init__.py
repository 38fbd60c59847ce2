"""The commands of `evalhouse`, a file each: read the flags, call one function, print what it returns.

Here is what groups them: a command in a module of its own is imported when it is called.
"""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group with commands that are imported when they are called, besides those it defines.

    `elsewhere` has them by name: the module in this folder, the command there, and what it does.
    """

    def __init__(self, *, elsewhere: Mapping[str, tuple[str, str, str]], **attributes: Any) -> None:  # noqa: ANN401  # click's own
        super().__init__(**attributes)
        self._elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the source."""
        return [*self.commands, *self._elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, whose module is imported where it lives in another one."""
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        module, name, _ = self._elsewhere[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called; for an unknown one the error says which known ones are like it."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            advice = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
            raise click.UsageError(f"there is no command {name!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any of them."""
        summaries = {name: command.get_short_help_str(limit=90) for name, command in self.commands.items()}
        summaries |= {name: summary for name, (_, _, summary) in self._elsewhere.items()}
        with formatter.section("Commands"):
            formatter.write_dl(list(summaries.items()))
