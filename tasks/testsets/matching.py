"""The search for questions that new and changed passages answer, in any words: candidates by rank, then the judge.

Passages are ranked for each question by BM25, and by the cosine of embeddings if a model makes them; the ranks are
fused (reciprocal rank fusion; Cormack, Clarke and Büttcher, 2009). The judge is asked about the nearest, many questions
and passages in one request, and names the passages that answer a question. Each of these is asked about alone then.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evalhouse.prompts import Item
from evalhouse.tasks.asking.embeddings import Embedder
from evalhouse.tasks.asking.usage import estimate_tokens
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.judge.protocol import BudgetExhausted, JudgeFailed, Question, UnusableReply
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.testsets.near import NearPassages
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import SetQuestion

NEAREST: Final = 8
"""The number of new and changed passages that the judge is asked about for a question."""
MAX_QUESTIONS: Final = 30
"""The number of questions that the judge is asked about for a passage."""
_MAX_ASKED, _MAX_PASSAGES = 60, 8  # questions and passages in one request
_RANKS_ADDED: Final = 60  # the constant k of reciprocal rank fusion, at its usual value


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The questions of a set, `n_passages` new and changed passages, and which of them are near to each other.

    `by_question` has the nearest passages of each question by its id, the nearest first; `by_passage` the questions
    that the judge is asked about for a passage, by its id. `model` is the embedding model, None without one;
    `n_without_vector` is the number of texts for which it gave no embedding, which words alone rank.
    """

    by_question: Mapping[str, tuple[Passage, ...]]
    by_passage: Mapping[str, frozenset[str]]
    n_passages: int
    model: str | None = None
    n_without_vector: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Return what was compared, and how much of it the judge is asked about, as JSON."""
        n_questions = len(self.by_question)
        return {
            "questions": n_questions,
            "passages": self.n_passages,
            "nearest": NEAREST,
            "pairs": sum(map(len, self.by_passage.values())),
            "possible_pairs": n_questions * self.n_passages,
            "ranked_by": "words" if self.model is None else f"words and {self.model}",
        }


def fuse_ranks(*scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fused score of each place by its rank in each list of scores; a score of 0 has no rank."""
    fused = np.zeros(len(scores[0]))
    for of_list in scores:
        places = np.argsort(-of_list, kind="stable")[: np.count_nonzero(of_list > 0)]
        fused[places] += 1 / (_RANKS_ADDED + 1 + np.arange(len(places)))
    return fused


async def pair_up(
    questions: Mapping[str, SetQuestion],
    own: Mapping[str, AbstractSet[str]],
    passages: Sequence[Passage],
    near: NearPassages,
    embedder: Embedder,
    *,
    is_dry: bool = False,
) -> Pairs:
    """Pair questions with the passages nearest to them, of which `own` has the ids of passages they rest on already.

    Raises BudgetExhausted, and JudgeFailed for embeddings of different lengths.
    """
    if not passages:
        return Pairs(by_question=dict.fromkeys(questions, ()), by_passage={}, n_passages=0)
    texts = {name: f"{question.asked} {question.ground_truth or ''}".strip() for name, question in questions.items()}
    vectors: dict[str, NDArray[np.float64]] = {}

    async def embed(key: str, text: str) -> None:
        try:
            vector = await embedder.embed(key, text)
        except BudgetExhausted:
            raise
        except JudgeFailed:
            return
        if vector is not None:
            values = np.asarray(vector, float)
            vectors[key] = values / (np.linalg.norm(values) or 1.0)

    asks_model = embedder.asker is not None and bool(questions)
    if asks_model:
        contexts = {passage.passage_id: passage.as_context() for passage in passages}
        await gather_all([embed(key, text) for key, text in (texts | contexts).items()])
        if len({len(vector) for vector in vectors.values()}) > 1:
            if not is_dry:
                raise JudgeFailed(f"{embedder.name} gave vectors of different lengths")
            vectors.clear()  # recorded ones beside the substitutes of a dry run
    none = np.zeros(len(next(iter(vectors.values()), ())))
    matrix = np.array([vectors.get(passage.passage_id, none) for passage in passages])
    places = near.list_places(passages)
    numbers = {passage.passage_id: number for number, passage in enumerate(passages)}
    nearest: dict[str, tuple[Passage, ...]] = {}
    found: dict[int, list[tuple[str, float, float]]] = {}
    for name, question in questions.items():
        # Each span by itself as well: a passage about only one of several spans is not near to the whole question.
        parts = (texts[name], *(span.text for span in question.spans))
        by_words = np.max([near.rate(text)[places] for text in parts], axis=0)
        by_meaning = matrix @ vectors[name] if name in vectors else np.zeros(len(passages))
        excluded = [numbers[passage_id] for passage_id in own[name] if passage_id in numbers]
        by_words[excluded] = by_meaning[excluded] = 0.0
        fused = fuse_ranks(by_words, by_meaning)
        best = [place for place in np.argsort(-fused, kind="stable")[:NEAREST] if fused[place] > 0]
        nearest[name] = tuple(passages[place] for place in best)
        for place in best:
            found.setdefault(place, []).append((name, by_words[place], by_meaning[place]))
    by_passage = {}
    for place, near_questions in sorted(found.items()):
        fused = fuse_ranks(*(np.array([one[column] for one in near_questions]) for column in (1, 2)))
        kept = np.argsort(-fused, kind="stable")[:MAX_QUESTIONS]
        by_passage[passages[place].passage_id] = frozenset(near_questions[number][0] for number in kept)
    return Pairs(
        by_question=nearest,
        by_passage=by_passage,
        n_passages=len(passages),
        model=embedder.name if asks_model else None,
        n_without_vector=len(questions) + len(passages) - len(vectors) if asks_model and not is_dry else 0,
    )


