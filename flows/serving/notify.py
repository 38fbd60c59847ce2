"""The end of a suite's run in words: for the suite's webhook one POST of JSON, for Prefect a page.

A notification that cannot be delivered is reported, is stored with its run, and changes nothing else. No message shows
the address, since anyone who has it can post.
"""

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from evalhouse.flows.preparing.request import Trigger
from evalhouse.flows.results.baseline import find_previous, list_means, read_moves, write_moves
from evalhouse.flows.results.comparison import describe_finding, name_check, name_limit, name_metric
from evalhouse.flows.results.gate import describe_verdict
from evalhouse.flows.results.output import (
    escape_markdown,
    print_notice,
    write_interval,
    write_json,
    write_number,
    write_value,
)
from evalhouse.flows.results.run_facts import describe_testset, sort_first
from evalhouse.flows.run.outcome import NightOutcome, list_shortfalls, write_next
from evalhouse.flows.server.api import BadAddress, NoAnswer, send_request
from evalhouse.flows.server.environment import prefect_home
from evalhouse.flows.server.local import SERVE_LOG
from evalhouse.tasks.settings.environment import NamedValueError, read_named
from evalhouse.tasks.settings.suite import NAMED, Ending, Notify, RefreshedTestset, is_web_address
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import clean_text, shorten
from evalhouse.warehouse.rows.runs import RunRow, update_run
from evalhouse.warehouse.rows.samples import fetch_shared_with
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.flows.results.headline import Headline

Message = dict[str, Any]

_KEYS = (
    "suite", "run_id", "status", "problem", "gate", "trigger", "kb_name", "kb_version", "label", "href", "n_samples",
    "testset", "previous_run_id", "headline", "variants", "metrics", "next",
)  # fmt: skip
_GATE_KEYS = ("outcome", "undecided", "counts", "baseline", "checks", "few_scored")
_TIMEOUT_S = 10.0
# Seconds before the second and the third try.
_PAUSES_S = (1.0, 4.0)
_MAX_METRICS = 6
_MAX_FAILURES = 3
_MAX_PROBLEM = 300
_BUSY = 429
_UNDELIVERED: Final = "the notification was not delivered"


class NotifyError(Exception):
    """A notification was not delivered; the text gives the reason, and not the address."""


def notify_of_end(
    notify: Notify,
    warehouse: Warehouse,
    run: RunRow,
    problem: str | None,
    gate: Mapping[str, Any] | None,
    *,
    night: NightOutcome | None = None,
) -> None:
    """Post how a run ended, or of a suite with variants its `night`, if the suite asks to be notified of such an end.

    `metrics` has by metric, in the run's order, the mean, the number of samples behind it, and the change since the
    previous run over the samples that both runs scored, with their number.
    """
    # A run that was interrupted has no ending here: the person who did it knows.
    statuses = {run.status, *(ended.status for ended in night.runs)} if night else {run.status}
    endings: set[Ending] = {ending for ending in ("completed", "incomplete", "failed") if ending in statuses}
    if night is not None and night.problem:
        endings.add("failed")
    if gate is not None and gate["outcome"] == "failed":
        endings.add("gate_failed")
    if not endings & set(notify.on):
        return
    previous, means = find_previous(warehouse, run), list_means(warehouse, run)
    headline = _describe(warehouse, run, previous, means)
    shared = {}
    if previous is not None:
        metrics = [str(row["metric"]) for row in means]
        shared = fetch_shared_with(warehouse, run.run_id, previous.run_id, metrics)
    command = write_next(run, with_reason=False)
    if run.status == "completed":
        command = f"evalhouse show {run.run_id}"
        if previous is not None and any(row["n_shared"] for row in shared.values()):
            command = f"evalhouse compare {previous.run_id} {run.run_id}"
    message = {name: getattr(run, name, None) for name in _KEYS} | {
        "headline": headline and asdict(headline),
        "variants": night
        and {"lines": [*night.lines], "shortfalls": list_shortfalls(night), "runs": night.list_runs()},
        "testset": run.config.get("refreshed"),
        "problem": problem,
        "gate": None if gate is None else {name: gate.get(name) for name in _GATE_KEYS},
        "previous_run_id": previous.run_id if previous else None,
        "metrics": {
            row["metric"]: {
                **{name: row[name] for name in ("mean", "n_scored", "n_unscored")},
                **{name: shared.get(row["metric"], {}).get(name) for name in ("change", "n_shared")},
            }
            for row in means
        },
        "next": command,
    }
    undelivered = _deliver(notify, message)
    if undelivered is not None:
        _report_undelivered(run.suite, undelivered)
    _store_undelivered(warehouse, run, undelivered)


