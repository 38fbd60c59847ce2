"""`evalhouse testset`: questions from a knowledge base, kept true when it changes."""

from pathlib import Path

import click

from evalhouse.flows.commands.options import JSON_OPTION, SEED_OPTION, WAREHOUSE_URL_OPTION, LazyGroup, limit_options
from evalhouse.flows.display.output import print_json, print_notice
from evalhouse.flows.errors import INCOMPLETE, INTERRUPTED


@click.group(cls=LazyGroup, elsewhere={})
def testset() -> None:
    """Make questions with ground truths from documents, and keep them true when the documents change."""


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
@click.option(
    "--judge",
    metavar="J",
    help="Who writes and checks the questions: openai:MODEL, another PROVIDER:MODEL, module:factory or lexical.",
)
@click.option("--embeddings", metavar="E", help="What finds questions that are alike: openai:MODEL or hashing.")
@click.option(
    "--kinds",
    metavar="K=S,…",
    help="Share of each kind: fact, number, procedure, several, comparison, conversational, unanswerable.",
)
@click.option("--language", metavar="en|zh", help="Language of the prompts. Default: that of most passages.")
@click.option(
    "--references",
    type=click.Choice(["documents", "passages"]),
    help="What reference_context_ids name. Default: documents of a folder, passages of a table.",
)
@click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace the built-in ones.")
@click.option("--temperature", metavar="T", help="Sampling temperature, or `none`. Default: none is sent.")
@click.option("--reasoning-effort", metavar="E", help="How long a reasoning model thinks: none, minimal, low, … max.")
@click.option("--encoding", metavar="NAME", help="Encoding of text files that are not UTF-8.")
@click.option("--fresh", is_flag=True, default=None, help="Ask again even where replies are on record.")
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
@SEED_OPTION
@click.option("--dry-run", is_flag=True, help="Say what would be asked and what it would cost, and ask nothing.")
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
    from evalhouse.flows.testsets.made import plan_set  # noqa: PLC0415  # imports all that asks
    from evalhouse.tasks.judge.errors import RunCancelled  # noqa: PLC0415

    plan = plan_set(
        docs, Path(output), n=n, kinds=kinds, language=language, references=references, encoding=encoding, seed=seed,
        force=force or dry_run, flags=flags,
    )  # fmt: skip
    for line in plan.notices:
        print_notice(line)
    if dry_run:
        plan.print_estimate(as_json=as_json)
        return 0
    try:
        made = plan.make()
    except RunCancelled as error:
        print_notice(f"{error}; what came is on record, and the same command goes on from here")
        return INTERRUPTED
    if as_json:
        print_json(made.to_plain())
    else:
        made.print()
    return 0 if made.is_complete else INCOMPLETE
