"""The `evalhouse` command.

The module of a command is imported when the command is called, so that `--help`, `query` and `show` answer at once and
import no Prefect. A known error is one line on standard error and an exit status:
0 done, 1 a gate failed, 2 wrong usage or bad input, 3 the run is incomplete and can be resumed, 130 interrupted.
"""

import atexit
import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

import click

from evalhouse.flows.commands.options import LazyGroup
from evalhouse.flows.errors import BAD_INPUT, INCOMPLETE, INTERRUPTED, explain, log_unexpected
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.messages import is_readable_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# By name: the module in `flows/commands`, the command there, and its summary.
COMMANDS = {
    "init": ("setup", "init", "Write a suite, ask the bot one question, and judge the answer."),
    "run": ("run", "run", "Evaluate a dataset."),
    "resume": ("run", "resume", "Continue a run where it stopped."),
    "collect": ("run", "collect", "Ask the application under test, and judge nothing."),
    "rescore": ("run", "rescore", "Recompute scores from stored verdicts, without a model call."),
    "runs": ("show", "runs", "List what ran."),
    "show": ("show", "show", "Show one run: scores, worst samples, costs, unscored."),
    "query": ("warehouse", "query", "Query the warehouse in SQL, read-only."),
    "lineage": ("explain", "lineage", "Walk a score back to the raw replies that made it."),
    "compare": ("compare", "compare", "Compare two runs: what moved, whether it is chance, and why."),
    "prefer": ("compare", "prefer", "Ask a judge which of two answers is better, of two runs or columns."),
    "replay": ("compare", "replay", "Ask the bot again with old and new contexts: retrieval or generation?"),
    "gate": ("gate", "gate", "Check a run against limits and a baseline."),
    "diagnose": ("explain", "diagnose", "Show which stage fails, for which samples, and what to try."),
    "report": ("show", "report", "Write one run as a self-contained HTML file."),
    "publish": ("publish", "publish", "Send the scores of a run to the tool that has its traces."),
    "ui": ("serve", "ui", "Show all runs in a browser, live, until Ctrl-C."),
    "serve": ("serve", "serve", "Run suites on their schedules and after updates, until Ctrl-C."),
    "receive": ("serve", "receive", "Receive the traces of applications, until Ctrl-C."),
    "kb-updated": ("serve", "kb_updated", "Announce that a knowledge base was updated."),
    "testset": ("testset", "testset", "Make questions from documents, and keep them true when these change."),
    "prompts": ("judge", "prompts", "List, show, check and compare the judge's prompts, and learn examples."),
    "review": ("review", "review", "Have people label verdicts, and measure how far to trust the judge."),
    "benchmark": ("judge", "benchmark", "Measure how far a judge agrees with people, on labelled data."),
    "warehouse": ("warehouse", "warehouse", "Check, compact or move the warehouse."),
    "doctor": ("setup", "doctor", "Show what is configured, what is reachable, what is wrong."),
}
SECTIONS = {
    "Evaluate": ("init", "run", "resume", "collect", "rescore"),
    "Read results": ("runs", "show", "diagnose", "lineage", "report", "publish", "ui", "query"),
    "Compare": ("compare", "gate", "replay", "prefer"),
    "Every night": ("serve", "kb-updated", "receive"),
    "Questions and judges": ("testset", "review", "benchmark", "prompts"),
    "Upkeep": ("doctor", "warehouse"),
}
# These need a Prefect server, which takes longer to start than all their imports: it is started before them. `resume`
# knows that it needs one when it has read the kind of the run.
_RUNNING = ("run", "collect")
# These read and end, and need the warehouse many times.
_READING = ("compare", "diagnose", "gate", "lineage", "report", "show")
_RUNS_NOTHING = ("--help", "-h", "--dry-run")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# DuckDB raises a RuntimeError with this text for a Ctrl-C while it works.
_DUCKDB_INTERRUPTED = "Query interrupted"


class ReaderGone(Exception):
    """The process that read our output has gone (`evalhouse query … | head`), which is not an error."""


