"""The blocks of the README that are made from the code are as the code has them.

`EVALHOUSE_WRITE_GENERATED=1` writes them instead.
"""

import os
import re
from pathlib import Path
from typing import Any

import click
import duckdb
import pytest

from evalhouse.flows.cli import COMMANDS, evalhouse
from evalhouse.warehouse.engine.migrate import apply_migrations, load_migrations
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.metric_files import load_metrics

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
USERS_VIEWS = (
    "run_scores",
    "score_history",
    "score_lineage",
    "run_costs",
    "unscored",
    "sample_history",
    "sample_changes",
    "statement_verdicts",
    "fact_lists",
    "vote_flips",
    "sample_causes",
    "run_causes",
)


def make_metrics_block() -> str:
    """A row per metric: what it is, what it needs."""
    lines = ["| metric | what it is | rests on |", "| --- | --- | --- |"]
    for metric in load_metrics().values():
        what = metric.description.removeprefix("One row per sample of the run: ").replace("|", "\\|")
        needs = [*metric.needs, *(f"{step}, or reference ids" for step in metric.optional_needs)]
        parameters = "".join(f"; `{name}` = {value:g}" for name, value in metric.parameters.items())
        lines.append(f"| `{metric.name}` | {what[0].upper()}{what[1:]} | {', '.join(needs)}{parameters} |")
    return "\n".join(lines)


def make_tables_block() -> str:
    """A row per table and users' view, with its columns."""
    connection = duckdb.connect()
    apply_migrations(connection, parse_location("unused.duckdb"), load_migrations())
    columns = "select column_name from duckdb_columns() where table_name = ? and internal = false order by column_index"
    tables = [name for (name,) in connection.execute("select table_name from duckdb_tables() order by 1").fetchall()]
    comments = dict(connection.execute("select view_name, comment from duckdb_views() where not internal").fetchall())
    lines = ["| table | columns |", "| --- | --- |"]
    for table in tables:
        names = [f"`{name}`" for (name,) in connection.execute(columns, [table]).fetchall()]
        lines.append(f"| `{table}` | {', '.join(names)} |")
    lines += ["", "| view | one row is | columns |", "| --- | --- | --- |"]
    for view in USERS_VIEWS:
        names = [f"`{name}`" for (name,) in connection.execute(columns, [view]).fetchall()]
        lines.append(f"| `{view}` | {comments[view]} | {', '.join(names)} |")
    return "\n".join(lines)


def make_causes_block() -> str:
    """The rules of `diagnose` in their order, and its thresholds."""
    connection = duckdb.connect()
    apply_migrations(connection, parse_location("unused.duckdb"), load_migrations())
    lines = ["| | cause | rule | holds when |", "| --- | --- | --- | --- |"]
    rules = connection.execute(
        "select precedence, cause, rule, meaning from cause_rules order by precedence"
    ).fetchall()
    lines += [f"| {precedence} | `{cause}` | `{rule}` | {meaning} |" for precedence, cause, rule, meaning in rules]
    lines += ["", "| threshold | value | meaning |", "| --- | --- | --- |"]
    thresholds = connection.execute("select threshold, value, meaning from cause_thresholds").fetchall()
    return "\n".join([*lines, *(f"| `{name}` | {value:g} | {meaning} |" for name, value, meaning in thresholds)])


def make_help_block() -> str:
    """What `evalhouse --help` and `evalhouse run --help` print."""
    widths: dict[str, Any] = {"terminal_width": 110, "max_content_width": 110}
    context = click.Context(evalhouse, info_name="evalhouse", **widths, **evalhouse.context_settings)
    command = evalhouse.get_command(context, "run")
    assert command is not None
    of_run = click.Context(command, info_name="run", parent=context, **widths)
    return f"```\n{evalhouse.get_help(context)}\n```\n\n```\n{command.get_help(of_run)}\n```"


BLOCKS = {
    "metrics": make_metrics_block,
    "tables": make_tables_block,
    "causes": make_causes_block,
    "help": make_help_block,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_generated_block_is_what_the_code_says(name: str) -> None:
    made = f"<!-- {name} -->\n{BLOCKS[name]()}\n<!-- end -->"
    pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
    text = README.read_text(encoding="utf-8")
    if os.environ.get("EVALHOUSE_WRITE_GENERATED"):
        README.write_text(pattern.sub(lambda _: made, text), encoding="utf-8")
        return
    assert pattern.findall(text) == [made]


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert [command.rpartition(" && ")[2] for command in commands] == [
        ".venv/bin/evalhouse run sample",
        ".venv/bin/pytest",
    ]
    assert "grep -m 1 '^python3 -m venv .* \\.venv/bin/pytest$' README.md" in (ROOT / ".ci/run").read_text()


def test_every_command_of_the_table_can_be_called() -> None:
    context = click.Context(evalhouse)
    for name in COMMANDS:
        command = evalhouse.get_command(context, name)
        assert command is not None
        assert command.name == name
