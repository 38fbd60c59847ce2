"""Which evalhouse made a run: its version and a hash of its source, so that two runs of one version can be told apart
when somebody works on the code."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("flows", "prompts", "tasks", "warehouse")
_SUFFIXES = (".py", ".sql", ".yaml")


@cache
def find_code_version() -> str:
    """For example `0.1.0+3f2a9c1b7e04`: the hash is over all Python, SQL and prompt files of the installation."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*") if path.suffix in _SUFFIXES):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return f"{version('evalhouse')}+{digest.hexdigest()[:12]}"
