"""`evalhouse testset`: questions from a knowledge base, kept true when it changes."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from evalhouse.flows.commands.options import (
    DRY_RUN_OPTION,
    FRESH_OPTION,
    JSON_OPTION,
    REASONING_OPTION,
    SEED_OPTION,
    TEMPERATURE_OPTION,
    WAREHOUSE_OPTION,
    WAREHOUSE_URL_OPTION,
    LazyGroup,
    join_options,
    limit_options,
    refuse_database,
    write_command,
)
from evalhouse.flows.errors import INTERRUPTED, SettingsError
from evalhouse.flows.results.output import print_json, print_line, print_notice, print_section, write_count, write_value
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.flows.testsets.check import CheckedSet, CheckPlan
    from evalhouse.flows.testsets.make import MadeSet, SetPlan
    from evalhouse.flows.testsets.refresh import Refreshing, RefreshPlan
    from evalhouse.flows.testsets.versions import SetVersion
    from evalhouse.warehouse.rows.runs import RunRow
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
"""The options of `make` and `refresh` for asking the judge."""
_SHORT = 120


@click.group(cls=LazyGroup)
def testset() -> None:
    """Make questions with ground truths from documents, and keep them true when the documents change."""


def carry_out(
    plan: "SetPlan | RefreshPlan | CheckPlan",
    act: "Callable[[], MadeSet | Refreshing | CheckedSet]",
    *,
    dry_run: bool,
    as_json: bool,
    stopped: str,
) -> int:
    """Act, or print an estimate, and return the exit status; `stopped` describes the state after a Ctrl-C."""
    from evalhouse.tasks.judge.protocol import RunCancelled  # noqa: PLC0415  # imports all that asks

    for line in plan.notices:
        print_notice(line)
    if dry_run:
        plan.print_estimate(as_json=as_json)
        return 0
    try:
        done = act()
    except RunCancelled as error:
        print_notice(f"{error}; {stopped}, and the same command resumes from here")
        return INTERRUPTED
    if as_json:
        print_json(done.to_plain())
    else:
        done.print()
    return done.status


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
    help="Share of each kind: fact, number, procedure, several, comparison, unanswerable; conversational has none by "
    "default, for it needs a bot that receives the messages before.",
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

    The judge writes each question with its ground truth and quotes, and checks it: the quotes are verbatim, support the
    ground truth, and are the only answer to the question. Rejected candidates are stored with the reason. The same
    command again asks nothing twice. Exit status 3 when there are fewer questions than asked for.
    """
    from evalhouse.flows.testsets.make import plan_set  # noqa: PLC0415  # imports all that asks

    plan = plan_set(
        docs, Path(output), n=n, kinds=kinds, language=language, references=references, encoding=encoding, seed=seed,
        force=force or dry_run, command=write_command(), flags=flags,
    )  # fmt: skip
    return carry_out(plan, plan.make, dry_run=dry_run, as_json=as_json, stopped="the replies so far are stored")


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
@click.option("--accept", is_flag=True, help="Accept all proposals unchanged, without a person.")
@click.option("--accept-void", is_flag=True, help="Remove void questions also where they are most of the set.")
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
    accept_void: bool,
    language: str | None,
    encoding: str | None,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> int:
    """Keep SET true after its documents changed; DOCS are the current documents.

    Questions whose spans were moved are pointed to the new place, and nothing is asked about them. Where a span is gone
    or a new passage says something about a question, the judge of the set is asked: it still holds, or has to change (a
    proposal for a person), or is void. New and changed passages get questions. What did not change costs nothing. Exit
    status 3 when something was left without a usable reply.
    """
    from evalhouse.flows.testsets.refresh import plan_refresh  # noqa: PLC0415  # imports all that asks

    plan = plan_refresh(
        Path(path), docs, Path(output or path), coverage=coverage, no_new=no_new, accept=accept,
        accept_void=accept_void, encoding=encoding, language=language, command=write_command(), flags=flags,
    )  # fmt: skip
    return carry_out(plan, plan.refresh, dry_run=dry_run, as_json=as_json, stopped=f"{path} is as it was")


def resume_testset(run: "RunRow", *, warehouse_url: str, changes: Mapping[str, Any], as_json: bool) -> int:
    """Repeat the command of a run of kind testset in this process, and return its exit status.

    It has the settings of the run except for `changes`, and stored replies are reused. It is a separate run, with the
    budget that the earlier one left. Raises SettingsError if the command cannot be repeated.
    """
    from evalhouse.flows.testsets.versions import find_command, find_kept, note_resumed  # noqa: PLC0415  # asks
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
    print_notice(f"run {run.run_id} is resumed with: {shlex.join(words)}")
    with hold_run(warehouse.location, run.run_id), context:
        note_resumed(warehouse, run)
        status: int = command.invoke(context)
    return status


