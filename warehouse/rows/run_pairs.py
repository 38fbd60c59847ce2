"""Two runs side by side: scores, what changed in the samples, which judge was asked, and verdicts.

Only rows of the two runs are read, and texts only of samples whose content hash or metadata differs, so that the time
does not depend on how long the history is.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal

import polars as pl

from evalhouse.warehouse.metric_files import fill_in_sampled
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_VALUE = "json_extract({side}_metadata, '/{name}')::varchar"
# Values are compared by hash, as texts are: the mark in place of a forgotten value ends in its hash.
_HASH = f"if(starts_with({_VALUE}, '\"forgotten on '), left(right({_VALUE}, 18), 16), left(md5({_VALUE}), 16))"


class RunPair:
    """Two runs of one warehouse, and the queries of `queries/run_pairs` about both."""

    def __init__(self, warehouse: Warehouse, base: RunRow, candidate: RunRow) -> None:
        self.base, self.candidate = base, candidate
        self.warehouse = warehouse
        self._ids = {"base": base.run_id, "candidate": candidate.run_id}

    def fetch(
        self, query: str, wanted: Mapping[str, Collection[str]] | None = None, /, **parameters: object
    ) -> pl.DataFrame:
        """Return the rows of `queries/run_pairs/QUERY.sql`; `wanted` as in `Warehouse.fetch`."""
        return self.warehouse.fetch(f"run_pairs/{query}", wanted, **self._ids, **parameters)

    def fetch_state(self) -> tuple[object, ...]:
        """Return a value that changes whenever a comparison of the runs would: by rescoring, or by other noise runs."""
        return (*self._ids.values(), self.base.status, self.candidate.status, *self.fetch("state").rows())

    def fetch_sampled(self, query: Literal["sampled", "sampled_terms", "sampled_shares"]) -> pl.DataFrame:
        """Return the rows of a query for runs of which one judged a part of its dataset."""
        return self.warehouse.read(fill_in_sampled(read_query(f"run_pairs/{query}")), self._ids)

    def fetch_changed_inputs(self, metadata_names: Sequence[str]) -> pl.DataFrame:
        """Return one row per sample of both runs in which something may differ.

        A row has a flag for each input, and for each of these names in the metadata.
        """
        further = ", ".join(
            f"{_HASH.format(side='base', name=name)} is distinct from {_HASH.format(side='candidate', name=name)} "
            f"as {name}"
            for name in metadata_names
        )
        return self.warehouse.read(read_query("run_pairs/changed_inputs").format(further=further), self._ids)

    def list_changed_judges(self, sample_id: str) -> list[str]:
        """Return the steps for which the runs asked another judge, model or prompt about one sample."""
        sql = f"select step from ({read_query('run_pairs/changed_judges')}) where sample_id = $sample_id"
        return list(self.warehouse.read(sql, {**self._ids, "sample_id": sample_id})["step"])

    @cached_property
    def metric_steps(self) -> dict[str, frozenset[str]]:
        """The steps that each known metric rests on."""
        rows = self.warehouse.fetch_rows("run_pairs/metric_steps")
        return {row["metric"]: frozenset(row["steps"]) for row in rows}

    @cached_property
    def rubrics(self) -> dict[str, list[str]]:
        """The texts of the prompts with which rubrics graded in either run, by the step of the rubric."""
        return {row["step"]: row["templates"] for row in self.fetch("rubrics").to_dicts()}

    def fetch_statements(self, sample_ids: Sequence[str]) -> pl.DataFrame:
        """Return the statements of these samples in both runs, with their verdicts."""
        only = sample_ids[0] if len(sample_ids) == 1 else None
        return self.fetch("statements", {"sample_id": sample_ids}, only=only)

    def fetch_verdicts(self, sample_ids: Sequence[str]) -> dict[str, pl.DataFrame]:
        """Return all verdicts of both runs on some samples: statements, contexts and grades."""
        wanted = {"sample_id": sample_ids}
        return {
            "statements": self.fetch_statements(sample_ids),
            **{query: self.fetch(query, wanted) for query in ("contexts", "grades")},
        }
