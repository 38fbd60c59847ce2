"""The samples of a call of `evaluate`, laid where a run can read them, and the run's messages in the words of the call:
arguments in the place of flags, and the place in `samples` in the place of a line in a temporary file."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evalhouse.flows.preparing.settings import find_flag
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import list_names

SAMPLES = "samples"
"""What they are called, on record as well."""
_ARGUMENTS = {find_flag(name): name for name in RunSettings.model_fields}
# What is to be typed at the command line stays as it is.
_COMMAND = re.compile(r"(`evalhouse [^`]*`|evalhouse [a-z][^;,()\n]*)")
_JUDGES = r"(?:\w+=)?[a-z_]+:[\w./-]+(?:,\w+=[a-z_]+:[\w./-]+)*|lexical|hashing"
_FLAG = re.compile(rf"(--[a-z][a-z-]*)(?:[ =]({_JUDGES})\b|[ =](\w+=[\w.\[\]]+))?(?=(:)?)")
_LINE = re.compile(r"(?m)(?:(?<=^  )|(?<= that of ))line ([\d,]+)")


class SamplesError(Exception):
    """What was given as samples cannot be read as such; says which of them, and what was expected."""


class CallWords:
    """Translates messages about a run over what was laid in the file `source`; None where a dataset was named."""

    def __init__(self, source: str | None) -> None:
        self._source = source

    def translate(self, text: str) -> str:
        """A message in the words of the call."""
        parts = _COMMAND.split(text)
        parts[::2] = [_FLAG.sub(_name_argument, part) for part in parts[::2]]
        text = "".join(parts)
        if self._source is None:
            return text
        text = text.replace(self._source, SAMPLES).replace("the Polars frame", SAMPLES)
        return text if self._source.endswith(".parquet") else _LINE.sub(_name_place, text)


def _name_argument(found: "re.Match[str]") -> str:
    flag, value, pair, colon = found.groups()
    if flag not in _ARGUMENTS:
        return found[0]
    name = _ARGUMENTS[flag]
    if pair:
        ours, _, theirs = pair.partition("=")
        return f'{name}={{"{ours}": "{theirs}"}}'
    if value:
        return f'{name}="{value}"'
    return name if colon else f"{name}="


def _name_place(found: "re.Match[str]") -> str:
    return f"{SAMPLES}[{int(found[1].replace(',', '')) - 1}]"


def explain_unknown(names: Iterable[str]) -> str | None:
    """What to say of arguments that are no settings; None when all are."""
    unknown = [name for name in names if name not in RunSettings.model_fields]
    if not unknown:
        return None
    known = list(RunSettings.model_fields)
    close = [match for name in unknown for match in difflib.get_close_matches(name, known, n=1)]
    advice = f"did you mean {list_names(close)}?" if close else f"known: {', '.join(known)}"
    return f"evaluate() has no setting {list_names(unknown)}; {advice}"


def lay_samples(samples: Any, folder: Path) -> str | None:  # noqa: ANN401  # whatever a caller takes for samples
    """The file in `folder` that the samples were written to; None for the name of a dataset. Raises SamplesError."""
    if isinstance(samples, str | os.PathLike):
        return None
    if hasattr(samples, "__arrow_c_stream__"):
        import polars as pl  # noqa: PLC0415  # imported where it is needed

        path = folder / "samples.parquet"
        pl.DataFrame(samples).write_parquet(path)
        return str(path)
    if isinstance(samples, Mapping) or not isinstance(samples, Iterable):
        raise SamplesError(
            f"samples is a {type(samples).__name__}; give a list of dictionaries, a frame, or the name of a dataset: "
            'evaluate([{"question": "…", "answer": "…"}])'
        )
    path = folder / "samples.jsonl"
    rows = [_write_sample(place, sample) for place, sample in enumerate(samples)]
    if not rows:
        raise SamplesError("samples is empty; give at least one dictionary with a question")
    path.write_bytes(b"".join(rows))
    return str(path)


def _write_sample(place: int, sample: object) -> bytes:
    import orjson  # noqa: PLC0415

    if not isinstance(sample, Mapping):
        raise SamplesError(f"samples[{place}] is a {type(sample).__name__}; each is a dictionary with a question")
    try:
        return orjson.dumps(dict(sample), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
    except TypeError as error:
        raise SamplesError(
            f"samples[{place}]: {error}; what a sample holds are texts, numbers, lists and dictionaries of these"
        ) from None