@dataclass(frozen=True, kw_only=True)
class MatchRequest:
    """Passages of one language, and the questions that one request asks about for them."""

    passages: tuple[Passage, ...]
    questions: tuple[SetQuestion, ...]


def join_requests(
    by_passage: Mapping[str, AbstractSet[str]],
    questions: Mapping[str, SetQuestion],
    passages: Mapping[str, Passage],
    *,
    max_tokens: int,
) -> list[MatchRequest]:
    """Join passages and their questions to requests: neighbours share many questions, so they go together."""
    requests: list[MatchRequest] = []
    asked = [passages[name] for name, of_passage in by_passage.items() if not of_passage.isdisjoint(questions)]
    for passage in sorted(asked, key=lambda one: (one.language, one.ordinal)):
        own = by_passage[passage.passage_id]
        near_questions = tuple(question for name, question in questions.items() if name in own)
        joined = MatchRequest(passages=(passage,), questions=near_questions)
        if requests and requests[-1].passages[0].language == passage.language:
            last = requests[-1]
            known = {question.id for question in last.questions}
            further = (*last.questions, *(question for question in joined.questions if question.id not in known))
            both = MatchRequest(passages=(*last.passages, passage), questions=further)
            texts = [*(one.as_context() for one in both.passages), *(question.asked for question in further)]
            n_tokens = sum(map(estimate_tokens, texts))
            if len(further) <= _MAX_ASKED and len(both.passages) <= _MAX_PASSAGES and n_tokens <= max_tokens:
                requests.pop()
                joined = both
        requests.append(joined)
    return requests


async def match_questions(live_run: LiveRun, request: MatchRequest) -> list[tuple[str, Passage]]:
    """Return the ids of questions with the passages that answer them, or may, by the judge. Raises JudgeFailed."""
    contexts = {f"C{place}": passage for place, passage in enumerate(request.passages, start=1)}
    asked = {f"Q{place}": question for place, question in enumerate(request.questions, start=1)}

    def parse(text: str) -> list[tuple[str, Passage]]:
        rows = parse_object(text, "answered").get("answered")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UnusableReply('the reply had no list of objects under "answered"')
        pairs: list[tuple[str, Passage]] = []
        for row in rows:
            name, used = row.get("question"), row.get("contexts")
            if name not in asked:
                raise UnusableReply(f"question is {name!r:.20}, allowed: {', '.join(asked)}")
            if not isinstance(used, list) or not used or not {str(context) for context in used} <= contexts.keys():
                raise UnusableReply(f"contexts of {name} are {used!r:.40}, allowed: a list of {', '.join(contexts)}")
            pairs += [(asked[name].id, contexts[context]) for context in dict.fromkeys(map(str, used))]
        return pairs

    data: dict[str, Any] = {
        "contexts": [Item(id=name, text=passage.as_context()) for name, passage in contexts.items()],
        "questions": [Item(id=name, text=question.asked) for name, question in asked.items()],
    }
    prompt = live_run.prompts["match_questions"]
    question = Question(step="match_questions", sample_id=None, prompt=prompt, data=data)
    return (await live_run.asker.ask(question, parse)).value