def _describe(
    warehouse: Warehouse, run: RunRow, previous: RunRow | None, means: Sequence[Mapping[str, Any]]
) -> "Headline | None":
    """Describe what changed since the run before, or without one what is frequent; None for a run that broke off."""
    if run.status not in ("completed", "incomplete"):
        return None
    # The statistics, which a run without notifications does without.
    from evalhouse.flows.results.headline import describe_result, lay_against  # noqa: PLC0415
    from evalhouse.warehouse.rows.run_pairs import RunPair  # noqa: PLC0415

    against = lay_against(RunPair(warehouse, previous, run), "the run before") if previous else None
    counted = warehouse.fetch_rows("diagnosis/causes", run_id=run.run_id)
    return describe_result(counted, means, against)


def notify_of_break(notify: Notify, suite: str, trigger: Trigger, problem: str) -> None:
    """Post that a run broke off before it was stored."""
    if "failed" not in notify.on:
        return
    of_run = {"suite": suite, "status": "failed", "problem": problem, "trigger": trigger.kind}
    of_trigger = {"kb_name": trigger.kb_name, "kb_version": trigger.kb_version}
    undelivered = _deliver(notify, dict.fromkeys(_KEYS) | of_run | of_trigger | {"metrics": {}})
    if undelivered is not None:
        _report_undelivered(suite, undelivered)


def notify_of_crash(notify: Notify, suite: str, warehouse: Warehouse, run: RunRow | None, problem: str) -> str:
    """Post that the process of a run was stopped or killed, and what happens to the run; None was not stored yet.

    Return `problem` for the log, with why it was not delivered.
    """
    if "failed" not in notify.on:
        return problem
    names = ("run_id", "trigger", "kb_name", "kb_version", "label", "href")
    of_run = {name: getattr(run, name, None) for name in names}
    crash = {"suite": suite, "status": "crashed", "problem": problem, "metrics": {}}
    undelivered = _deliver(notify, dict.fromkeys(_KEYS) | of_run | crash)
    if run is not None:
        _store_undelivered(warehouse, run, undelivered)
    if undelivered is None:
        return problem
    if _is_in_flow():  # `evalhouse serve` itself logs what is returned
        _report_undelivered(suite, undelivered)
    return f"{problem}; {_UNDELIVERED}: {undelivered}"


def _store_undelivered(warehouse: Warehouse, run: RunRow, undelivered: str | None) -> None:
    if undelivered != run.notify_problem:
        with contextlib.suppress(WarehouseError):  # another program keeps it open; the log has it
            update_run(warehouse, run.run_id, notify_problem=undelivered)


def find_webhook(notify: Notify) -> str:
    """Return the address with its variables filled in; raises NotifyError."""
    try:
        values = {name: read_named(name) for name in sorted(NAMED.findall(notify.webhook))}
    except NamedValueError as error:
        raise NotifyError(str(error)) from None
    if missing := [name for name, value in values.items() if value is None]:
        raise NotifyError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set")
    address = NAMED.sub(lambda match: str(values[match[1]]), notify.webhook).strip()
    if not is_web_address(address):
        raise NotifyError("the webhook is not an address that begins with https:// or http://")
    return address


def _deliver(notify: Notify, message: Message) -> str | None:
    """Post a message in the format that the program at the webhook reads, in three tries; return why that failed."""
    text = write_message(message)
    match notify.format:
        case "slack":
            # Slack reads <…> as links and mentions.
            escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            body = json.dumps({"text": escaped})
        case "dingtalk":
            body = json.dumps({"msgtype": "text", "text": {"content": text}})
        case "feishu":
            body = json.dumps({"msg_type": "text", "content": {"text": text}})
        case "json":
            body = write_json({**message, "text": text}, indent=False)
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "evalhouse"}
    try:
        address = find_webhook(notify)
        for pause_s in (0.0, *_PAUSES_S):
            time.sleep(pause_s)
            try:
                # A redirect would be followed with a GET, and look like a delivery.
                answer = send_request(
                    "POST",
                    address,
                    timeout_s=_TIMEOUT_S,
                    headers=headers,
                    body=body.encode(),
                    max_bytes=0,
                    follow_redirects=False,
                )
                if answer.is_good:
                    return None
                problem = f"status {answer.status}"
                if answer.status != _BUSY and answer.status < 500:
                    raise NotifyError(f"the webhook refused it with {problem}")
            except BadAddress as error:
                raise NotifyError(f"the webhook cannot be posted to: {error}") from None
            except NoAnswer as error:
                problem = str(error)
        raise NotifyError(f"the webhook did not take it in {len(_PAUSES_S) + 1} tries: {problem}")
    except NotifyError as error:
        return str(error)


