"""Evaluation from Python: samples in, scores, statements and verdicts out as Polars frames.

    from evalhouse.flows import evaluate
    result = evaluate(samples, metrics=["faithfulness"])
    assert result.mean("faithfulness") > 0.8

The run is that of `evalhouse run`, with the same settings, the same environment variables and the same warehouse, so
that what was answered once is never paid for again. It takes place in a child process: a notebook has an event loop of
its own, Prefect reads its settings only once a process, and nothing of a run's memory stays behind.
"""

# ruff: noqa: PLC0415  # the package imports this file, and a reading command must not pay for Polars and the settings
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from evalhouse.tasks.settings.run import RunSettings
    from evalhouse.warehouse.rows.runs import RunStatus

    Samples = Sequence[Mapping[str, Any]] | pl.DataFrame | str | os.PathLike[str]


class EvaluationError(Exception):
    """A run that could not begin, was stopped, or has no score where one was asked for. The text says why."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A run that has ended. `problem` says why when its status is not `completed`; frames are read when first used."""

    run_id: str
    status: "RunStatus"
    problem: str | None
    warehouse: str

    def mean(self, metric: str) -> float:
        """The mean over the samples that were scored, as in `run_scores`; raises EvaluationError when none was."""
        import polars as pl

        row = self.summary.filter(pl.col("metric") == metric)
        if row.is_empty():
            raise EvaluationError(f"run {self.run_id} has no metric {metric!r}; it has {', '.join(self.metrics)}")
        mean = row["mean"][0]
        if mean is None:
            reasons = self.scores.filter(pl.col("metric") == metric)["unscored_reason"].value_counts(sort=True)
            counts = ", ".join(f"{reason} {count}" for reason, count in reasons.iter_rows())
            raise EvaluationError(f"run {self.run_id} scored no sample by {metric!r}: {counts}")
        return float(mean)

    @property
    def metrics(self) -> list[str]:
        """The names of the run's metrics."""
        return self.summary["metric"].to_list()

    @cached_property
    def summary(self) -> "pl.DataFrame":
        """A row per metric: metric, mean, ci_low, ci_high, n_scored, n_unscored."""
        return self._read(
            "select metric, mean, ci_low, ci_high, n_scored, n_unscored from run_scores where run_id = $run_id "
            "order by metric"
        )

    @cached_property
    def scores(self) -> "pl.DataFrame":
        """A row per sample and metric: sample_id, metric, value (null allowed), unscored_reason, metric_version."""
        return self._read("select * exclude run_id from scores where run_id = $run_id order by sample_id, metric")

    @cached_property
    def statements(self) -> "pl.DataFrame":
        """A row per statement: sample_id, statement_id, source, ordinal, text, call_id."""
        return self._read(
            "select * exclude run_id from statements where run_id = $run_id order by sample_id, source, ordinal"
        )

    @cached_property
    def verdicts(self) -> "pl.DataFrame":
        """A row per verdict of whatever step, as in the view `verdicts`, with the judge's reason and its call."""
        return self._read("select * exclude run_id from verdicts where run_id = $run_id order by sample_id, step")

    def _read(self, sql: str) -> "pl.DataFrame":
        from evalhouse.warehouse.store import Warehouse

        return Warehouse(self.warehouse).read(sql, {"run_id": self.run_id})


def evaluate(samples: "Samples", *, metrics: Sequence[str] = (), **settings: object) -> Evaluation:
    """Evaluate samples and wait for the end.

    `samples` are dictionaries, a Polars frame, or whatever `evalhouse run` takes as DATASET. `settings` are those of
    `evalhouse.tasks.settings.run.RunSettings` by name (judge, warehouse, language, label, tags, votes, …); what is not
    given comes from the EVALHOUSE_* variables, then from the defaults. Raises SettingsError for settings that are
    refused and EvaluationError when nothing could be evaluated; a run of which only some samples failed is returned,
    with status `incomplete`.
    """
    from evalhouse.flows.preparing.settings import resolve_settings

    with tempfile.TemporaryDirectory(prefix="evalhouse-") as folder:
        dataset = _lay_samples(samples, Path(folder))
        resolved = resolve_settings({**settings, "dataset": dataset, "metrics": tuple(metrics)})
        return _run_apart(resolved.settings)


def _lay_samples(samples: "Samples", folder: Path) -> str:
    """The samples as something a run can load."""
    import orjson
    import polars as pl

    if isinstance(samples, str | os.PathLike):
        return os.fspath(samples)
    if isinstance(samples, pl.DataFrame):
        path = folder / "samples.parquet"
        samples.write_parquet(path)
        return str(path)
    path = folder / "samples.jsonl"
    path.write_bytes(b"".join(orjson.dumps(dict(sample)) + b"\n" for sample in samples))
    return str(path)


def _run_apart(settings: "RunSettings") -> Evaluation:
    import orjson

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "evalhouse.flows.run.evaluate_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        try:
            output, _ = process.communicate(settings.model_dump_json().encode())
        except KeyboardInterrupt:
            # The child has had the signal too and ends in an orderly way; it prints how to go on.
            process.wait()
            raise
    if not output:
        raise EvaluationError(f"the run's process ended with status {process.returncode} and said nothing")
    ended = orjson.loads(output)
    if "error" in ended:
        raise EvaluationError(ended["error"])
    return Evaluation(**ended, warehouse=settings.warehouse)
