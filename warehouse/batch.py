"""One batch: rows of several tables that are written together or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Frames by table name under a key that makes a second writing harmless.

    `replaces` names samples of the run whose verdicts are deleted in the same transaction, for a resumed shard.
    """

    key: str
    run_id: str
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    replaces: tuple[str, ...] = ()