@testset.command(short_help="Find what is wrong with a test set, its documents at hand or not.")
@click.argument("path", metavar="SET")
@click.argument("docs", metavar="[DOCS]", required=False)
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Read our column OURS from THEIRS.")
@click.option(
    "--judge",
    metavar="J",
    help="Who decides what documents support: openai:MODEL, another PROVIDER:MODEL, module:factory or lexical.",
)
@click.option("--embeddings", metavar="E", help="What finds questions that are alike: openai:MODEL or hashing.")
@click.option("--language", metavar="en|zh", help="Language of all prompts. Default: that of each question.")
@click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace the built-in ones.")
@TEMPERATURE_OPTION
@REASONING_OPTION
@click.option("--encoding", metavar="NAME", help="Encoding of text files that are not UTF-8.")
@FRESH_OPTION
@click.option(
    "--html", metavar="FILE", callback=refuse_database, help="Also write everything as one page that needs no network."
)
@DRY_RUN_OPTION
@limit_options
@WAREHOUSE_URL_OPTION
@JSON_OPTION
def check(
    *,
    path: str,
    docs: str | None,
    maps: tuple[str, ...],
    language: str | None,
    encoding: str | None,
    html: str | None,
    dry_run: bool,
    as_json: bool,
    **flags: object,
) -> int:
    """Find what is wrong with SET, any dataset that `run` reads.

    Without DOCS: questions that ask the same, hold their answer, lack a ground truth or mix languages. With DOCS, the
    folder or table that the questions are about: also ground truths that no document supports or that one
    contradicts, references that are gone, and documents without a question. Exit status 1 when something was found, 3
    when not all could be checked.
    """
    from evalhouse.flows.preparing.request import parse_pairs  # noqa: PLC0415  # imports all that asks
    from evalhouse.flows.testsets.check import CheckedSet, plan_check  # noqa: PLC0415

    plan = plan_check(
        path, docs, mapping=parse_pairs(maps, "--map"), language=language, encoding=encoding,
        command=write_command(), flags=flags,
    )  # fmt: skip

    def act() -> CheckedSet:
        checked = plan.check()
        if html is not None:
            from evalhouse.flows.report.page import build_check_page  # noqa: PLC0415  # imports SciPy

            Path(html).write_text(build_check_page(checked.to_plain()), encoding="utf-8")
            print_notice(f"wrote {html}; open it in any browser")
        return checked

    return carry_out(plan, act, dry_run=dry_run, as_json=as_json, stopped="the replies so far are stored")


@testset.command(short_help="Show what became of a test set's questions from one version to another.")
@click.argument("names", metavar="[A] B", nargs=-1, required=True)
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Read our column OURS from THEIRS, of files.")
@WAREHOUSE_OPTION
@JSON_OPTION
def diff(*, names: tuple[str, ...], maps: tuple[str, ...], warehouse: Warehouse, as_json: bool) -> None:
    """Show what became of the questions of a test set from A to B: new, gone, changed, and re-pointed ones.

    A and B are files of questions, or hashes (or their beginnings) of stored versions; without A it is the version that
    B was made from. Questions are the same by their ids.
    """
    if len(names) > 2:
        raise click.UsageError(f"got {len(names)} names; give one version, or two: A and B")
    from evalhouse.flows.preparing.request import parse_pairs  # noqa: PLC0415  # imports all settings
    from evalhouse.flows.testsets.versions import find_version  # noqa: PLC0415  # these import all that asks
    from evalhouse.tasks.testsets.questions import compare_sets  # noqa: PLC0415

    mapping = parse_pairs(maps, "--map")
    new = find_version(warehouse, names[-1], mapping)
    before = names[0]
    if len(names) == 1:
        sql = "select parent_hash from testset_versions where set_hash = $set_hash and parent_hash is not null"
        parents = warehouse.read_rows(sql, {"set_hash": new.set_hash}) if warehouse.location.path.exists() else []
        if not parents:
            raise SettingsError(f"no version before {names[0]} is stored; name two files or hashes: A and B")
        before = str(parents[0]["parent_hash"])
    old = find_version(warehouse, before, mapping)
    differences = compare_sets(old.questions, new.questions)
    n_same = len(new.questions) - sum(one.difference != "gone" for one in differences)
    if as_json:
        print_json(
            {
                "before": {"name": old.name, "set_hash": old.set_hash, "n_questions": len(old.questions)},
                "after": {"name": new.name, "set_hash": new.set_hash, "n_questions": len(new.questions)},
                "n_same": n_same,
                "counts": dict(Counter(one.difference for one in differences)),
                "questions": [asdict(one) for one in differences],
            }
        )
        return
    counts = Counter(one.difference for one in differences)
    print_line(
        f"{_name(old)} → {_name(new)}: "
        + ", ".join([*(f"{n} {difference}" for difference, n in counts.items()), f"{n_same} the same"]),
        bold=True,
    )
    for difference in ("new", "gone"):
        rows = [[one.id, shorten(one.question, _SHORT)] for one in differences if one.difference == difference]
        print_section(difference.capitalize(), ["question", "text"], rows)
    for difference in ("changed", "repointed"):
        rows = []
        for question in differences:
            for field in question.fields if question.difference == difference else ():
                sides = []
                for value in (field.before, field.after):
                    parts = value if isinstance(value, list) else [value]
                    if field.field == "spans":
                        parts = [f"{part['passage_id']}: {part['text']}" for part in parts]
                    elif field.field == "conversation":
                        parts = [part["content"] for part in parts]
                    sides.append("; ".join(map(write_value, parts)) or "–")
                change = field.words or " → ".join(shorten(side, 2 * _SHORT) for side in sides)
                rows.append([question.id, field.field, change])
        print_section(difference.capitalize(), ["question", "field", "what changed"], rows)


def _name(version: "SetVersion") -> str:
    of_hash = f" ({version.set_hash})" if version.set_hash and version.set_hash != version.name else ""
    return f"{version.name}{of_hash}, {write_count(len(version.questions), 'question')}"