def _is_in_flow() -> bool:
    context = sys.modules.get("prefect.context")
    return context is not None and context.FlowRunContext.get() is not None


def _report_undelivered(suite: str | None, why: str) -> None:
    """Print a line; of a run in a flow it goes into Prefect's log too, and into that of `evalhouse serve`."""
    line = f"{suite}: {_UNDELIVERED}: {why}"
    print_notice(f"{line}.")
    if not _is_in_flow():
        return
    from prefect.logging import get_run_logger  # noqa: PLC0415  # imported already

    get_run_logger().warning(line)
    path = prefect_home() / SERVE_LOG
    with contextlib.suppress(OSError):  # no `serve` has run on this machine, or its disk is full
        if path.exists():
            with path.open("a", encoding="utf-8") as log:
                log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} run: {line}\n")


def write_message(message: Mapping[str, Any]) -> str:
    """Return the whole message as lines that a person reads in a chat."""
    gate, metrics = message["gate"], message["metrics"]
    mark = "⚠️" if message["status"] == "incomplete" else "✅"
    variants = message["variants"] or {"lines": [], "shortfalls": []}
    if (
        message["status"] in ("failed", "crashed")
        or variants["shortfalls"]
        or (gate is not None and gate["outcome"] == "failed")
    ):
        mark = "❌"
    run = f" (run {message['run_id']})" if message["run_id"] else ""
    cause = "started by hand" if message["trigger"] == "manual" else "on schedule"
    if message["trigger"] == "event":
        version = f" to {message['kb_version']}" if message["kb_version"] else ""
        cause = f"because {message['kb_name']} was updated{version}"
    lines = [f"{message['suite']} {message['status']}{run}, {cause}"]
    if headline := message["headline"]:
        lines = [f"{headline['sentence']}.", *headline["further"][:1], *lines]
    lines = [*variants["lines"], *lines]
    lines[0] = f"{mark} {lines[0]}"
    lines += [shorten(line, _MAX_PROBLEM) for line in variants["shortfalls"]]
    failures = [] if gate is None else _pick_failures(gate)
    if gate is not None:
        lines += [describe_verdict(gate), *_write_failures(failures)]
        lines += [shorten(warning, _MAX_PROBLEM) for warning in gate.get("few_scored") or ()]
    if message["problem"]:
        lines.append(shorten(str(message["problem"]), _MAX_PROBLEM))
    if message["testset"]:
        lines.append(shorten(RefreshedTestset.model_validate(message["testset"]).describe(), _MAX_PROBLEM))
    # The main metrics, without the ones that a failed check names.
    failed = metrics.keys() & {check["metric"] for check in failures}
    named = [name for name in sort_first(list(metrics)) if metrics[name]["mean"] is not None and name not in failed]
    shown = []
    for name in named[:_MAX_METRICS]:
        change = metrics[name]["change"]
        shown.append(f"{name} {write_number(metrics[name]['mean'])}{'' if change is None else f' ({change:+.3f})'}")
    if shown:
        n_more = len(metrics) - len(failed) - len(shown)
        lines.append(", ".join(shown + ([f"and {n_more} more"] if n_more > 0 else [])))
    if message["href"]:
        lines.append(str(message["href"]))
    if message["next"]:
        lines.append(f"next: {message['next']}")
    return clean_text("\n".join(lines))


