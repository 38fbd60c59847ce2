"""`evalhouse testset diff`: what became of the questions of a set."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_OPTION
from evalhouse.flows.display.output import print_json, print_line, print_section, write_count, write_value
from evalhouse.flows.testsets.review import SetVersion, read_version
from evalhouse.tasks.testsets.changes import FieldDifference, QuestionDifference, compare_sets
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.store import Warehouse

_SHORT = 120


@click.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--map", "maps", multiple=True, metavar="OURS=THEIRS", help="Read our column OURS from THEIRS, of files.")
@WAREHOUSE_OPTION
@JSON_OPTION
def diff(*, before: str, after: str, maps: tuple[str, ...], warehouse: Warehouse, as_json: bool) -> None:
    """Show what became of the questions of a test set from A to B: new, gone, changed, and re-pointed ones.

    A and B are files of questions, or hashes (or how they begin) of versions on record. Questions are the same by
    their ids.
    """
    from evalhouse.flows.preparing.settings import parse_pairs  # noqa: PLC0415  # imports all settings

    mapping = parse_pairs(maps, "--map")
    old, new = (read_version(warehouse, name, mapping) for name in (before, after))
    differences = compare_sets(old.questions, new.questions)
    n_same = len(new.questions) - sum(one.difference != "gone" for one in differences)
    if as_json:
        print_json(
            {
                "before": {"name": old.name, "set_hash": old.set_hash, "n_questions": len(old.questions)},
                "after": {"name": new.name, "set_hash": new.set_hash, "n_questions": len(new.questions)},
                "n_same": n_same,
                "counts": dict(Counter(one.difference for one in differences)),
                "questions": [asdict(one) for one in differences],
            }
        )
        return
    _print(old, new, differences, n_same)


def _print(old: SetVersion, new: SetVersion, differences: Sequence[QuestionDifference], n_same: int) -> None:
    counts = Counter(one.difference for one in differences)
    print_line(
        f"{_name(old)} → {_name(new)}: "
        + ", ".join([*(f"{n} {difference}" for difference, n in counts.items()), f"{n_same} the same"]),
        bold=True,
    )
    for difference in ("new", "gone"):
        rows = [[one.id, shorten(one.question, _SHORT)] for one in differences if one.difference == difference]
        print_section(difference.capitalize(), ["question", "text"], rows)
    for difference in ("changed", "repointed"):
        rows = [
            [one.id, field.field, _write(field)]
            for one in differences
            if one.difference == difference
            for field in one.fields
        ]
        print_section(difference.capitalize(), ["question", "field", "what changed"], rows)


def _name(version: SetVersion) -> str:
    of_hash = f" ({version.set_hash})" if version.set_hash and version.set_hash != version.name else ""
    return f"{version.name}{of_hash}, {write_count(len(version.questions), 'question')}"


def _write(field: FieldDifference) -> str:
    if field.words is not None:
        return field.words
    before, after = ("; ".join(_list_parts(field.field, value)) for value in (field.before, field.after))
    return f"{shorten(before or '–', 2 * _SHORT)} → {shorten(after or '–', 2 * _SHORT)}"


def _list_parts(field: str, value: Any) -> Iterator[str]:  # noqa: ANN401  # whatever a field holds
    """What a field holds, a text for each part of it."""
    for part in value if isinstance(value, list) else [value]:
        if field == "spans":
            yield f"{part['passage_id']}: {part['text']}"
        else:
            yield str(part["content"]) if field == "conversation" else write_value(part)
