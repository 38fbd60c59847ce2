"""`evalhouse doctor`: what is configured and from where, what is reachable, what is wrong."""

import asyncio
import importlib.metadata
import os
import platform
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

from flows.command_run import JSON_OPTION, WAREHOUSE_OPTION
from flows.output import make_console, make_table, print_json, write_value
from flows.settings import Resolved, resolve_settings
from tasks.judge_errors import JudgeError
from warehouse.errors import WarehouseError
from warehouse.store import Warehouse

_PACKAGES = ("evalhouse", "prefect", "duckdb", "polars", "langchain-core", "langchain-openai", "openai", "fastapi", "sqlalchemy")
_SECRETS = ("OPENAI_API_KEY",)
_ADDRESSES = ("OPENAI_BASE_URL", "PREFECT_API_URL", "PREFECT_HOME", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
_REACH_S = 10.0

Verdict = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    detail: str


@click.command()
@click.option("--judge", metavar="J", help="The judge to look at; default: the one a run would use.")
@WAREHOUSE_OPTION
@JSON_OPTION
def doctor(judge: str | None, warehouse: str | None, as_json: bool) -> int:
    """Say what is configured and where each value came from, what is reachable, and what is wrong.

    Asks the judge's endpoint for its list of models, which costs nothing. Exit status 2 when something is wrong.
    """
    resolved = resolve_settings({"judge": judge, "warehouse": warehouse})
    checks: list[Callable[[Resolved], Finding]] = [_check_warehouse, _check_judge, _check_prompts, _check_prefect]
    findings = [check(resolved) for check in checks]
    if as_json:
        print_json(
            {
                "settings": {
                    name: {"value": value, "from": resolved.origins[name]}
                    for name, value in resolved.settings.model_dump(mode="json").items()
                },
                "findings": [asdict(finding) for finding in findings],
                "versions": _read_versions(),
            }
        )
    else:
        _print(resolved, findings)
    return 2 if any(finding.verdict == "wrong" for finding in findings) else 0


def _print(resolved: Resolved, findings: list[Finding]) -> None:
    console = make_console()
    settings = resolved.settings.model_dump()
    rows = [[name, write_value(value) or "–", resolved.origins[name]] for name, value in settings.items()]
    console.print(make_table(["setting", "value", "from"], rows, title="Settings"))
    console.print()
    rows = [[name, "set" if os.environ.get(name) else "not set"] for name in _SECRETS]
    rows += [[name, os.environ.get(name) or "not set"] for name in _ADDRESSES]
    console.print(make_table(["variable", "value"], rows, title="Environment"))
    console.print()
    versions = [f"{name} {version}" for name, version in _read_versions().items()]
    console.print(", ".join(versions), markup=False)
    console.print()
    rows = [[finding.what, finding.verdict, finding.detail] for finding in findings]
    console.print(make_table(["looked at", "verdict", "detail"], rows, title="Findings"))


def _read_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        versions[name] = importlib.metadata.version(name)
    return versions


def _check_warehouse(resolved: Resolved) -> Finding:
    what = "warehouse"
    try:
        store = Warehouse(resolved.settings.warehouse)
        if not store.location.path.exists():
            folder = store.location.path.parent
            writable = folder.is_dir() and os.access(folder, os.W_OK)
            detail = f"{store.location.path} does not exist yet; the first run makes it"
            if not writable:
                return Finding(what=what, verdict="wrong", detail=f"{folder} is no folder that can be written to")
            return Finding(what=what, verdict="note", detail=detail)
        n_runs = store.read("select count(*) as n from runs")["n"][0]
    except WarehouseError as error:
        return Finding(what=what, verdict="wrong", detail=str(error))
    return Finding(what=what, verdict="ok", detail=f"{store.location.path}: {n_runs} runs")


def _check_judge(resolved: Resolved) -> Finding:
    from tasks.judge_makers import check_judge_name, check_reachable  # noqa: PLC0415

    name = resolved.settings.judge
    what = f"judge {name}"
    try:
        check_judge_name(name)
        detail = asyncio.run(asyncio.wait_for(check_reachable(resolved.settings), _REACH_S))
    except TimeoutError:
        return Finding(what=what, verdict="wrong", detail=f"no answer within {_REACH_S:g} s")
    except JudgeError as error:
        return Finding(what=what, verdict="wrong", detail=str(error))
    return Finding(what=what, verdict="ok", detail=detail)


def _check_prompts(resolved: Resolved) -> Finding:
    from prompts import check_prompts, load_prompts  # noqa: PLC0415

    settings = resolved.settings
    folder = Path(settings.prompts) if settings.prompts else None
    problems = check_prompts(folder, settings.language)
    what = f"prompts in {settings.language}"
    if problems:
        return Finding(what=what, verdict="wrong", detail="; ".join(map(str, problems)))
    return Finding(what=what, verdict="ok", detail=", ".join(load_prompts(settings.language, folder)))


def _check_prefect(resolved: Resolved) -> Finding:
    from flows.prefect_settings import find_api_url  # noqa: PLC0415

    url = find_api_url()
    if url is None:
        detail = "no PREFECT_API_URL is set; each run starts a server of its own and ends it"
        return Finding(what="prefect", verdict="ok", detail=detail)
    problem = _ask_health(url)
    if problem is None:
        return Finding(what="prefect", verdict="ok", detail=f"the server at {url} answers")
    return Finding(what="prefect", verdict="wrong", detail=f"the server at {url} does not answer: {problem}")


def _ask_health(url: str) -> str | None:
    """What is wrong with a Prefect server, or None."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=_REACH_S) as response:
            status: Any = response.status
    except (OSError, ValueError) as error:
        return str(error)
    return None if status == 200 else f"status {status}"
