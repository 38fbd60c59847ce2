"""What two runs were made with, side by side: what differs first, and what is the same."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from evalhouse.flows.display.output import write_json, write_value
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow

_NAMES: Final[Mapping[str, str]] = {
    "judge": "judge",
    "embeddings": "embeddings",
    "language": "language of the prompts",
    "plan": "how the judge is asked",
    "dataset": "dataset",
    "dataset_hash": "content of the dataset",
    "kb_name": "knowledge base",
    "kb_version": "version of the knowledge base",
    "kb_changed": "documents that changed in it",
    "suite": "suite",
    "suite_hash": "content of the suite's file",
    "code_version": "version of the code",
    "tags": "tags",
    "metrics": "metrics",
    "status": "status",
}
_ELSEWHERE: Final = frozenset(field.name for field in fields(RunRow)) | {"plan"}
"""Settings that the runs' own columns have as well."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that both runs were made with, in words of a page."""

    name: str
    base: str
    candidate: str

    @property
    def differs(self) -> bool:
        """Whether it is not the same in both."""
        return self.base != self.candidate


def list_differences(pair: RunPair) -> list[Difference]:
    """Everything that is on record of both, in the order of a page; of settings only those that either run has."""
    return [*_list_columns(pair.base, pair.candidate), *_list_prompts(pair), *_list_settings(pair.base, pair.candidate)]


def _list_columns(base: RunRow, candidate: RunRow) -> Iterator[Difference]:
    for column, name in _NAMES.items():
        yield Difference(name=name, base=_write(getattr(base, column)), candidate=_write(getattr(candidate, column)))


def _list_prompts(pair: RunPair) -> Iterator[Difference]:
    """By step the prompts and the models that answered, where either run asked."""
    sides: dict[str, dict[bool, Mapping[str, Any]]] = {}
    for row in pair.read_prompts().to_dicts():
        sides.setdefault(row["step"], {})[row["of_candidate"]] = row
    for column, what in (("prompts", "prompt"), ("models", "model that answered")):
        for step, rows in sides.items():
            before, after = (rows.get(side, {}).get(column) for side in (False, True))
            # A run that took every reply from the record heard from no model, which is not another one.
            if (before or after) and (column == "prompts" or (before and after)):
                yield Difference(name=f"{what}, {step}", base=_write(before), candidate=_write(after))


def _list_settings(base: RunRow, candidate: RunRow) -> Iterator[Difference]:
    for name in dict.fromkeys((*base.config, *candidate.config)):
        if name not in _ELSEWHERE:
            before, after = (run.config.get(name) for run in (base, candidate))
            yield Difference(name=f"setting {name}", base=_write(before), candidate=_write(after))


def _write(value: object) -> str:
    if isinstance(value, tuple | list) and all(isinstance(entry, str) for entry in value):
        return ", ".join(value) or "–"
    return write_json(value, indent=False) if isinstance(value, dict | list) else write_value(value)
