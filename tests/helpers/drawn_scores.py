"""Scores as some metrics have them, drawn at random with a known mean; in some, samples of a document go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]


@dataclass(frozen=True)
class Scores:
    """Scores as some metric has them, samples × runs at a time, their true mean, and how many share a document."""

    mean: float
    draw: Draw
    size: Callable[[int, int], int] = lambda _place, _n: 1
    is_alone: bool = True  # each sample in a separate document


def number_documents(n: int, size: Callable[[int, int], int]) -> NDArray[np.int64]:
    """Return the document of each of n samples; `size` is by the document's place and n."""
    places: list[int] = []
    while len(places) < n:
        document = places[-1] + 1 if places else 0
        places += [document] * max(1, min(size(document, n), n - len(places)))
    return np.array(places)


def in_documents(size: Callable[[int, int], int]) -> Scores:
    """Right or wrong, 0.7 in all, in documents with an intraclass correlation of 0.5."""

    def draw(generator: np.random.Generator, shape: tuple[int, int]) -> Floats:
        places = number_documents(shape[0], size)
        of_document = generator.beta(0.7, 0.3, (places[-1] + 1, shape[1]))
        return (generator.random(shape) < of_document[places]).astype(np.float64)

    return Scores(0.7, draw, size, is_alone=False)


MEANS = {
    "0 or 1": Scores(0.95, lambda rng, shape: (rng.random(shape) < 0.95).astype(np.float64)),
    "like F1": Scores(0.45, lambda rng, shape: np.where(rng.random(shape) < 0.25, 0.0, rng.beta(3, 2, shape))),
    "94 % zeros": Scores(0.02, lambda rng, shape: np.where(rng.random(shape) < 0.94, 0.0, rng.beta(1, 2, shape))),
    "90 % ones": Scores(0.95, lambda rng, shape: np.where(rng.random(shape) < 0.9, 1.0, rng.beta(2, 2, shape))),
    "5 questions a document": in_documents(lambda _place, _n: 5),
    "documents by Zipf": in_documents(lambda place, n: n // (4 * (place + 1))),
    "half in one document": in_documents(lambda place, n: 1 if place else n // 2),
}
