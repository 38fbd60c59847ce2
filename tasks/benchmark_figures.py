"""From what a judge said of labelled rows to how far it agrees with people."""

from collections.abc import Sequence

from tasks.benchmark_asking import Judged
from tasks.benchmark_labels import measure_labels
from tasks.benchmark_lines import SetAgreement
from tasks.benchmark_ratings import measure_ratings, measure_splits
from tasks.benchmark_rows import Part


def measure_part(part: Part, judged: Sequence[Judged], *, seed: int) -> list[SetAgreement]:
    """The agreement on one set in one language, one for each dimension that people rated."""
    if part.kind == "decomposition":
        return [measure_splits(part, judged, seed=seed)]
    if part.kind == "rubric":
        return list(measure_ratings(part, judged, seed=seed))
    return [measure_labels(part, judged, seed=seed)]
