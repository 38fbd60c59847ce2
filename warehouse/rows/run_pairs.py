"""Two runs side by side: scores, what changed in the samples, which judge was asked, and verdicts.

Each function is one question to the warehouse about a pair of runs. Only rows of the two runs are read, and texts only
of samples whose content hash or metadata differs, so that the answer does not depend on how long history is.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from evalhouse.warehouse.metric_files import fill_in_sampled
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_VALUE = "json_extract({side}_metadata, '/{name}')::varchar"
# By their hashes, as texts are: where a value was forgotten its mark ends in that.
_HASH = f"if(starts_with({_VALUE}, '\"forgotten on '), left(right({_VALUE}, 18), 16), left(md5({_VALUE}), 16))"


def _write_changed(name: str) -> str:
    base, candidate = (_HASH.format(side=side, name=name) for side in ("base", "candidate"))
    return f"{base} is distinct from {candidate} as {name}"


class RunPair:
    """Two runs of one warehouse, and what can be read of them together."""

    def __init__(self, warehouse: Warehouse, base: RunRow, candidate: RunRow) -> None:
        self.base, self.candidate = base, candidate
        self.warehouse = warehouse
        self._ids = {"base": base.run_id, "candidate": candidate.run_id}

    def read_state(self) -> tuple[object, ...]:
        """What is another whenever a comparison of the runs would be: after rescoring, or with other noise runs."""
        states = self.warehouse.read(read_query("run_pairs/state"), self._ids).rows()
        return (self.base.run_id, self.candidate.run_id, self.base.status, self.candidate.status, *states)

    def read_prompts(self) -> pl.DataFrame:
        """One row per run and step of its calls: the prompts and the models that answered, each as a text."""
        return self.warehouse.read(read_query("run_pairs/prompts"), self._ids)

    def read_flips(self) -> pl.DataFrame:
        """One row per verdict on the same thing that is another in each run: see `run_pairs/flips.sql`."""
        return self.warehouse.read(read_query("run_pairs/flips"), self._ids)

    def read_samples(self) -> pl.DataFrame:
        """One row a sample of either run: sample_id, in_base, in_candidate."""
        return self.warehouse.read(read_query("run_pairs/samples"), self._ids)

    def read_scores(self) -> pl.DataFrame:
        """One row per metric and sample of either run: both values (NULL where unscored) and formula versions."""
        return self.warehouse.read(read_query("run_pairs/scores"), self._ids)

    def read_estimates(self) -> list[dict[str, Any]]:
        """One row per metric of two runs, one of which judged a part of its dataset: see `run_pairs/sampled.sql`."""
        return self.warehouse.read_rows(fill_in_sampled(read_query("run_pairs/sampled")), self._ids)

    def read_changed_inputs(self, metadata_names: Sequence[str]) -> pl.DataFrame:
        """One row per sample of both runs in which something may differ: a flag for each input, and for each of these
        names in the metadata."""
        further = ", ".join(map(_write_changed, metadata_names))
        return self.warehouse.read(read_query("run_pairs/changed_inputs").format(further=further), self._ids)

    def read_changed_judges(self) -> pl.DataFrame:
        """One row per sample and step of a call for which the runs asked another judge, model or prompt."""
        return self.warehouse.read(read_query("run_pairs/changed_judges"), self._ids)

    def list_changed_judges(self, sample_id: str) -> list[str]:
        """The steps of one sample's calls for which they did."""
        sql = f"select step from ({read_query('run_pairs/changed_judges')}) where sample_id = $sample_id"
        return list(self.warehouse.read(sql, {**self._ids, "sample_id": sample_id})["step"])

    def read_sample_scores(self, sample_id: str) -> list[dict[str, Any]]:
        """One row per metric of one sample: both values, and why one is not there."""
        return self.warehouse.read_rows(read_query("run_pairs/sample_scores"), {**self._ids, "sample_id": sample_id})

    def read_all_contexts(self, sample_id: str) -> pl.DataFrame:
        """One row per context that either run had for a sample, with its id and, where it was judged, its verdict."""
        return self.warehouse.read(read_query("run_pairs/all_contexts"), {**self._ids, "sample_id": sample_id})

    def read_metric_steps(self) -> dict[str, frozenset[str]]:
        """The steps each known metric rests on."""
        rows = self.warehouse.read(read_query("run_pairs/metric_steps")).to_dicts()
        return {row["metric"]: frozenset(row["steps"]) for row in rows}

    def read_rubrics(self) -> dict[str, list[str]]:
        """By step of a rubric the texts of the prompts with which it graded in either run."""
        rows = self.warehouse.read(read_query("run_pairs/rubrics"), self._ids).to_dicts()
        return {row["step"]: row["templates"] for row in rows}

    def read_metadata(self) -> pl.DataFrame:
        """One row a sample of either run: sample_id and its metadata as JSON text; the candidate's if both have it."""
        return self.warehouse.read(read_query("run_pairs/metadata"), self._ids)

    def read_texts(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per sample and run that has it: question, answer, ground_truth, contexts; of_candidate says which."""
        return self._read_of(read_query("run_pairs/texts"), sample_ids)

    def read_verdicts(self, sample_ids: Sequence[str]) -> dict[str, pl.DataFrame]:
        """All verdicts of both runs: statements, contexts and grades."""
        return {
            "statements": self.read_statements(sample_ids),
            "contexts": self.read_contexts(sample_ids),
            "grades": self.read_grades(sample_ids),
        }

    def read_statements(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per statement with its verdicts, of both runs, in the order of their texts."""
        return self._read_of(read_query("run_pairs/statements"), sample_ids)

    def read_contexts(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per context that was judged by itself, of both runs."""
        return self._read_of(read_query("run_pairs/contexts"), sample_ids)

    def read_grades(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """One row per rating, of both runs; `text` names rubric and criterion."""
        return self._read_of(read_query("run_pairs/grades"), sample_ids)

    def _read_of(self, sql: str, sample_ids: Sequence[str]) -> pl.DataFrame:
        wanted = pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})
        return self.warehouse.read(sql, self._ids, frames={"wanted": wanted})
