"""Samples of a Python program, dictionaries or a frame, written into a file that any process can read as a dataset.

A frame is written as Parquet. One with a column that no Arrow type holds, such as numbers beside texts, is written row
by row like dictionaries: values of NumPy, pandas and LangChain become what JSON has. A column that is read as a field
of the sample must be readable; any other one is metadata, and what JSON does not have is kept there as text.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import orjson
import polars as pl

from evalhouse.tasks.datasets.rows import Columns
from evalhouse.tasks.datasets.values import DatasetError, refuse_dataset
from evalhouse.warehouse.messages import list_names

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_NOTHING: Final = ("NAType", "NaTType")  # what pandas has for a missing value beside NaN
_ALLOWED: Final = "texts, numbers, lists and dictionaries of these"


def write_samples(samples: Any, folder: Path, mapping: Mapping[str, str]) -> Path:  # noqa: ANN401  # anything that a caller passes
    """Write samples into a file of `folder` and return its path; raises DatasetError for what is not samples."""
    rows: object = samples
    if hasattr(samples, "__arrow_c_stream__"):
        names = list(map(str, samples.columns)) if hasattr(samples, "to_dict") else []
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            to_do = "rename one of them"
            raise refuse_dataset(f"two columns are {list_names(repeated)}", allowed="each name once", to_do=to_do)
        try:
            path = folder / "samples.parquet"
            pl.DataFrame(samples).write_parquet(path)
            return path
        except (ValueError, TypeError, NotImplementedError, pl.exceptions.PolarsError):
            if not hasattr(samples, "to_dict"):
                raise
            rows = samples.to_dicts() if isinstance(samples, pl.DataFrame) else samples.to_dict("records")
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise DatasetError(
            f"samples is a {type(rows).__name__}; give a list of dictionaries, a frame, or the name of a dataset: "
            'evaluate([{"question": "…", "answer": "…"}])'
        )
    lines, columns = [], Columns(mapping)
    for place, sample in enumerate(rows):
        if not isinstance(sample, Mapping):
            raise DatasetError(f"samples[{place}] is a {type(sample).__name__}; each is a dictionary with a question")
        try:
            lines.append(orjson.dumps(dict(sample), default=_make_plain, option=_OPTIONS))
        except orjson.JSONEncodeError:
            lines.append(_write_by_column(place, sample, columns))
    if not lines:
        raise DatasetError("samples is empty; give at least one dictionary with a question")
    path = folder / "samples.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def _write_by_column(place: int, sample: Mapping[Any, Any], columns: Columns) -> bytes:
    """Return a sample as JSON, with text for what JSON does not have in columns that are not read as a field."""
    written: dict[str, object] = {}
    for name, value in sample.items():
        try:
            written[str(name)] = orjson.Fragment(orjson.dumps(value, default=_make_plain, option=_OPTIONS))
        except orjson.JSONEncodeError as error:
            if columns.reads(str(name)):
                came = f"samples[{place}]: column {name!r} holds a value that cannot be read: {error}"
                raise refuse_dataset(came, allowed=_ALLOWED, to_do="convert it to one of these") from None
            written[str(name)] = str(value).encode(errors="replace").decode()
    return orjson.dumps(written)


def _make_plain(value: Any) -> object:  # noqa: ANN401  # any value that JSON does not have
    """Return a value of NumPy, pandas, Polars or LangChain as JSON has it; raises TypeError for another one."""
    if type(value).__name__ in _NOTHING:
        return None
    if hasattr(value, "page_content"):
        return {name: getattr(value, name, None) for name in ("page_content", "id", "metadata")}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    for method in ("tolist", "to_list", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
