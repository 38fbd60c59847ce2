"""`evalhouse init` and `evalhouse doctor`: write a first suite; show what is configured and what is wrong."""

import asyncio
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Final, cast

import click

from evalhouse.flows.commands.options import JSON_OPTION, WAREHOUSE_URL_OPTION
from evalhouse.flows.errors import BAD_INPUT, INCOMPLETE, SettingsError
from evalhouse.flows.preparing.request import (
    SUITE_ORIGIN,
    CheckResult,
    find_unknown_variables,
    find_variable,
    make_finding,
    resolve_settings,
    to_plain_setting,
    write_part,
)
from evalhouse.flows.preparing.suites import load_suite
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_section,
    print_table,
    write_count,
    write_value,
)
from evalhouse.flows.results.run_facts import print_responses, read_response_counts
from evalhouse.flows.run.outcome import show_run
from evalhouse.flows.server.api import KEYLESS, check_prefect_server, is_keyless
from evalhouse.flows.server.environment import (
    PROXIES,
    configure_prefect_environment,
    find_environment_problems,
    load_user_settings,
    tidy_variables,
)
from evalhouse.tasks.judge.protocol import list_judges
from evalhouse.tasks.models.providers import list_variables
from evalhouse.tasks.settings.run import RunSettings, locate_file
from evalhouse.tasks.settings.suite import Notify, SuiteGate, TargetSettings
from evalhouse.warehouse.messages import hide_credentials, shorten
from evalhouse.warehouse.metric_files import load_metrics, plan_run
from evalhouse.warehouse.store import Warehouse