class _Output(io.FileIO):
    """Standard output, whose text is dropped once its reader has gone: a command still ends with its own status."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _drop_output()
            return super().write(data)


class _Evalhouse(LazyGroup):
    """The command line, which reports a reader that has gone to `main` and not to click."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in its module, after starting the server that it will need."""
        if args[0] in _RUNNING and not set(_RUNS_NOTHING).intersection(args):
            from evalhouse.flows.server.local import hold_server  # noqa: PLC0415  # reading commands do without

            ctx.with_resource(hold_server())
        elif args[0] in _READING:
            from evalhouse.warehouse.engine.connection import one_reader  # noqa: PLC0415  # as above

            ctx.with_resource(one_reader())
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; raises ReaderGone when the reader of the output has gone."""
        try:
            result = super().invoke(ctx)
            # What is still in the buffer has to fail here, not while Python exits.
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise ReaderGone from error
        return result


@click.group(
    cls=_Evalhouse,
    elsewhere=COMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="evalhouse", message="%(prog)s %(version)s")
def evalhouse() -> None:
    """Evaluate a question-answering bot, and store every verdict.

    Start with `evalhouse run sample`: it judges the dataset that ships with evalhouse, with no key and nothing else
    to start.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    for number in range(3):  # one that was closed would be given to the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if arguments is None and sys.argv[1:2] != ["query"]:  # which ends with its reader: its rows may be millions
        kept = {name: getattr(sys.stdout, name) for name in ("encoding", "errors", "line_buffering")}
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Output(1, "w", closefd=False)), **kept)
    try:
        status = _call(arguments)
    except KeyboardInterrupt:  # a further signal, while the first one was answered
        status = INTERRUPTED
    if arguments is None:  # the whole process is this command, and nothing is left that a signal could stop
        for number in _SIGNALS:
            if signal.getsignal(number) in (_interrupt, signal.default_int_handler):
                signal.signal(number, lambda *_: os._exit(status))
        with suppress(OSError, ValueError):  # a bot or judge may print while Python ends: behind a JSON document
            sys.stdout.flush()
            os.dup2(2, 1)
        # Python gives handlers up before it has ended, which leaves the signals to kill it.
        atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in _SIGNALS])
    sys.exit(status)


def _call(arguments: list[str] | None) -> int:
    """Carry out the command and return its exit status; print an error that ends it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an output that cannot hold a character gets an escape in its place
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGTERM, signal.SIGHUP):  # which interrupt a command as Ctrl-C does
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        click.echo("Error: this folder was removed; change to another one", err=True)
        return BAD_INPUT
    for name in (*(arguments or sys.argv[1:]), folder):
        if not is_readable_name(name):
            click.echo(f"Error: {os.fsencode(name)!r} is not UTF-8, and cannot be stored; rename it", err=True)
            return BAD_INPUT
    if any(map(os.path.exists, (".env", "prefect.toml", "pyproject.toml"))):  # of Prefect too
        from evalhouse.flows.server.environment import pin_settings  # noqa: PLC0415  # few folders have one

        pin_settings()
    try:
        status = evalhouse.main(args=arguments, prog_name="evalhouse", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except ReaderGone:
        _drop_output()
        return 0
    except SystemExit as error:
        click.echo(f"Error: code that evalhouse called ended the program (SystemExit: {error})", err=True)
        return BAD_INPUT
    except BaseException as error:  # the outermost handler; a crash within Polars does not derive from Exception
        if str(error) == _DUCKDB_INTERRUPTED:
            click.echo("interrupted", err=True)
            return INTERRUPTED
        try:
            if isinstance(error, OSError) and error.filename is None:  # is it the output that is full?
                sys.stdout.write("\n")
            sys.stdout.flush()
        except OSError as unwritten:
            _drop_output()
            click.echo(f"Error: the result cannot be written to standard output: {unwritten.strerror}", err=True)
            return BAD_INPUT
        click.echo(f"Error: {explain(error) or log_unexpected(error)}", err=True)
        # A file that another program locks is not bad input: rows are spooled beside it, and the run can be resumed.
        return INCOMPLETE if isinstance(error, WarehouseBusy) else BAD_INPUT
    return status if isinstance(status, int) else 0


def _drop_output() -> None:
    """Drop what is left of the output, which Python would otherwise write again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does at this moment: within asyncio it cancels the main task, else it raises KeyboardInterrupt."""
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    if callable(on_ctrl_c):
        on_ctrl_c(number, frame)
    else:  # a shell has a job in the background ignore it
        raise KeyboardInterrupt(signal.Signals(number).name)
