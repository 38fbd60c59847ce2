"""Plain and corrected means side by side, for the commands that show means; imports nothing that makes `show` slow."""

from collections.abc import Sequence

from evalhouse.flows.display.output import make_table, write_interval
from evalhouse.flows.display.table import Table
from evalhouse.tasks.reviews.corrected_means import CorrectedMean, CorrectedPair


def corrected_table(rows: Sequence[CorrectedMean], *, title: str = "Means corrected by what people said") -> Table:
    """One row a metric, of one run."""
    columns = ["metric", "#judge's mean", "#corrected", "95 % interval", "#judge too high by", "#reviewed", "mind"]
    cells = [
        [
            row.metric, row.mean, row.corrected_mean, write_interval(row.ci_low, row.ci_high), f"{row.judge_bias:+.3f}",
            row.n_reviewed, row.note,
        ]
        for row in rows
    ]  # fmt: skip
    return make_table(columns, cells, title=title)


def corrected_pair_table(pairs: Sequence[CorrectedPair]) -> Table:
    """One row a metric, of two runs; there is no interval of the difference, since both rest on the same labels."""
    columns = ["metric", "#base", "95 % interval", "#candidate", "95 % interval", "#reviewed", "mind"]
    cells = [
        [
            pair.metric, pair.base.corrected_mean, write_interval(pair.base.ci_low, pair.base.ci_high),
            pair.candidate.corrected_mean, write_interval(pair.candidate.ci_low, pair.candidate.ci_high),
            f"{pair.base.n_reviewed} and {pair.candidate.n_reviewed}",
            "; ".join(dict.fromkeys(note for note in (pair.base.note, pair.candidate.note) if note)) or None,
        ]
        for pair in pairs
    ]  # fmt: skip
    return make_table(columns, cells, title="Means corrected by what people said")
