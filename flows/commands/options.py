"""Options that several commands have, and groups of commands that are imported when called.

They are separate from `settings` because reading commands (`query`, `runs`, `show`, `lineage`) need them and not the
settings of a run, whose import alone takes longer than most of their answers.
"""

import importlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from evalhouse.flows.errors import SettingsError
from evalhouse.warehouse.location import DEFAULT_URL
from evalhouse.warehouse.messages import suggest

if TYPE_CHECKING:
    from evalhouse.warehouse.store import Warehouse

_Command = TypeVar("_Command", bound=Callable[..., Any])

WAREHOUSE_VARIABLE = "EVALHOUSE_WAREHOUSE"
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
RUN_ARGUMENT = click.argument("run", metavar="RUN")
LATEST_ARGUMENT = click.argument("run", metavar="[RUN]", default="latest")
"""A run, by default the newest evaluation."""
FORMATS = ("html", "csv", "jsonl")
"""Formats of files that people fill in."""
UNDECIDED_OPTION = click.option(
    "--undecided",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="What an undecided check does to the gate.",
)
PLAN_OPTION = click.option(
    "--plan",
    metavar="separate|fused",
    help="fused: one request for what classify, attribute and rank ask. Default: separate.",
)
REASONING_OPTION = click.option(
    "--reasoning-effort", metavar="E", help="How long a reasoning model thinks: none, minimal, low, … max."
)
DRY_RUN_OPTION = click.option(
    "--dry-run", is_flag=True, help="Say what would be asked and what it would cost, and ask nothing."
)
BY_OPTION = click.option(
    "--by",
    metavar="COLUMN",
    help="Also show the main metrics for each value of this column of the dataset, such as language.",
)
FRESH_OPTION = click.option("--fresh", is_flag=True, default=None, help="Ask again even where replies are stored.")
_DUCKDB_MARK = b"DUCK"  # after eight bytes of a checksum


