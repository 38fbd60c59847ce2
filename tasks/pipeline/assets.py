"""The scores of a suite as an asset of Prefect's, made from its dataset and its knowledge base: their keys, and what an
event about them says beside. Runs outside a suite make no asset."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.assets import Asset, AssetProperties

from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.suite import name_scores
from evalhouse.warehouse.rows.runs import find_run

# What no key may have in it.
_RESTRICTED = re.compile(r"[\s#?&%\"'<>\[\]{}|\\^`]")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")
_LONGEST_KEY = 512


def make_scores_asset(suite: str) -> Asset:
    """The scores of a suite."""
    properties = AssetProperties(name=f"scores of {suite}", description=f"What the runs of suite {suite} have scored.")
    return Asset(key=name_scores(suite), properties=properties)


def list_upstream(live_run: LiveRun) -> list[Asset | str]:
    """What the scores of a suite were made from: the dataset, and what starts the suite by its updates."""
    settings = live_run.settings
    assets: list[Asset | str] = [Asset(key=name_dataset(settings.dataset))]
    if settings.upstream is not None:
        assets.append(Asset(key=name_source(settings.upstream)))
    return assets


def name_dataset(dataset: str) -> str:
    """The key of a dataset: its address, or that of its file; `sample` ships with evalhouse and has none."""
    if _URI.match(dataset):
        return _keep_allowed(dataset)
    path = Path(dataset)
    return _keep_allowed(f"file://{path.as_posix()}" if path.is_absolute() else f"evalhouse://dataset/{dataset}")


def name_source(name: str) -> str:
    """The key of an asset is its own; a knowledge base has one of ours."""
    return _keep_allowed(name if _URI.match(name) else f"evalhouse://knowledge-base/{name}")


def describe_scores(live_run: LiveRun, means: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is said of the scores of a run: which run and set they are of, their means, and how much is scored."""
    run = find_run(live_run.warehouse, live_run.run_id)
    n_samples = {row["metric"]: row["n_scored"] + row["n_unscored"] for row in means}
    return {
        "run_id": run.run_id,
        "dataset_hash": run.dataset_hash,
        "judge": run.judge,
        "n_samples": run.n_samples,
        "means": {row["metric"]: row["mean"] for row in means},
        "coverage": {row["metric"]: row["n_scored"] / max(1, n_samples[row["metric"]]) for row in means},
    }


def _keep_allowed(key: str) -> str:
    return _RESTRICTED.sub("_", key)[:_LONGEST_KEY]
