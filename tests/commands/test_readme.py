"""README and guides say what is there: blocks made from the code, commands, links, and the first run's output.

`EVALHOUSE_WRITE_GENERATED=1` writes the blocks instead.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import click
import duckdb
import pytest
from cli_process import Place

from evalhouse.flows.cli import evalhouse
from evalhouse.flows.ui.sql import read_recipes
from evalhouse.warehouse.engine.migrate import apply_migrations, load_migrations
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.metric_files import load_metrics

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDES = ROOT / "flows" / "guides"
PAGES = [README, *sorted(GUIDES.glob("*.md"))]
USERS_VIEWS = (
    "run_scores", "score_history", "score_lineage", "run_costs", "run_latencies", "unscored", "sample_history",
    "sample_changes", "statement_verdicts", "fact_lists", "vote_flips", "noise_components", "sample_causes",
    "run_causes", "earlier_support", "retrieved_contexts", "traces", "sample_preferences",
)  # fmt: skip


def make_metrics_block() -> str:
    """A row per metric: what it means, how it is counted, what it needs."""
    lines = ["| metric | what it means | how it is counted | better | rests on |", "| --- | --- | --- | --- | --- |"]
    for metric in load_metrics().values():
        what = metric.description.removeprefix("One row per sample of the run: ").replace("|", "\\|")
        needs = [*metric.needs, *("reference ids" for _ in metric.optional_needs)]
        parameters = "".join(f"; `{name}` = {value:g}" for name, value in metric.parameters.items())
        lines.append(
            f"| `{metric.name}` | {metric.meaning} | {what[0].upper()}{what[1:]} | {metric.better} "
            f"| {', '.join(needs)}{parameters} |"
        )
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
    """Return the output of `evalhouse --help` and `evalhouse run --help`."""
    widths: dict[str, Any] = {"terminal_width": 110, "max_content_width": 110}
    context = click.Context(evalhouse, info_name="evalhouse", **widths, **evalhouse.context_settings)
    command = evalhouse.get_command(context, "run")
    assert command is not None
    of_run = click.Context(command, info_name="run", parent=context, **widths)
    return f"```\n{evalhouse.get_help(context)}\n```\n\n```\n{command.get_help(of_run)}\n```"


def make_cookbook_block() -> str:
    """A row per query of the cookbook, with its columns."""
    rows = (f"| {recipe.title} | {', '.join(recipe.columns)} |" for recipe in read_recipes())
    return "\n".join(["| query | columns |", "| --- | --- |", *rows])


BLOCKS = {
    "metrics": ("metrics.md", make_metrics_block),
    "tables": ("tables.md", make_tables_block),
    "cookbook": ("tables.md", make_cookbook_block),
    "causes": ("diagnose.md", make_causes_block),
    "help": ("commands.md", make_help_block),
}
MAX_GUIDES, MAX_LINES = 25, 150


def test_guides_are_few_and_short() -> None:
    """Lines that the code writes, and files that a test puts in place, do not count."""
    guides = sorted(GUIDES.glob("*.md"))
    assert len(guides) <= MAX_GUIDES
    for guide in guides:
        text = re.sub(r"<!-- \w+ -->\n.*?<!-- end -->", "", guide.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"(New file `[^`]+`:)\n\n```\w+\n.*?```", r"\1", text, flags=re.DOTALL)
        assert len(text.splitlines()) <= MAX_LINES, guide.name


@pytest.mark.parametrize("name", BLOCKS)
def test_a_generated_block_is_what_the_code_says(name: str) -> None:
    page, make = BLOCKS[name]
    block = f"<!-- {name} -->\n{make()}\n<!-- end -->"
    pattern = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
    text = (GUIDES / page).read_text(encoding="utf-8")
    if os.environ.get("EVALHOUSE_WRITE_GENERATED"):
        (GUIDES / page).write_text(pattern.sub(lambda _: block, text), encoding="utf-8")
        return
    assert pattern.findall(text) == [block]


def test_a_newcomer_reads_the_readme_in_five_minutes() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


def test_the_first_run_prints_what_the_readme_shows(tmp_path: Path, prefect_home: Path) -> None:
    match = re.search(
        r"<!-- sample-run -->\n```\n(.*?)```\n<!-- end -->", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert match
    finished = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)}).call("run", "sample")
    without_ids = [re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN", text).strip() for text in (match[1], finished.stdout)]
    assert without_ids[0] == without_ids[1]


def list_command_lines(page: Path) -> list[str]:
    """The calls of `evalhouse` in a page's fenced blocks, each on one line and without what a shell adds."""
    blocks = re.findall(r"```(?:sh|console|yaml)?\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    calls = (re.search(r"(?:^|^\$ |- run: |&& \.venv/bin/)(evalhouse .*)", line) for line in lines)
    return [call[1] for call in calls if call]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_can_be_given(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in list_command_lines(page):
        # A query may go over several lines.
        query = re.search(re.escape(line) + r"[^\"]*\"[^\n]*", text) if line.count('"') % 2 else None
        words = shlex.split(query[0] if query else line, comments=True)[1:]
        command: click.Command = evalhouse
        context = click.Context(evalhouse)
        while isinstance(command, click.Group):
            name, found, words = command.resolve_command(context, words)
            assert found is not None, line
            command, context = found, click.Context(found, info_name=name, parent=context)
        options, _, _ = command.make_parser(context).parse_args([word for word in words if word not in ("|", "…")])
        assert options is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_index_and_the_readme_name_every_guide() -> None:
    for page in (GUIDES / "index.md", README):
        text = page.read_text(encoding="utf-8")
        assert [
            guide.name for guide in PAGES if guide.name not in ("README.md", "index.md") and guide.name not in text
        ] == []


def list_json_commands(group: click.Group, prefix: str = "") -> list[str]:
    context = click.Context(group)
    commands = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    names: list[str] = []
    for name, command in commands:
        if isinstance(command, click.Group):
            names += list_json_commands(command, f"{name} ")
        elif command is not None and any(option.name == "as_json" for option in command.params):
            names.append(prefix + name)
    return names


def test_the_json_of_every_command_is_described() -> None:
    rows = re.findall(r"^\| ([a-z, -]+?) \| .*`", (GUIDES / "commands.md").read_text(encoding="utf-8"), re.MULTILINE)
    described = {
        f"{row.rpartition(' ')[0].split(',')[0].rpartition(' ')[0]} {part.strip()}".strip()
        for row in rows
        for part in row.split(",")
    }
    described |= {part.strip() for row in rows for part in row.split(",")}
    assert [name for name in list_json_commands(evalhouse) if name not in described] == []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert [command.rpartition(" && ")[2] for command in commands] == [
        ".venv/bin/evalhouse run sample",
        ".venv/bin/pytest",
    ]
    assert "grep -m 1 '^python3 -m venv .* \\.venv/bin/pytest$' README.md" in (ROOT / ".ci/run").read_text()
