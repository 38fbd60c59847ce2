"""The SQL files of this folder: everything that is asked of the warehouse and is longer than a line or two."""

import re
from functools import cache
from importlib.resources import files

_OWNERS = re.compile(r"\$id_owners\(([^()]*)\)")


@cache
def read_query(name: str) -> str:
    """The text of `NAME.sql`; a name may have a folder, such as `runs/means`.

    `$id_owners(…)` in it is the expression of `ids/owners.sql`, the rule by which ids of documents and passages match,
    and `$id_matches` the query `stored/id_matches.sql`.
    """
    text = files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    if "$id_matches" in text:
        text = text.replace("$id_matches", read_query("stored/id_matches"))
    return _OWNERS.sub(lambda call: read_query("ids/owners").replace("$id", call[1]).strip(), text)