def _write_failures(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the first checks by which a gate failed, a line for each metric."""
    by_metric: dict[str, list[Mapping[str, Any]]] = {}
    for check in failures:
        by_metric.setdefault(check["metric"] or check["kind"], []).append(check)
    lines = []
    for first, *others in list(by_metric.values())[:_MAX_FAILURES]:
        line, slice_name = f"{name_check(first)}: {describe_finding(first)}", name_metric(first)
        for check in others:
            named = name_limit(check) if name_metric(check) == slice_name else name_check(check)
            line += f"; {named}: {describe_finding(check)}"
            slice_name = name_metric(check)
        lines.append(line)
    return lines


def _pick_failures(gate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the checks by which a gate failed, undecided ones included if these fail it."""
    bad = [] if gate["outcome"] != "failed" else ["failed"] + (["undecided"] if gate["undecided"] == "fail" else [])
    return sorted((check for check in gate["checks"] if check["outcome"] in bad), key=lambda check: check["outcome"])


def write_page(
    warehouse: Warehouse,
    run: RunRow,
    gate: Mapping[str, Any] | None,
    *,
    flow_run_url: str | None,
    night: NightOutcome | None = None,
) -> str:
    """Return the page as Markdown; text from outside (labels, versions, ids of documents) is escaped."""
    previous, means = find_previous(warehouse, run), list_means(warehouse, run)
    headline = _describe(warehouse, run, previous, means)
    lines = [
        f"# {escape_markdown(run.suite or 'run')}: {run.status}",
        "",
        *(f"**{escape_markdown(line)}**\n" for line in (night.lines if night else ())),
        *([f"**{escape_markdown(headline.sentence)}.**", ""] if headline else []),
        *(f"- {escape_markdown(line)}\n" for line in (list_shortfalls(night) if night else ())),
        f"Run `{run.run_id}`, {escape_markdown(describe_trigger(run))}.",
    ]
    if testset := describe_testset(run):
        lines += ["", f"Test set: {escape_markdown(testset)}"]
    if run.problem:
        lines += ["", f"**Problem:** {escape_markdown(run.problem)}"]
    if gate is not None:
        lines += ["", f"**{escape_markdown(describe_verdict(gate))}**", ""]
        lines += [f"- {escape_markdown(failure)}" for failure in _write_failures(_pick_failures(gate))]
    lines += ["", "| metric | mean | 95 % interval | scored | not scored |", "| --- | --- | --- | --- | --- |"]
    for row in means:
        mean, interval = write_value(row["mean"]), write_interval(row["ci_low"], row["ci_high"])
        lines.append(
            f"| {escape_markdown(row['metric'])} | {mean} | {interval} | {row['n_scored']} | {row['n_unscored']} |"
        )
    if run.status in ("completed", "incomplete") and (moves := read_moves(warehouse, run)) is not None:
        lines += ["", *write_moves(moves)]
    lines += ["", "Next:", "", "```", *_list_commands(run), "```"]
    if flow_run_url:
        lines += ["", f"[The evaluation itself, with its table of scores]({flow_run_url})"]
    return "\n".join(lines)


def describe_trigger(run: RunRow) -> str:
    """Return why a run started: `on schedule`, or which update of which knowledge base."""
    if run.trigger == "event":
        version = f" to version {run.kb_version}" if run.kb_version else ""
        n_changed = len(run.kb_changed or ())
        documents = f", {n_changed} changed document{'s' if n_changed != 1 else ''}" if n_changed else ""
        return f"because {run.kb_name} was updated{version}{documents}"
    return "on schedule" if run.trigger == "schedule" else "started by hand"


def describe_failures(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return the checks by which a gate failed in one line: the first ones, and how many more there are."""
    shown = [f"{name_check(check)}, {describe_finding(check)}" for check in checks[:_MAX_FAILURES]]
    return "; ".join(shown + ([f"and {len(checks) - len(shown)} more"] if len(checks) > len(shown) else []))


def describe_end(run: RunRow, gate: Mapping[str, Any] | None, silent: str | None = None) -> str:
    """Return a run's end in a sentence or two, with the checks by which its gate failed and the next command.

    `silent` names the metrics that scored nothing.
    """
    end = f"run {run.run_id} {run.status}" + (f", {silent}" if silent else "")
    if gate is not None:
        end += f", {describe_verdict(gate)}"
        failures = _pick_failures(gate)
        end += f": {describe_failures(failures)}" if failures else ""
    if run.problem:
        end += f": {' '.join(run.problem.split())}"
    command = _list_commands(run)[0]
    return end if command in end else f"{end}; next: {command}"


def _list_commands(run: RunRow) -> list[str]:
    show = f"evalhouse show {run.run_id}"
    return [show] if run.status == "completed" else [write_next(run, with_reason=False), show]
