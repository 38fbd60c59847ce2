"""`evalhouse testset`: questions from a knowledge base, kept true when it changes."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource

from evalhouse.flows.commands.options import (
    DRY_RUN_OPTION,
    FRESH_OPTION,
    JSON_OPTION,
    REASONING_OPTION,
    SEED_OPTION,
    TEMPERATURE_OPTION,
    WAREHOUSE_URL_OPTION,
    LazyGroup,
    join_options,
    limit_options,
    write_command,
)
from evalhouse.flows.display.output import print_json, print_notice
from evalhouse.flows.errors import INTERRUPTED

if TYPE_CHECKING:
    from evalhouse.warehouse.rows.runs import RunRow


@click.group(
    cls=LazyGroup,
    elsewhere={
        "check": ("testset_check", "check", "Find what is wrong with a test set, its documents at hand or not."),
        "diff": (
            "testset_diff",
            "diff",
            "Show what became of a test set's questions from one version to another.",
        ),
    },
)
def testset() -> None:
    """Make questions with ground truths from documents, and keep them true when the documents change."""


class _Plan(Protocol):
    """What can be asked: everything that can be refused has been looked at."""

    @property
    def notices(self) -> Sequence[str]: ...

    def print_estimate(self, *, as_json: bool) -> None: ...


class _Done(Protocol):
    """A set that was written, or looked at; `status` is the exit status."""

    @property
    def status(self) -> int: ...

    def to_plain(self) -> dict[str, Any]: ...

    def print(self) -> None: ...


def carry_out(plan: _Plan, act: Callable[[], _Done], *, dry_run: bool, as_json: bool, stopped: str) -> int:
    """Act, or say what it would take, and return the exit status; `stopped` is how things are after a Ctrl-C."""
    from evalhouse.tasks.judge.errors import RunCancelled  # noqa: PLC0415  # imports all that asks

    for line in plan.notices:
        print_notice(line)
    if dry_run:
        plan.print_estimate(as_json=as_json)
        return 0
    try:
        done = act()
    except RunCancelled as error:
        print_notice(f"{error}; {stopped}, and the same command goes on from here")
        return INTERRUPTED
    if as_json:
        print_json(done.to_plain())
    else:
        done.print()
    return done.status


_JUDGE_OPTION = click.option(
    "--judge",
    metavar="J",
    help="Who writes and checks the questions: openai:MODEL, another PROVIDER:MODEL, module:factory or lexical.",
)
_asking_options = join_options(
    click.option("--embeddings", metavar="E", help="What finds questions that are alike: openai:MODEL or hashing."),
    click.option("--language", metavar="en|zh", help="Language of all prompts. Default: that of each passage."),
    click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace the built-in ones."),
    TEMPERATURE_OPTION,
    REASONING_OPTION,
    click.option("--encoding", metavar="NAME", help="Encoding of text files that are not UTF-8."),
    FRESH_OPTION,
    DRY_RUN_OPTION,
)
"""What `make` and `refresh` share: how they ask."""


@testset.command()
@click.argument("docs", metavar="DOCS")
@click.option("-n", "n", type=click.IntRange(min=1), default=100, show_default=True, help="Questions to make.")
@click.option(
    "-o",
    "--output",
    default="questions.jsonl",
    show_default=True,
    metavar="FILE",
    help="Where to write the set; its manifest goes beside it.",
)
@_JUDGE_OPTION
@click.option(
    "--kinds",
    metavar="K=S,…",
    help="Share of each kind: fact, number, procedure, several, comparison, conversational, unanswerable.",
)
@click.option(
    "--references",
    type=click.Choice(["documents", "passages"]),
    help="What reference_context_ids name. Default: documents of a folder, passages of a table.",
)
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
@SEED_OPTION
@_asking_options
@limit_options
@WAREHOUSE_URL_OPTION
@JSON_OPTION
def make(
    *,
    docs: str,
    n: int,
    output: str,
    kinds: str | None,
    language: str | None,
    references: str | None,
    encoding: str | None,
    force: bool,
    seed: int,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> int:
    """Make a test set from DOCS, a folder of documents or a table of passages with ids.

    The judge writes each question with its ground truth and quotes, and checks it: the quotes are verbatim, bear out
    the ground truth, and answer the question, which nothing else does. What is turned down is on record with the
    reason. The same command again asks nothing twice. Exit status 3 when there are fewer questions than asked for.
    """
    from evalhouse.flows.testsets.make import plan_set  # noqa: PLC0415  # imports all that asks

    plan = plan_set(
        docs, Path(output), n=n, kinds=kinds, language=language, references=references, encoding=encoding, seed=seed,
        force=force or dry_run, command=write_command(), flags=flags,
    )  # fmt: skip
    return carry_out(plan, plan.make, dry_run=dry_run, as_json=as_json, stopped="what came is on record")


@testset.command()
@click.argument("path", metavar="SET")
@click.argument("docs", metavar="DOCS")
@click.option("-o", "--output", metavar="FILE", help="Where to write the new version. Default: in place of SET.")
@click.option(
    "-n",
    "--coverage",
    type=click.IntRange(min=1),
    help="Questions that the set is to have in all. Default: as many a passage as when it was made.",
)
@click.option("--no-new", is_flag=True, help="Make no questions from new and changed passages.")
@click.option("--accept", is_flag=True, help="Take all proposals as they are, without a person.")
@_JUDGE_OPTION
@_asking_options
@limit_options
@WAREHOUSE_URL_OPTION
@JSON_OPTION
def refresh(
    *,
    path: str,
    docs: str,
    output: str | None,
    coverage: int | None,
    no_new: bool,
    accept: bool,
    language: str | None,
    encoding: str | None,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> int:
    """Keep SET true after its documents changed; DOCS are the documents as they are now.

    Questions whose spans were moved are pointed to the new place, and nothing is asked about them. Where a span is gone
    or a new passage says something about a question, the judge of the set is asked: it still holds, or has to change (a
    proposal for a person), or is void. New and changed passages get questions. What did not change costs nothing. Exit
    status 3 when something was left without a usable reply.
    """
    from evalhouse.flows.testsets.refresh import plan_refresh  # noqa: PLC0415  # imports all that asks

    plan = plan_refresh(
        Path(path), docs, Path(output or path), coverage=coverage, no_new=no_new, accept=accept, encoding=encoding,
        language=language, command=write_command(), flags=flags,
    )  # fmt: skip
    return carry_out(plan, plan.refresh, dry_run=dry_run, as_json=as_json, stopped=f"{path} is as it was")


def resume_testset(run: "RunRow", *, warehouse_url: str, changes: Mapping[str, Any], as_json: bool) -> int:
    """Give the command of a run of kind testset again, in this process, and return its exit status.

    Its settings are those of the run but for `changes`; what was answered is on record. It is a run of its own, whose
    budget is what the earlier one left. Raises SettingsError where it cannot be given again.
    """
    from evalhouse.flows.testsets.set_run import find_command, find_kept, note_gone_on  # noqa: PLC0415  # asks
    from evalhouse.warehouse.engine.locks import hold_run  # noqa: PLC0415
    from evalhouse.warehouse.store import Warehouse  # noqa: PLC0415

    warehouse = Warehouse(warehouse_url)
    words = find_command(run)
    command = testset.get_command(click.get_current_context(), words[2])
    assert command is not None
    context = command.make_context(" ".join(words[:3]), words[3:])
    kept = find_kept(warehouse, run, context.params, changes)
    for name, value in (kept | {"warehouse": warehouse_url}).items():
        if name in changes or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            context.params[name] = value
    context.params["as_json"] = as_json
    for name in changes.keys() & context.params.keys():
        context.set_parameter_source(name, ParameterSource.COMMANDLINE)
    print_notice(f"run {run.run_id} is gone on with: {shlex.join(words)}")
    with hold_run(warehouse.location, run.run_id), context:
        note_gone_on(warehouse, run)
        status: int = command.invoke(context)
    return status
