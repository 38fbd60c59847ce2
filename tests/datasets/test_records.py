"""Samples from Python: what programs put into dictionaries and frames is read, or refused by its column."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from dataset_files import read_all

from evalhouse.tasks.datasets.read import write_samples
from evalhouse.tasks.datasets.values import DatasetError

MILL = {"question": "What turns the mill?", "answer": "Wind.", "contexts": ["Wind turns it."]}


class Page:
    """A document as LangChain has it."""

    page_content = "Wind turns it."
    id = "d1"
    metadata = None


class Odd:
    def __str__(self) -> str:
        return "odd \ud800"


class PandasLike:
    """A frame with a column that no Arrow type holds: as pandas, it gives its rows as dictionaries."""

    columns = ("question", "answer", "score")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise TypeError("cannot mix float and str")

    def to_dict(self, form: str) -> list[dict[str, Any]]:
        assert form == "records"
        return [{**MILL, "score": 0.5}, {**MILL, "score": "n/a"}]


class Indexed:
    """A frame whose ids are its index: `set_index("id")` of pandas."""

    columns = ("question", "answer")
    index = SimpleNamespace(names=["id"])

    def reset_index(self) -> pl.DataFrame:
        return pl.DataFrame([{"id": "m1", **MILL}])


def test_a_named_index_is_a_column(tmp_path: Path) -> None:
    """Pandas writes it so to Parquet; the ids were hashes, and no night was compared with the last."""
    assert [sample.sample_id for sample in read_all(write_samples(Indexed(), tmp_path, {}))] == ["m1"]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("contexts", np.array(["Wind turns it."], dtype=object), ["Wind turns it."]),
        ("contexts", np.array([{"text": "Wind turns it.", "id": 3}], dtype=object), ["Wind turns it."]),
        ("contexts", np.array(["Wind turns it."]), ["Wind turns it."]),
        ("contexts", pl.Series(["Wind turns it."]), ["Wind turns it."]),
        ("contexts", [Page()], ["Wind turns it."]),
        ("contexts", Page(), ["Wind turns it."]),
        ("retrieval_gt", np.array([np.array(["a"], dtype=object), np.array(["b"], dtype=object)], dtype=object), None),
        ("answer", np.int64(4), "4"),
        ("answer", np.float64("nan"), None),
        ("answer", Decimal("1.10"), "1.10"),
        ("day", dt.date(2026, 3, 1), "2026-03-01"),
        ("vector", np.zeros(2), [0.0, 0.0]),
        ("at", dt.time(10, tzinfo=dt.timezone(dt.timedelta(hours=1))), "10:00:00+01:00"),
        ("thing", Odd(), "odd \ufffd"),
        ("half \ud800", "of a pair", "of a pair"),
        ("parts", {"inner": {1, 2}}, "{'inner': {1, 2}}"),
        ("big", 2**80, str(2**80)),
        (3, "three", "three"),
    ],
)
def test_values_of_programs_are_read(tmp_path: Path, column: Any, value: object, expected: object) -> None:  # noqa: ANN401
    (sample,) = read_all(write_samples([{**MILL, column: value}], tmp_path, {}))
    if column == "retrieval_gt":
        assert sample.reference_context_ids == ["a", "b"]
    elif column in ("contexts", "answer"):
        assert getattr(sample, column) == expected
    else:
        assert sample.metadata[str(column).replace("\ud800", "\ufffd")] == expected


@pytest.mark.parametrize("column", ["question", "answer", "Expected Output", "hits"])
def test_value_of_a_field_that_cannot_be_read_names_its_column(tmp_path: Path, column: str) -> None:
    with pytest.raises(DatasetError) as caught:
        write_samples([MILL, {**MILL, column: Odd()}], tmp_path, {"contexts": "$.hits[*].text"})
    assert f"samples[1]: column {column!r} holds a value that cannot be read" in str(caught.value)
    assert "allowed: texts, numbers, lists and dictionaries of these" in str(caught.value)


@pytest.mark.parametrize("frame", [PandasLike(), pl.DataFrame([{**MILL, "score": Odd()}, {**MILL, "score": Odd()}])])
def test_frame_with_a_column_of_mixed_values_is_read(tmp_path: Path, frame: object) -> None:
    samples = read_all(write_samples(frame, tmp_path, {}))
    assert [sample.answer for sample in samples] == ["Wind.", "Wind."]
    assert all("score" in sample.metadata for sample in samples)