_PACKAGES = (
    "evalhouse", "prefect", "duckdb", "polars", "langchain-core", "langchain-openai", "openai", "fastapi", "sqlalchemy",
)  # fmt: skip
_SECRETS = ("OPENAI_API_KEY", "OPENAI_EMBEDDINGS_API_KEY", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
_ADDRESSES = (
    "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_EMBEDDINGS_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID",
    "PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy",
    "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_REACH_S = 10.0


@click.command()
@click.argument("suite", metavar="[SUITE.toml]", required=False)
@click.option("--judge", metavar="J", help="The judge to look at; default: the one a run would use.")
@click.option("--embeddings", metavar="E", help="The embeddings to look at; default: those a run would use.")
@click.option(
    "--try",
    "tries",
    is_flag=True,
    help="Find out with four small requests what the judge's endpoint supports (schemas, JSON mode, seeds, "
    "log-probabilities, requests at once, context window), and what a run will therefore do. The price is shown first.",
)
@click.option("--dry-run", is_flag=True, help="With --try: print what would be asked and its cost, and ask nothing.")
@click.option("--all", "shows_all", is_flag=True, help="Also print the settings with defaults, and the versions.")
@WAREHOUSE_URL_OPTION
@JSON_OPTION
def doctor(
    *,
    suite: str | None,
    judge: str | None,
    embeddings: str | None,
    warehouse: str | None,
    tries: bool,
    dry_run: bool,
    shows_all: bool,
    as_json: bool,
) -> int:
    """Show what is wrong, what is reachable, and what is configured and where each value came from.

    With SUITE.toml these are the settings of its next run, and its dataset, target, schedule, gate and webhook are
    checked too, without asking the application or notifying anyone. Asks the judge's endpoint for its list
    of models, which costs nothing. With --try the endpoint is also tried. Exit status 2 when something is wrong.
    """
    if dry_run and not tries:
        raise SettingsError("--dry-run belongs to --try; everything else that doctor does costs nothing")
    for notice in tidy_variables():
        print_notice(f"note: {notice}")
    chosen = load_suite(suite) if suite else None
    resolved = resolve_settings({"judge": judge, "embeddings": embeddings, "warehouse": warehouse}, suite=chosen)
    settings = resolved.settings
    names = dict(settings)
    values = names | {"variants": tuple(settings.variants)}
    findings = [make_finding(what.format_map(names), partial(check, settings)) for what, check in _CHECKS.items()]
    if chosen is not None:
        from evalhouse.flows.serving.suite_checks import check_suite  # noqa: PLC0415  # imports what asks

        findings += check_suite(chosen, settings)
    status = BAD_INPUT if any(finding.verdict == "wrong" for finding in findings) else 0
    # Settings that a variable may set, or a suite has set.
    shown = [
        name for name, origin in resolved.origins.items() if find_variable(name) or origin.startswith(SUITE_ORIGIN)
    ]
    # The variables of other programs and of the judges' providers, without any secret.
    secrets, others = list_variables(list_judges(settings.judge))
    environment = {name: "set" if os.environ.get(name) else "not set" for name in (*_SECRETS, *secrets)}
    environment |= {name: hide_credentials(os.environ.get(name) or "not set") for name in (*_ADDRESSES, *others)}
    versions = {"python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    document = {
        "settings": {
            name: {
                "value": to_plain_setting(values[name]),
                "from": resolved.origins[name],
                "variable": find_variable(name),
            }
            for name in shown
        },
        "environment": environment,
        "findings": [asdict(finding) for finding in findings],
        "versions": versions,
    }
    if not as_json:
        order = ("wrong", "note", "ok")
        findings.sort(key=lambda finding: order.index(finding.verdict))
        rows = [[finding.what, finding.verdict, finding.detail] for finding in findings]
        print_table(make_table(["looked at", "verdict", "detail"], rows, title="Findings"))
        rows = []
        for name in shown:
            value = values[name]
            if isinstance(value, TargetSettings | SuiteGate | Notify):
                text = write_part(value)
            else:
                text = f"{value:g}" if isinstance(value, float) else write_value(value) or "–"
            if shows_all or resolved.origins[name] != "default":
                rows.append([name, text, resolved.origins[name], find_variable(name) or ""])
        print_section("Settings", ["setting", "value", "from", "variable"], rows)
        are_set = [(name, value) for name, value in environment.items() if shows_all or value != "not set"]
        print_section("Environment", ["variable", "value"], are_set)
        print_line()
        if shows_all:
            print_line(", ".join(f"{name} {version}" for name, version in versions.items()))
        else:
            n_left = len(shown) - len(rows)
            print_line(f"{write_count(n_left, 'more setting')} with defaults, and versions: evalhouse doctor --all")
    if tries:
        # A judge with a problem is tried as well: its own answer explains the problem.
        from evalhouse.flows.trials import endpoint  # noqa: PLC0415  # imports all that asks

        plan = endpoint.plan_trials(settings)
        print_notice(f"{plan.describe()}. {'Nothing was asked.' if dry_run else ''}".rstrip())
        if dry_run:
            document["try"] = plan.estimate()
        else:
            tried = plan.run()
            document["try"] = endpoint.to_document(tried)
            if not as_json:
                endpoint.print_report(tried)
            if any(item.trial.problem for item in tried):
                status = BAD_INPUT
    if as_json:
        print_json(document)
    return status


def check_variables(_: RunSettings) -> CheckResult:
    unknown = find_unknown_variables()
    if not unknown:
        return "ok", "every EVALHOUSE_ variable is a setting"
    names = [f"{name} (did you mean {meant}?)" if meant else name for name, meant in unknown.items()]
    return "wrong" if any(unknown.values()) else "note", f"not a setting, and without effect: {', '.join(names)}"


def check_environment(_: RunSettings) -> CheckResult:
    if problems := find_environment_problems():
        return "wrong", "; ".join(problems)
    proxies = [name for name in os.environ if name.upper() in PROXIES and os.environ[name]]
    return "ok", f"proxies: {', '.join(proxies)}" if proxies else "no proxy is set"


def check_warehouse(settings: RunSettings) -> CheckResult:
    warehouse = Warehouse(settings.warehouse)
    path = warehouse.location.path
    if not path.exists():
        # Check that a warehouse can be made there: the nearest existing folder must be writable.
        folder = next(parent for parent in path.parents if parent.exists())
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            return "wrong", f"{folder} is not a folder that can be written to"
        return "note", f"{path} does not exist yet; the first run makes it"
    n_runs = warehouse.read("select count(*) as n from runs")["n"][0]
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return "note", f"{path}: {write_count(n_runs, 'run')}; it can be read but not written"
    return "ok", f"{path}: {write_count(n_runs, 'run')}"


def check_judge(settings: RunSettings) -> CheckResult:
    from evalhouse.tasks.models.make import check_judge_name, check_reachable, name_judge  # noqa: PLC0415

    names = list_judges(settings.judge)
    for name in names:
        check_judge_name(name)
    details = []
    for name in names:
        try:
            detail = asyncio.run(asyncio.wait_for(check_reachable(name_judge(settings, name)), _REACH_S))
        except TimeoutError:
            return "wrong", f"{name}: no answer within {_REACH_S:g} s"
        details.append(f"{name}: {detail}" if len(names) > 1 else detail)
    hint = "" if names == ["lexical"] else "; --try finds out what it supports"
    return "ok", "; ".join(details) + hint


def check_embeddings(settings: RunSettings) -> CheckResult:
    from evalhouse.tasks.models.make import check_embeddings_name  # noqa: PLC0415

    check_embeddings_name(settings.embeddings)
    offline = settings.embeddings == "hashing"
    return "ok", "built in: no model, no network, no key" if offline else "not checked whether they can be reached"


def check_prices(settings: RunSettings) -> CheckResult:
    from evalhouse.tasks.asking.usage import find_price, load_prices  # noqa: PLC0415

    prices, known, unknown = load_prices(settings.prices), [], []
    for model in dict.fromkeys(name.removeprefix("openai:") for name in list_judges(settings.judge)):
        price = find_price(prices, model)
        if price is None:
            unknown.append(model)
        else:
            known.append(f"{model}: ${price.input_usd:g} in, ${price.output_usd:g} out per million tokens")
    if unknown:
        return "note", "; ".join([f"no price is known for {', '.join(unknown)}; give a file with --prices", *known])
    return "ok", "; ".join(known)


def check_prompts(settings: RunSettings) -> CheckResult:
    from evalhouse.prompts import check_prompts, load_prompts  # noqa: PLC0415
    from evalhouse.tasks.datasets.read import settle_language  # noqa: PLC0415

    folder = Path(settings.prompts) if settings.prompts else None
    settings, notes = settle_language(settings)
    problems = check_prompts(folder, settings.language)
    if problems:
        return "wrong", "; ".join(map(str, problems))
    return "ok", "; ".join([*notes, ", ".join(load_prompts(settings.language, folder))])


def check_metrics(settings: RunSettings) -> CheckResult:
    metrics = load_metrics(Path(settings.metric_files) if settings.metric_files else None)
    plan = plan_run(settings.metrics, metrics, embeddings=settings.embeddings)
    if own := [metric for metric in metrics.values() if metric.is_own]:
        from evalhouse.warehouse.sandbox.query_process import try_metrics  # noqa: PLC0415  # few runs have one

        try_metrics(own, settings.metric_settings)
    return "ok", f"a run scores {len(plan.metrics)} of {len(metrics)}"


def check_prefect(_: RunSettings) -> CheckResult:
    if load_user_settings():
        configure_prefect_environment(None)
        importlib.import_module("prefect.settings").get_current_settings()  # which raises an error for a wrong one
    url = check_prefect_server()
    if url is None:
        return "ok", "no PREFECT_API_URL is set; each run starts a server for itself and ends it"
    answers = f"the server at {hide_credentials(url)} answers"
    return ("note", f"{answers}, and {KEYLESS}") if is_keyless(url) else ("ok", answers)


# The checks by name, with the settings in it in braces.
_CHECKS: dict[str, Callable[[RunSettings], CheckResult]] = {
    "variables": check_variables,
    "proxies and certificates": check_environment,
    "warehouse": check_warehouse,
    "judge {judge}": check_judge,
    "embeddings {embeddings}": check_embeddings,
    "prices": check_prices,
    "prompts in {language}": check_prompts,
    "metrics": check_metrics,
    "prefect": check_prefect,
}


SAMPLE: Final = "sample"
_LABEL: Final = "init"
_SHOWN: Final = 300
_EXAMPLE_URL: Final = "http://localhost:8000/ask"


@click.command()
@click.argument("suite", metavar="[SUITE.toml]", default="suite.toml", type=click.Path(path_type=Path))
@click.option("--url", metavar="URL", help="The address of your bot. Default: none, the dataset has the answers.")
@click.option("--answer", metavar="JSONPATH", default="$.answer", show_default=True, help="Where its answer is.")
@click.option("--contexts", metavar="JSONPATH", default="$.contexts", show_default=True, help="Where its contexts are.")
@click.option("--dataset", metavar="FILE", help=f"The questions. Default: `{SAMPLE}`, which ships with evalhouse.")
@click.option(
    "--judge",
    metavar="J",
    help="lexical, openai:MODEL, another PROVIDER:MODEL or module:factory. Default: lexical, which is free.",
)
def init(*, suite: Path, url: str | None, answer: str, contexts: str, dataset: str | None, judge: str | None) -> int:
    """Write SUITE.toml with comments, ask the bot its first question, judge the answer, and show the result.

    At a terminal it asks for values that no option gives; elsewhere it asks nothing. An existing file is not changed,
    unless it is what `init` wrote before.
    """
    if suite.exists() and not is_as_written(suite):
        raise SettingsError(f"{suite} already exists; name another file, or run it with `evalhouse run {suite}`")
    values = {
        "dataset": dataset or _ask("Dataset", SAMPLE),
        "url": _ask("Address of your bot (empty: the dataset has the answers)", "") if url is None else url,
        "judge": judge or _ask("Judge", "lexical"),
    }
    write_suite(suite, {**values, "answer": answer, "contexts": contexts})
    try:
        settings = resolve_settings({}, suite=load_suite(suite)).settings
        # The first question alone, in a run without the suite's name, which does not count as one of its nights.
        from evalhouse.flows.preparing.request import RunRequest  # noqa: PLC0415
        from evalhouse.flows.start import start_run  # noqa: PLC0415  # imports what runs

        alone = {"suite": None, "suite_hash": None, "limit": 1, "label": _LABEL}
        with show_run() as watch:
            outcome = start_run(RunRequest(settings=settings.model_copy(update=alone)), watch=watch)
    except Exception:  # after any error the suite has to be written again, with other options
        suite.unlink()
        raise
    print_line(f"wrote {suite}")
    warehouse = Warehouse(settings.warehouse)
    run = outcome.run
    texts = warehouse.fetch_rows("show/texts", run_id=run.run_id)
    for sample in texts:
        print_line()
        retrieved = cast("list[str] | None", sample["contexts"])
        shown = {
            "question": sample["question"],
            "answer": sample["answer"],
            "contexts": None if retrieved is None else f"{len(retrieved)} ({shorten(' | '.join(retrieved), _SHOWN)})",
            "ground truth": sample["ground_truth"],
        }
        for name, value in shown.items():
            print_line(f"{name}: {shorten(write_value(value), _SHOWN)}")
    print_responses(read_response_counts(warehouse, run))
    rows = warehouse.fetch_rows("runs/means", run_id=run.run_id, metrics=list(run.metrics))
    if outcome.status != "completed":
        print_notice(f"{outcome.problem or 'The question was not answered, or the answer not judged whole'}.")
        print_line(f"next: fix {suite}, then evalhouse run {quote(str(suite))} --limit 1")
        return INCOMPLETE
    scored = [[row["metric"], row["mean"], row["better"]] for row in rows if row["mean"] is not None]
    print_section("Scores of this answer", ["metric", "#score", "better"], scored)
    from evalhouse.flows.serving.suite_checks import check_suite  # noqa: PLC0415  # imports what asks

    if wrong := [finding for finding in check_suite(load_suite(suite), settings) if finding.verdict == "wrong"]:
        for finding in wrong:
            print_notice(f"A run of all questions would be refused, by {finding.what}: {finding.detail}")
        print_line(f"next: correct that, then evalhouse run {quote(str(suite))}")
        return INCOMPLETE
    print_line()
    print_line(f"next: evalhouse run {quote(str(suite))}   (all questions)")
    print_line(f"or:   evalhouse lineage {run.run_id} {quote(str(texts[0]['sample_id']))}   (why these scores)")
    print_line(f"or:   evalhouse serve {quote(str(suite))} --with-server   (every night, with [schedule] in the file)")
    return 0


def _ask(what: str, default: str) -> str:
    """Ask for a value at the terminal; return the default without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return default
    answer: str = click.prompt(what, default=default, show_default=bool(default))
    return answer.strip()


def write_suite(path: Path, values: dict[str, str]) -> None:
    """Write the commented file, with the dataset as seen from its folder."""
    dataset = values["dataset"]
    if dataset != SAMPLE and locate_file(dataset).exists():
        values["dataset"] = os.path.relpath(dataset, path.parent)
    path.write_text(_fill_in(path, values), encoding="utf-8")


def is_as_written(path: Path) -> bool:
    """Return True if a file is what `init` wrote, so that it can be written again with other options."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        target = found.get("target", {})
        values = {"dataset": found["dataset"], "judge": found["judge"], "url": target.get("url", "")}
        values |= {name: target.get(name, f"$.{name}") for name in ("answer", "contexts")}
        return path.read_text(encoding="utf-8") == _fill_in(path, values)
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _fill_in(path: Path, values: Mapping[str, str]) -> str:
    """Return the commented file with these values."""
    text = (files("evalhouse.flows.preparing") / "new_suite.toml").read_text(encoding="utf-8")
    for name, value in {**values, "url": values["url"] or _EXAMPLE_URL}.items():
        text = text.replace(f"@{name}@", json.dumps(value, ensure_ascii=False))
    return text.replace("@off@", "" if values["url"] else "# ").replace("@file@", quote(str(path)))
