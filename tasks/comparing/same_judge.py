"""Are two runs measured by the same yardstick: the settings that shape a judge's replies, and the steps they reach."""

from collections.abc import Mapping
from typing import Final

from evalhouse.warehouse.rows.runs import RunRow

_GRADED = "grade_"
# Settings of a run that shape the judge's replies, and the steps (as llm_calls names them) they reach; None is all.
_JUDGE_SETTINGS: Final[Mapping[str, tuple[str, ...] | None]] = {
    "temperature": None,
    "max_tokens": None,
    "request_tokens": None,
    "votes": ("classify", "attribute", "rank"),
    "contexts_alone": ("attribute", "rank"),
    "regenerated_questions": ("relevancy",),
    "contexts_role": (_GRADED,),
    "logprobs": (_GRADED,),
}


def is_changed_everywhere(base: RunRow, candidate: RunRow, step: str) -> bool:
    """Whether the runs had another judge, embeddings, language or setting in a step, and so for every sample."""
    if step == "similarity":
        return base.embeddings != candidate.embeddings
    if base.judge != candidate.judge or base.language != candidate.language:
        return True
    return any(
        reached is None or step.startswith(reached)
        for name, reached in _JUDGE_SETTINGS.items()
        if name in list_changed_settings(base, candidate)
    )


def list_changed_settings(base: RunRow, candidate: RunRow) -> list[str]:
    """Settings that both runs have on record and that differ."""
    return [
        name
        for name in _JUDGE_SETTINGS
        if name in base.config and name in candidate.config and base.config[name] != candidate.config[name]
    ]
