"""The deployment of a served suite: registered as its file says, and with what operators have changed in Prefect.

A pause, a schedule that is off, moved or added, and a disabled automation belong to the operator, and stay so when the
suite is registered again. The file's own schedule is the one with the slug `file`. The deployment's description holds
the schedule of the file, so that the next registration knows which of the two has changed, and whose process serves it.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from evalhouse.flows.server.api import TAG, PrefectApi, PrefectApiError
from evalhouse.flows.server.environment import prefect_home
from evalhouse.flows.serving.flow_runs import SILENCE, ServedSuite, list_automations, name_trigger

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.deployments.runner import RunnerDeployment
    from prefect.events import DeploymentTriggerTypes, TriggerTypes
    from prefect.runner import Runner

    from evalhouse.flows.preparing.suites import Suite

_UNSERVED: Final = "No process serves it, so it is paused."
_DESCRIPTION: Final = re.compile(
    r"Suite .*, served by evalhouse on (?P<place>\S+ in .+)\. Its file has (?P<schedule>.*?)\.(?: |$)"
)
_OF_FILE: Final = "file"


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A suite's registered deployment: its active crons, each with its time zone, and what operators have changed."""

    deployment_id: str
    crons: Sequence[tuple[str, str]]
    changes: Sequence[str]


async def register(api: PrefectApi, runner: "Runner", suite: "Suite", flow: "Flow[..., Any]") -> Registered:
    """Register a suite with the server and with what starts its runs; raises PrefectApiError."""
    found = await asyncio.to_thread(_find_deployment, api, flow.name, suite.name)
    # The registration removes the deployment's automations and makes them again.
    before = {} if found is None else await asyncio.to_thread(list_automations, api, str(found["id"]))
    disabled = {name for name, is_enabled in before.items() if not is_enabled}
    deployment = _make_deployment(suite, flow, found, disabled)
    deployment_id = str(await runner.aadd_deployment(deployment))
    await asyncio.to_thread(_watch_heartbeats, api, suite.name, deployment_id, disabled)
    if found is not None:
        await asyncio.to_thread(_update_schedules, api, suite, found)
    return await asyncio.to_thread(_describe, api, suite, deployment_id, found, before)


def _describe(
    api: PrefectApi, suite: "Suite", deployment_id: str, found: Mapping[str, Any] | None, before: Collection[str]
) -> Registered:
    """Describe the deployment now that it is registered; `found` was there before, with the automations `before`."""
    now, automations = api.get(f"/deployments/{deployment_id}"), list_automations(api, deployment_id)
    changes = [f"the automation {name!r} is disabled" for name, is_enabled in automations.items() if not is_enabled]
    in_prefect = _write_schedules([row["schedule"] for row in now["schedules"]])
    of_file = _write_schedules(_list_schedules(suite))
    if in_prefect != of_file:
        changes += [f"the schedule is {in_prefect if now['schedules'] else 'deleted'}, not {of_file} as in the file"]
    off = [row["schedule"] for row in now["schedules"] if not row["active"]]
    if off:
        which = "" if len(off) == len(now["schedules"]) else f" {_write_schedules(off)}"
        changes += [f"the schedule{which} is switched off"]
    if now["paused"]:
        changes += ["the deployment is paused"]
    changes = [f"{change}, and that stays so" for change in changes]
    if found is not None:
        missing = sorted(automations.keys() - set(before))
        changes += [
            f"the automation {name!r} was missing and has been made; disable it to be without" for name in missing
        ]
        match, was_unserved = _DESCRIPTION.match(found["description"] or ""), _is_unserved(found)
        if match is not None and match["place"] != _find_place() and not was_unserved:
            changes += [f"it was served on {match['place']} before; stop that `evalhouse serve`, if it runs"]
    active = [row["schedule"] for row in now["schedules"] if row["active"] and not now["paused"]]
    crons = [(row["cron"], row.get("timezone") or "UTC") for row in active if "cron" in row]
    return Registered(deployment_id=deployment_id, crons=crons, changes=changes)


