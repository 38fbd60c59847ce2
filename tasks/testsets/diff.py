"""What became of the questions of a set from one version to another: which came, went, changed, or rest on another
place."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any, Final, Literal

from evalhouse.tasks.testsets.given import GivenQuestion

Difference = Literal["new", "gone", "changed", "repointed"]
_SAID: Final = ("question", "ground_truth", "kind", "conversation")
_PLACES: Final = ("reference_context_ids", "spans")
# Words with the white space behind them, and Chinese characters one by one.
_PIECE = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]\s*|[^\s\u3400-\u9fff\uf900-\ufaff]+\s*")


@dataclass(frozen=True, kw_only=True)
class FieldDifference:
    """A field that is another; `words` show a text's changes as `the pool opens at [-9:00-]{+11:00+}`."""

    field: str
    before: Any
    after: Any
    words: str | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionDifference:
    """What became of a question. Of one that came or went there are no fields."""

    id: str
    difference: Difference
    question: str
    fields: tuple[FieldDifference, ...] = ()


def compare_sets(before: Sequence[GivenQuestion], after: Sequence[GivenQuestion]) -> list[QuestionDifference]:
    """All questions that are not the same in both: the new, the gone, the changed and the re-pointed ones, each in the
    order of their set. Questions are the same by their ids."""
    old, new = {one.id: one for one in before}, {one.id: one for one in after}
    came = [_describe(one, "new") for one in after if one.id not in old]
    went = [_describe(one, "gone") for one in before if one.id not in new]
    others = [
        QuestionDifference(
            id=one.id,
            difference="changed" if any(field.field in _SAID for field in fields) else "repointed",
            question=one.question,
            fields=fields,
        )
        for one in after
        if one.id in old and (fields := tuple(_compare_fields(old[one.id], one)))
    ]
    changed = [one for one in others if one.difference == "changed"]
    return [*came, *went, *changed, *(one for one in others if one.difference == "repointed")]


def _describe(question: GivenQuestion, difference: Difference) -> QuestionDifference:
    return QuestionDifference(id=question.id, difference=difference, question=question.question)


def _compare_fields(old: GivenQuestion, new: GivenQuestion) -> Iterator[FieldDifference]:
    before, after = _show(old), _show(new)
    for name in (*_SAID, *_PLACES):
        if before[name] != after[name]:
            are_texts = isinstance(before[name], str) and isinstance(after[name], str) and name != "kind"
            yield FieldDifference(
                field=name,
                before=before[name],
                after=after[name],
                words=compare_words(before[name], after[name]) if are_texts else None,
            )


def _show(question: GivenQuestion) -> dict[str, Any]:
    """The fields as JSON has them; ids of references are a set."""
    return {
        "question": question.question,
        "ground_truth": question.ground_truth,
        "kind": question.given_kind,
        "conversation": [asdict(turn) for turn in question.conversation],
        "reference_context_ids": sorted(set(question.reference_context_ids)),
        "spans": [asdict(span) for span in question.spans],
    }


def compare_words(before: str, after: str) -> str:
    """The newer text with what went as `[-…-]` and what came as `{+…+}`."""
    old, new = _PIECE.findall(before), _PIECE.findall(after)
    matcher = SequenceMatcher(None, [piece.strip() for piece in old], [piece.strip() for piece in new], autojunk=False)
    parts = []
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        went, came = "".join(old[start:end]), "".join(new[new_start:new_end])
        if kind == "equal":
            parts.append(came)
            continue
        space = " " if (came or went).endswith(" ") else ""
        parts.append(f"{_mark('[-', went, '-]')}{_mark('{+', came, '+}')}{space}")
    return "".join(parts).strip()


def _mark(start: str, text: str, end: str) -> str:
    return f"{start}{text.strip()}{end}" if text.strip() else ""
