"""A suite as a Prefect deployment: its schedule, the trigger on its knowledge base, one run at a time, and the watch
over its heartbeats. Imports Prefect."""

from datetime import timedelta
from typing import Any, Final

from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger, EventTrigger, Posture
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore
from prefect.schedules import Cron
from prefect.types.entrypoint import EntrypointType

from evalhouse.flows.preparing.suites import Suite, UpdateSource
from evalhouse.flows.server.api import TAG
from evalhouse.flows.serving.flow_runs import SILENCE

# The shortest that Prefect allows.
HEARTBEAT_S: Final = 30


def make_deployment(suite: Suite, flow: Flow[..., Any]) -> RunnerDeployment:
    """What is registered for a suite, to be run by this flow; a second registration replaces the first."""
    schedule = suite.schedule
    return RunnerDeployment.from_flow(
        flow,
        name=suite.name,
        description=f"Suite {suite.path}, served by evalhouse.",
        tags=[TAG],
        parameters={"suite": str(suite.path)},
        schedule=Cron(schedule.cron, timezone=schedule.timezone) if schedule else None,
        triggers=[make_trigger(suite.name, suite.trigger.source, suite.trigger.debounce_s)] if suite.trigger else [],
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def make_trigger(name: str, source: UpdateSource, debounce_s: float) -> DeploymentEventTrigger:
    """Fires once when no update has followed an update for `debounce_s` seconds, with the id of the last."""
    return DeploymentEventTrigger(
        name=f"{name}: {source.name} was updated",
        description=f"Runs suite {name} when {source.name} was updated and nothing has followed for {debounce_s:g} s.",
        match={"prefect.resource.id": source.resource},
        after={source.event},
        expect={source.event},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=debounce_s),
        # Prefect encodes a template that is a single {{…}} as JSON, and cannot encode an id.
        parameters={"trigger": "event", "event": "{{ event.id | string }}"},
    )


async def watch_heartbeats(name: str, deployment_id: str) -> None:
    """Have Prefect mark flow runs of a deployment as crashed when their process is silent, on whichever machine it was.

    It belongs to the deployment, whose next registration removes it together with its triggers."""
    resource = f"prefect.deployment.{deployment_id}"
    automation = AutomationCore(
        name=f"{name}: its process is silent",
        description=f"Marks a run of {name} as crashed after {SILENCE.seconds} s without a heartbeat.",
        trigger=EventTrigger(
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.id": resource},
            after={"prefect.flow-run.heartbeat"},
            # Any state that follows is a sign of life; the next heartbeat begins a new silence.
            expect={"prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed",
                state=StateType.CRASHED,
                force=False,
                message="No heartbeat has come: the process or its machine is gone. `evalhouse serve` resumes the run.",
            )
        ],
        owner_resource=resource,
    )
    async with get_client() as client:
        await client.create_automation(automation)
