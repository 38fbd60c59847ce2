"""`evalhouse prompts`: the words the judge is asked in."""

from pathlib import Path

import click

from flows.options import JSON_OPTION, SettingsError
from flows.output import make_table, print_json, print_line, print_notice, print_table, print_text
from prompts import Prompt, check_prompts, list_languages, load_prompts

_LANGUAGE = click.option(
    "--language",
    default="en",
    show_default=True,
    envvar="EVALHOUSE_LANGUAGE",
    metavar="|".join(list_languages()),
    help="Language of the prompts.",
)
_FOLDER = click.option(
    "--prompts",
    "folder",
    envvar="EVALHOUSE_PROMPTS",
    metavar="DIR",
    help="A folder whose prompt files replace ours.",
)


@click.group()
def prompts() -> None:
    """List, show and check the judge's prompts."""


@prompts.command("list")
@_LANGUAGE
@_FOLDER
@JSON_OPTION
def list_prompts(language: str, folder: str | None, as_json: bool) -> None:
    """List the prompts with their versions and hashes."""
    found = list(load_prompts(language, _to_path(folder)).values())
    if as_json:
        print_json([_describe(prompt) for prompt in found])
        return
    rows = [[item.name, item.version, item.language, item.prompt_hash[:12], item.description] for item in found]
    print_table(make_table(["prompt", "#version", "language", "hash", "what it asks"], rows))


@prompts.command()
@click.argument("name")
@_LANGUAGE
@_FOLDER
@JSON_OPTION
def show(name: str, language: str, folder: str | None, as_json: bool) -> None:
    """Show the messages that every request of prompt NAME begins with, and the shape of its reply."""
    found = load_prompts(language, _to_path(folder))
    if name not in found:
        raise SettingsError(f"unknown prompt {name!r}; known: {', '.join(found)}")
    prompt = found[name]
    if as_json:
        opening = [{"role": item.role, "content": item.content} for item in prompt.opening]
        print_json(_describe(prompt) | {"messages": opening, "reply_schema": prompt.reply_schema})
        return
    for message in prompt.opening:
        print_line(f"── {message.role} ", bold=True)
        print_text(f"{message.content}\n")
    print_line("── human ", bold=True)
    print_line("\n".join(f"<{block} …>\n…\n</{block} …>" for block in prompt.variables))
    print_line("── reply ", bold=True)
    print_json(prompt.reply_schema)


@prompts.command()
@_LANGUAGE
@click.argument("folder", required=False)
def check(folder: str | None, language: str) -> int:
    """Check the prompts in FOLDER (ours without one) and say everything that is wrong with them."""
    problems = check_prompts(_to_path(folder), language)
    for problem in problems:
        print_notice(str(problem))
    if problems:
        return 2
    found = load_prompts(language, _to_path(folder))
    print_line(f"{len(found)} prompts in {language} are sound: {', '.join(found)}")
    return 0


def _describe(prompt: Prompt) -> dict[str, object]:
    return {
        "name": prompt.name,
        "version": prompt.version,
        "language": prompt.language,
        "prompt_hash": prompt.prompt_hash,
        "description": prompt.description,
    }


def _to_path(folder: str | None) -> Path | None:
    return Path(folder) if folder else None