def _find_deployment(api: PrefectApi, flow_name: str, name: str) -> Mapping[str, Any] | None:
    """Return the deployment in Prefect; None for a suite that was never served."""
    try:
        found: Mapping[str, Any] = api.get(f"/deployments/name/{flow_name}/{name}")
    except PrefectApiError as error:
        if error.status != 404:
            raise
        return None
    return found


def _update_schedules(api: PrefectApi, suite: "Suite", found: Mapping[str, Any]) -> None:
    """Set the file's schedule in Prefect if the file has changed; one that an operator has switched off stays so.

    Schedules that an operator has added stay. A description that a person has changed does not say what the file had:
    then no schedule is changed.
    """
    match = _DESCRIPTION.match(found["description"] or "")
    of_file = _list_schedules(suite)
    if match is None or match["schedule"] == _write_schedules(of_file):
        return
    path = f"/deployments/{found['id']}/schedules"
    rows = [row for row in found["schedules"] if row["slug"] == _OF_FILE]
    for row in rows:
        api.delete(f"{path}/{row['id']}")
    if of_file:
        is_active = all(row["active"] for row in rows)
        api.post(path, [{"schedule": schedule, "active": is_active, "slug": _OF_FILE} for schedule in of_file])


def _list_schedules(suite: "Suite") -> list[dict[str, Any]]:
    """List the schedule of a suite's file as Prefect has it; none without one."""
    schedule = suite.schedule
    return [] if schedule is None else [{"cron": schedule.cron, "timezone": schedule.timezone}]


def _write_schedules(schedules: Sequence[Mapping[str, Any]]) -> str:
    """Write schedules as Prefect has them: crons, and the intervals and rules that operators may have made."""
    written = []
    for schedule in schedules:
        if "cron" in schedule:
            written.append(f"{schedule['cron']} in {schedule.get('timezone') or 'UTC'}")
        elif schedule.get("interval") is not None:
            written.append(f"every {timedelta(seconds=float(schedule['interval']))}")
        else:
            written.append(f"by the rule {schedule.get('rrule')}")
    return " and ".join(written) or "no schedule"


def _find_place() -> str:
    """Return where this process serves suites: processes with the same place know of each other by locks."""
    return f"{socket.gethostname()} in {prefect_home()}"


def _is_unserved(found: Mapping[str, Any]) -> bool:
    return str(found["description"] or "").endswith(_UNSERVED)


def retire_unserved(api: PrefectApi, names: Collection[str], is_held: Callable[[str], bool]) -> list[str]:
    """Pause the deployments of suites that were served from here and no process serves; return a line for each.

    `names` are served by this process; `is_held` finds other processes of this machine. The deployments stay, for they
    have the history, and the next `evalhouse serve` of the suite resumes it.
    """
    lines = []
    rows = api.post("/deployments/filter", {"deployments": {"tags": {"all_": [TAG]}}, "limit": 200})
    for row in rows:
        match = _DESCRIPTION.match(row["description"] or "")
        is_ours = match is not None and match["place"] == _find_place()
        is_due = any(schedule["active"] for schedule in row["schedules"]) and not row["paused"]
        if not is_ours or row["name"] in names or not is_due or is_held(row["name"]):
            continue
        api.post(f"/deployments/{row['id']}/pause_deployment", {})
        api.patch(f"/deployments/{row['id']}", {"description": f"{row['description']} {_UNSERVED}"})
        again = "`evalhouse serve` of its file resumes it"
        lines.append(f"{row['name']}: no process serves this suite any more, so its deployment is paused; {again}")
    return lines


