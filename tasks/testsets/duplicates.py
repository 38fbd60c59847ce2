"""Which questions ask the same: by their words, by what their ground truths say, and by embeddings."""

from collections.abc import Sequence

from evalhouse.tasks.asking.embedders import Embedder
from evalhouse.tasks.testsets.near import list_tokens, overlap
from evalhouse.tasks.testsets.questions import SetQuestion

ALIKE = 0.92
"""Cosine from which on two texts count as alike."""
_WORTH_COMPARING, _MOST_COMPARED = 0.2, 5


async def find_twin(question: SetQuestion, others: Sequence[SetQuestion], embedder: Embedder) -> str | None:
    """The id of another question that asks the same; None where there is none. Raises JudgeFailed.

    The same is: the same words; a ground truth of the same words from the same passage; or, of the others with most
    words in common, a question and a ground truth that both are alike in meaning.
    """
    for other in others:
        if _says_the_same(question, other):
            return other.id
    nearest = sorted(others, key=lambda other: -overlap(question.question, other.question))[:_MOST_COMPARED]
    for other in nearest:
        if overlap(question.question, other.question) < _WORTH_COMPARING:
            break
        if (question.ground_truth is None) == (other.ground_truth is None) and await _are_alike(
            question, other, embedder
        ):
            return other.id
    return None


def _says_the_same(question: SetQuestion, other: SetQuestion) -> bool:
    if [turn.content for turn in question.conversation] != [turn.content for turn in other.conversation]:
        return False
    if list(list_tokens(question.question)) == list(list_tokens(other.question)):
        return True
    if not question.ground_truth or not other.ground_truth:
        return False
    places = {span.passage_id for span in question.spans} & {span.passage_id for span in other.spans}
    return bool(places) and set(list_tokens(question.ground_truth)) == set(list_tokens(other.ground_truth))


async def _are_alike(question: SetQuestion, other: SetQuestion, embedder: Embedder) -> bool:
    if await embedder.compare(question.id, question.question, other.question) < ALIKE:
        return False
    if question.ground_truth is None or other.ground_truth is None:
        return True
    return await embedder.compare(question.id, question.ground_truth, other.ground_truth) >= ALIKE