def refuse_database(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
    """Return where an output goes; raises BadParameter where a database is: most likely the warehouse."""
    if path and Path(path).is_file():
        with Path(path).open("rb") as file:
            if file.read(12)[8:] == _DUCKDB_MARK:
                raise click.BadParameter(f"{path} is a DuckDB database, which would be lost; name another file")
    return path


_describe_warehouse = partial(
    click.option,
    "--warehouse",
    metavar="URL",
    help="Where everything is kept: a path, duckdb:///path, or a lake like "
    "ducklake:sqlite:/folder/catalog.sqlite?data=/folder. "
    f"Default: ${WAREHOUSE_VARIABLE}, or {DEFAULT_URL}.",
)
WAREHOUSE_URL_OPTION = _describe_warehouse()
_SECTIONS: dict[click.Parameter, str | None] = {}
"""The section of the help that an option is listed in."""


def count_option(*names: str, default: int, text: str, min_value: int = 0) -> Callable[[_Command], _Command]:
    """Return an option for a whole number of at least `min_value`."""
    kind = click.IntRange(min=min_value)
    return click.option(*names, type=kind, default=default, show_default=True, metavar="N", help=text)


def temperature_option(default: str) -> Callable[[_Command], _Command]:
    """Return the option for a sampling temperature, with its default in words."""
    return click.option("--temperature", metavar="T", help=f"Sampling temperature, or `none`. Default: {default}.")


TEMPERATURE_OPTION = temperature_option("none is sent")
SEED_OPTION = count_option("--seed", default=0, text="Seed of what is drawn at random.")


def find_warehouse(flag: str | None) -> str:
    """Return the warehouse's URL: the flag, else the variable, else the default in the working directory."""
    return flag or os.environ.get(WAREHOUSE_VARIABLE) or DEFAULT_URL


def _open_warehouse(_: click.Context, __: click.Parameter, flag: str | None) -> "Warehouse":
    from evalhouse.warehouse.store import Warehouse  # noqa: PLC0415  # imports Polars, which --help does without

    return Warehouse(find_warehouse(flag))


WAREHOUSE_OPTION = _describe_warehouse(callback=_open_warehouse)
"""The warehouse itself, not its URL."""


def join_options(
    *options: Callable[[_Command], _Command], section: str | None = None
) -> Callable[[_Command], _Command]:
    """Join options into one decorator; help lists them in their order, under `section` in a `SectionedCommand`."""

    def decorate(command: _Command) -> _Command:
        # A decorator puts its option before the others.
        for option in reversed(options):
            command = option(command)
            parameter = command.__click_params__[-1]  # type: ignore[attr-defined]  # where click keeps them
            _SECTIONS[parameter] = section
        return command

    return decorate


class SectionedCommand(click.Command):
    """A command whose help lists options by section, options without a section last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a list for each section in the order of the source."""
        sections: dict[str | None, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(_SECTIONS.get(parameter), []).append(record)
        others = sections.pop(None, [])
        for title, records in (*sections.items(), ("Other options", others)):
            with formatter.section(str(title)):
                formatter.write_dl(records)


judge_options = join_options(
    click.option(
        "--judge",
        metavar="J",
        help="lexical, openai:MODEL, PROVIDER:MODEL (anthropic, google_genai, bedrock, azure, ollama, mistralai, …), "
        "local:MODEL (a classifier), or module:factory; `J,classify=K` asks K in one step; jury:J,K,L vote.",
    ),
    click.option(
        "--embeddings",
        metavar="E",
        help="hashing (offline; spelling alone), openai:MODEL, or module:factory; default: "
        "openai:text-embedding-3-small beside an openai: judge at OpenAI itself, else hashing.",
    ),
    click.option(
        "--language",
        metavar="en|zh|auto",
        help="Language of the prompts; auto is zh for Chinese texts and en, which judges any language, for all others. "
        "Default: en.",
    ),
    click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace the built-in ones."),
    TEMPERATURE_OPTION,
    REASONING_OPTION,
    PLAN_OPTION,
    click.option("--votes", type=int, metavar="N", help="Take N votes on each verdict, an odd number. Default: 1."),
    click.option(
        "--contexts-alone",
        is_flag=True,
        default=None,
        help="Judge each context in a separate request; support by several together is not found then.",
    ),
    click.option(
        "--logprobs", is_flag=True, default=None, help="Grade by token probabilities where the judge has them."
    ),
    FRESH_OPTION,
    section="The judge",
)
"""The options of `run` for the judge and how it is asked."""
metric_options = join_options(
    click.option(
        "--metrics", metavar="A,B", help="Metrics to score. Default: the usual ones and what comes with them."
    ),
    click.option("--metric-files", metavar="DIR", help="A folder with metrics of your own: SQL or Python files."),
    click.option("--set", "sets", multiple=True, metavar="METRIC.PARAMETER=N", help="Set a metric's parameter."),
    click.option(
        "--citations",
        multiple=True,
        metavar="REGEX",
        help="How answers cite, in place of the built-in patterns. Repeatable.",
    ),
    click.option("--citations-from", type=int, metavar="0|1", help="The number of the first context. Default: 1."),
    click.option("--contexts-role", metavar="ROLE", help="authoritative (default) or supplementary, for `relevance`."),
    click.option("--regenerated-questions", type=int, metavar="N", help="Questions for answer_relevancy. Default: 3."),
    click.option(
        "--noise", "noise_share", type=float, metavar="SHARE", help="Judge this share again to measure noise."
    ),
    section="Metrics",
)
"""The options of `run` for the metrics."""
dataset_options = join_options(
    click.option(
        "--limit", type=int, metavar="N", help="Judge only the first N rows: samples, whole conversations or traces."
    ),
    click.option(
        "--sample-budget", type=int, metavar="N", help="Judge N samples, picked by chance and doubt, for all."
    ),
    click.option("--sample-seed", type=int, metavar="N", help="Which samples are picked. Default: 0."),
    click.option(
        "--map",
        "maps",
        multiple=True,
        metavar="OURS=THEIRS",
        help="Read our OURS from column THEIRS, or spans so named.",
    ),
    click.option(
        "--format", "format", metavar="TOOL", help="Traces: otel, openinference, langfuse, langsmith, phoenix."
    ),
    click.option("--encoding", metavar="NAME", help="Encoding of a text file, such as cp1252; most are found."),
    click.option(
        "--turns",
        type=click.Choice(["all", "last"]),
        help="Which turns of a whole conversation are samples. Default: all.",
    ),
    click.option("--judge-thoughts", is_flag=True, default=None, help="Judge <think>…</think> as part of the answer."),
    click.option("--responses", metavar="RUN", help="Judge the stored answers of RUN; ask for none."),
    section="The dataset",
)
"""The options of `run` for the samples to judge and how their file is read."""
run_options = join_options(
    click.option("--label", metavar="TEXT", help="A name for this run."),
    click.option("--href", metavar="URL", help="A link to what was evaluated: a commit, a build."),
    click.option("--tag", "tags", multiple=True, metavar="T", help="A tag. Repeatable."),
    section="The run",
)
"""The options of `run` for its name."""
limit_options = join_options(
    click.option("--concurrency", type=int, metavar="N", help="Requests in flight at once. Default: 16."),
    click.option("--rpm", type=int, metavar="N", help="Requests per minute. Default: no limit."),
    click.option("--tpm", type=int, metavar="N", help="Tokens per minute. Default: no limit."),
    click.option("--max-tokens", type=int, metavar="N", help="Tokens of one reply. Default: the model's own limit."),
    click.option("--context-window", type=int, metavar="N", help="Tokens that the model's context window holds."),
    click.option("--budget", "budget_usd", type=float, metavar="USD", help="Stop asking when this much is spent."),
    click.option(
        "--timeout",
        "timeout_s",
        type=float,
        metavar="S",
        help="Seconds a request may take. Default: 60, on this machine 600.",
    ),
    click.option(
        "--max-wait",
        "max_wait_s",
        type=float,
        metavar="S",
        help="Seconds to wait for an endpoint that asks to wait or is silent. Default: 3600.",
    ),
    click.option("--attempts", type=int, metavar="N", help="Ask a question at most this often. Default: 5."),
    click.option(
        "--batch/--no-batch", default=None, help="Send requests by the provider's batches: within a day, at half price."
    ),
    click.option("--deadline", metavar="TIME", help="Wait for batches until 06:00, or for 8h; then ask without them."),
    click.option(
        "--prices", metavar="FILE", help="Your own prices: `model: [input, output, cached input]`, $ per million."
    ),
    section="Limits of asking",
)
"""The limits of all commands that ask a model."""
pool_options = join_options(
    click.option("--pool", metavar="NAME", help="Have the workers of this Prefect work pool judge the samples."),
    click.option("--part-size", type=int, metavar="N", help="Samples a worker is given at once. Default: 500."),
    click.option(
        "--run-timeout", "run_timeout_s", type=float, metavar="S", help="Seconds the run may take; it can be resumed."
    ),
    click.option(
        "--task-timeout", "task_timeout_s", type=float, metavar="S", help="Seconds one step may take for a shard."
    ),
    section="Who judges besides this process",
)
"""The options of `run` and `resume` for other processes that judge, and for time limits by Prefect."""


def write_command() -> str:
    """Write the command as it was given, for a person to repeat it."""
    context = click.get_current_context()
    words = context.command_path.split()
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params.get(name)
        if not isinstance(parameter, click.Option):
            words.append(str(value))
            continue
        option = max(parameter.opts, key=len)
        if isinstance(value, bool):
            words += list(parameter.secondary_opts) if parameter.is_flag and not value else [option]
        else:
            for each in value if parameter.multiple else [value]:  # type: ignore[union-attr]  # a tuple by click
                words += [option, str(each)]
    return shlex.join(words)


def pick_format(kind: str | None, output: str | None) -> str:
    """Return the format of a file to fill in: the given one, else by its ending, else a page."""
    suffix = Path(output).suffix.lstrip(".").lower() if output else ""
    if kind is None and suffix and suffix not in FORMATS:
        raise SettingsError(f"{output} ends in .{suffix}; name a file in {', '.join(FORMATS)}, or give --format")
    return kind or suffix or "html"


class LazyGroup(click.Group):
    """A group of commands whose help shows whole summaries, some of which are imported only when called.

    `elsewhere` has these by name: the module in this folder, the command there, and its summary; `sections` the names
    by the title that help lists them under.
    """

    def __init__(
        self,
        *,
        elsewhere: Mapping[str, tuple[str, str, str]] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **attributes: Any,  # noqa: ANN401  # click's own
    ) -> None:
        super().__init__(**attributes)
        self._elsewhere = elsewhere or {}
        self._sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List all names, in the order of the source."""
        return [*self.commands, *self._elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, importing its module if needed."""
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        module, name, _ = self._elsewhere[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; the error for an unknown one suggests similar names."""
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-"):
            raise click.UsageError(f"unknown command {name!r}; {suggest(name, names)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing any of them."""
        summaries = {name: command.get_short_help_str(limit=90) for name, command in self.commands.items()}
        summaries |= {name: summary for name, (_, _, summary) in self._elsewhere.items()}
        width = max(map(len, summaries))  # the same in all sections
        for title, names in (self._sections or {"Commands": list(summaries)}).items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summaries[name]) for name in names])
