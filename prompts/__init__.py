"""The words in which a judge is asked: prompt files in English and Chinese, a strict loader, a renderer.

Imports nothing of ours. The steps in `tasks/` take a prompt by name, give it the data of a request and send what it
renders; how the reply must look is in the prompt's `reply_schema` and `labels`.
"""

from evalhouse.prompts.errors import PromptError, PromptProblem
from evalhouse.prompts.loader import (
    Prompt,
    Prompts,
    check_prompts,
    list_languages,
    list_rubric_columns,
    list_rubric_metrics,
    load_prompts,
)
from evalhouse.prompts.render import CONVERSATION, TURN_PREFIX, BlockKind, BlockValue, Item, Message, list_texts
from evalhouse.prompts.replies import (
    VERDICTS,
    collect_words,
    list_ids,
    list_row_reasons,
    name_support,
    pick_verdict_lists,
    unfold_row,
    word_row,
)
from evalhouse.prompts.rubric import PREFERENCES, Criterion, Grade, Rating, Rubric

__all__ = [
    "CONVERSATION",
    "PREFERENCES",
    "TURN_PREFIX",
    "VERDICTS",
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
    "list_ids",
    "list_languages",
    "list_row_reasons",
    "list_rubric_columns",
    "list_rubric_metrics",
    "list_texts",
    "load_prompts",
    "name_support",
    "pick_verdict_lists",
    "unfold_row",
    "word_row",
]
