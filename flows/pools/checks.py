"""Spreading a run over workers: the options that ask for it, and whether it can be done as they ask. Both are needed
before anything is begun, so nothing here imports Prefect."""

from collections.abc import Callable
from typing import Any, TypeVar

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server.environment import API_URL, find_api_url
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.location import parse_location

_Command = TypeVar("_Command", bound=Callable[..., Any])


def is_spread(settings: RunSettings) -> bool:
    """Whether others than this process judge the samples."""
    return settings.pool is not None or settings.task_runner is not None


def check_pool(settings: RunSettings) -> None:
    """Refuse what cannot be spread over workers; raises SettingsError with every problem."""
    if not is_spread(settings):
        return
    flag = "--pool" if settings.pool is not None else "--task-runner"
    problems = []
    if settings.pool is not None and settings.task_runner is not None:
        problems.append("--pool and --task-runner name two ways to reach workers; give one of them")
    if settings.pool is not None and find_api_url() is None:
        problems.append(
            f"--pool needs a Prefect server that all workers reach: set {API_URL}, such as http://host:4200/api"
        )
    if parse_location(settings.warehouse).lake is None:
        problems.append(
            f"{flag} needs a warehouse that many can write to, and {settings.warehouse} is one file: give --warehouse "
            "ducklake:postgresql://user@host/db?data=s3://bucket/prefix (or a shared folder), or for workers on this "
            "machine alone ducklake:sqlite:////folder/catalog.sqlite?data=/folder/files"
        )
    if settings.budget_usd is not None:
        problems.append(
            f"--budget counts what one process spends, so it does not go with {flag}; see what a run will cost with "
            "--dry-run, and judge a part of it with --limit"
        )
    if problems:
        raise SettingsError("; ".join(problems))