def list_deleted(api: PrefectApi, suites: Sequence[ServedSuite]) -> list[ServedSuite]:
    """Return the suites whose deployment a person has deleted in Prefect."""
    ids = [suite.deployment_id for suite in suites]
    rows = api.post("/deployments/filter", {"deployments": {"id": {"any_": ids}}, "limit": 200})
    present = {row["id"] for row in rows}
    return [suite for suite in suites if suite.deployment_id not in present]


def _make_deployment(
    suite: "Suite", flow: "Flow[..., Any]", found: Mapping[str, Any] | None, disabled: Collection[str]
) -> "RunnerDeployment":
    """Return what is registered for a suite, to be run by this flow, in the place of `found`, whose schedules stay.

    Its trigger fires once, with the id of the last update, when no other update has followed for `debounce_s` seconds.
    """
    # Prefect may be imported only when the server's address is known.
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy  # noqa: PLC0415
    from prefect.deployments.runner import RunnerDeployment  # noqa: PLC0415
    from prefect.events import DeploymentEventTrigger, Posture  # noqa: PLC0415
    from prefect.schedules import Cron  # noqa: PLC0415
    from prefect.types.entrypoint import EntrypointType  # noqa: PLC0415

    schedule = suite.schedule
    triggers: list[DeploymentTriggerTypes | TriggerTypes] = []
    if suite.trigger is not None:
        source, quiet_s = suite.trigger.source, suite.trigger.debounce_s
        name = name_trigger(suite.name, source)
        triggers.append(
            DeploymentEventTrigger(
                name=name,
                enabled=name not in disabled,
                description=f"Runs suite {suite.name} when {source.name} was updated and nothing has followed for "
                f"{quiet_s:g} s.",
                match={"prefect.resource.id": source.resource},
                after={source.event},
                expect={source.event},
                for_each={"prefect.resource.id"},
                posture=Posture.Proactive,
                threshold=1,
                within=timedelta(seconds=quiet_s),
                # Prefect encodes a template that is a single {{…}} as JSON, and cannot encode an id.
                parameters={"trigger": "event", "event": "{{ event.id | string }}"},
            )
        )
    deployment = RunnerDeployment.from_flow(
        flow,
        name=suite.name,
        description=f"Suite {suite.path}, served by evalhouse on {_find_place()}. "
        f"Its file has {_write_schedules(_list_schedules(suite))}.",
        tags=[TAG],
        parameters={"suite": str(suite.path)},
        schedule=Cron(schedule.cron, timezone=schedule.timezone, slug=_OF_FILE) if schedule and found is None else None,
        paused=None if found is None else found["paused"] and not _is_unserved(found),
        triggers=triggers,
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    if found is not None:
        deployment.model_fields_set.discard("schedules")  # Prefect would replace the ones that it has
    return deployment


def _watch_heartbeats(api: PrefectApi, name: str, deployment_id: str, disabled: Collection[str]) -> None:
    """Let Prefect mark flow runs of a deployment as crashed when their process is silent, on any machine.

    The automation belongs to the deployment, whose next registration removes it together with its triggers.
    """
    resource, title = f"prefect.deployment.{deployment_id}", f"{name}: its process is silent"
    trigger = {
        "type": "event",
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "match_related": {"prefect.resource.id": resource},
        "after": ["prefect.flow-run.heartbeat"],
        # Any state that follows is a sign of life; the next heartbeat begins a new silence.
        "expect": ["prefect.flow-run.*"],
        "for_each": ["prefect.resource.id"],
        "posture": "Proactive",
        "threshold": 1,
        "within": SILENCE.seconds,
    }
    message = "No heartbeat has come: the process or its machine is gone. `evalhouse serve` resumes the run."
    action = {"type": "change-flow-run-state", "name": "Crashed", "state": "CRASHED", "message": message}
    api.post(
        "/automations/",
        {
            "name": title,
            "enabled": title not in disabled,
            "description": f"Marks a run of {name} as crashed after {SILENCE.seconds} s without a heartbeat.",
            "trigger": trigger,
            "actions": [action],
            "owner_resource": resource,
        },
    )
