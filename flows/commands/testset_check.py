"""`evalhouse testset check`: what is wrong with a set, whoever wrote it."""

from pathlib import Path

import click

from evalhouse.flows.commands.options import (
    DRY_RUN_OPTION,
    FRESH_OPTION,
    JSON_OPTION,
    REASONING_OPTION,
    TEMPERATURE_OPTION,
    WAREHOUSE_URL_OPTION,
    limit_options,
    write_command,
)
from evalhouse.flows.commands.testset import carry_out
from evalhouse.flows.display.output import print_notice


@click.command()
@click.argument("path", metavar="SET")
@click.argument("docs", metavar="[DOCS]", required=False)
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Read our column OURS from THEIRS.")
@click.option(
    "--judge",
    metavar="J",
    help="Who says what documents bear out: openai:MODEL, another PROVIDER:MODEL, module:factory or lexical.",
)
@click.option("--embeddings", metavar="E", help="What finds questions that are alike: openai:MODEL or hashing.")
@click.option("--language", metavar="en|zh", help="Language of all prompts. Default: that of each question.")
@click.option("--prompts", metavar="DIR", help="A folder whose prompt files replace the built-in ones.")
@TEMPERATURE_OPTION
@REASONING_OPTION
@click.option("--encoding", metavar="NAME", help="Encoding of text files that are not UTF-8.")
@FRESH_OPTION
@click.option("--html", metavar="FILE", help="Also write everything as one page that needs no network.")
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
    """Find what is wrong with SET, any dataset that `run` reads, whoever wrote it.

    Without DOCS: questions that ask the same, hold their answer, lack a ground truth or mix languages. With DOCS, the
    folder or table that the questions are about: also ground truths that no document bears out or that one
    contradicts, references that are gone, and documents without a question. Exit status 1 when something was found, 3
    when not all could be checked.
    """
    from evalhouse.flows.preparing.settings import parse_pairs  # noqa: PLC0415  # imports all that asks
    from evalhouse.flows.testsets.check import CheckedSet, plan_check  # noqa: PLC0415

    plan = plan_check(
        path, docs, mapping=parse_pairs(maps, "--map"), language=language, encoding=encoding,
        command=write_command(), flags=flags,
    )  # fmt: skip

    def act() -> CheckedSet:
        checked = plan.check()
        if html is not None:
            from evalhouse.flows.report.testset_page import build_check_page  # noqa: PLC0415  # imports SciPy

            Path(html).write_text(build_check_page(checked.to_plain()), encoding="utf-8")
            print_notice(f"wrote {html}; open it in any browser")
        return checked

    return carry_out(plan, act, dry_run=dry_run, as_json=as_json, stopped="what came is on record")
