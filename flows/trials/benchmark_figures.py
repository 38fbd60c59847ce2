"""From what a judge said of labelled rows to how far it agrees with people."""

from collections.abc import Sequence

from evalhouse.tasks.trials.label_agreement import measure_labels
from evalhouse.tasks.trials.labelled_sets import Part
from evalhouse.tasks.trials.labelled_verdicts import Judged
from evalhouse.tasks.trials.lines import SetAgreement
from evalhouse.tasks.trials.rating_agreement import measure_ratings, measure_splits


def measure_part(part: Part, judged: Sequence[Judged], *, seed: int) -> list[SetAgreement]:
    """The agreement on one set in one language, one for each dimension that people rated."""
    if part.kind == "decomposition":
        return [measure_splits(part, judged, seed=seed)]
    if part.kind == "rubric":
        return list(measure_ratings(part, judged, seed=seed))
    return [measure_labels(part, judged, seed=seed)]
