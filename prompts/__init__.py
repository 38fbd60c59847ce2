"""The words in which a judge is asked: prompt files in English and Chinese, a strict loader, a renderer.

The steps in `tasks/` take a prompt by name, give it the data of a request and send the rendered messages; the shape of
the reply is in the prompt's `reply_schema` and `labels`.
"""

from pathlib import Path

from evalhouse.prompts.loader import (
    VERDICT_LISTS,
    VERDICTS,
    Prompt,
    Prompts,
    collect_words,
    list_built_in,
    list_ids,
    list_languages,
    list_row_reasons,
    list_rubric_columns,
    load_built_in,
    name_support,
    pick_verdict_lists,
    read_stored_rubric,
    unfold_row,
    word_row,
)
from evalhouse.prompts.render import (
    CONVERSATION,
    TURN_PREFIX,
    BlockKind,
    BlockValue,
    Item,
    Message,
    PromptError,
    PromptProblem,
    join_texts,
    list_texts,
)
from evalhouse.prompts.rubric import PREFERENCES, Criterion, Grade, Rating, Rubric

__all__ = [
    "CONVERSATION",
    "PREFERENCES",
    "TURN_PREFIX",
    "VERDICTS",
    "VERDICT_LISTS",
    "BlockKind",
    "BlockValue",
    "Criterion",
    "Grade",
    "Item",
    "Message",
    "Prompt",
    "PromptError",
    "PromptProblem",
    "Prompts",
    "Rating",
    "Rubric",
    "check_prompts",
    "collect_words",
    "join_texts",
    "list_ids",
    "list_languages",
    "list_row_reasons",
    "list_rubric_columns",
    "list_texts",
    "load_prompts",
    "name_support",
    "pick_verdict_lists",
    "read_stored_rubric",
    "unfold_row",
    "word_row",
]


def load_prompts(language: str = "en", folder: Path | None = None) -> Prompts:
    """Return the prompts of a language by name; a file in `folder` or `folder/<language>` replaces the built-in one.

    The folder's files are loaded and checked at once; the built-in ones are loaded at their first use. PromptError: has
    every problem of every file of the folder.
    """
    names = list_built_in(language)
    if folder is None and names:
        return Prompts(names, lambda name: load_built_in(language, name))
    from evalhouse.prompts.checks import load_folder  # noqa: PLC0415  # most runs have built-in prompts only

    prompts, problems = load_folder(language, folder)
    if problems:
        raise PromptError(problems=problems)
    return Prompts([*names, *prompts], lambda name: prompts.get(name) or load_built_in(language, name))


def check_prompts(folder: Path | None = None, language: str = "en") -> list[PromptProblem]:
    """Return all problems of the prompts of a folder and of the built-in ones of the language."""
    from evalhouse.prompts.checks import check_built_in, load_folder  # noqa: PLC0415  # as above

    _, problems = load_folder(language, folder)
    return [*problems, *check_built_in(language)]
