"""The flow that a worker of a work pool runs: one part of a run. `pools/coordinate.py` gives the parts out and
`pools/work.py` is how they are done. Prefect imports it by its name, so nothing but evalhouse has to be on the
worker's machine."""

from typing import Any
from uuid import UUID

import httpx
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from evalhouse.flows.errors import explain
from evalhouse.flows.pools.parts import STOPPED
from evalhouse.flows.pools.work import PartOrder, work_on_part
from evalhouse.flows.server.flow_options import FLOW_OPTIONS
from evalhouse.tasks.judge.errors import FatalJudgeError, RunCancelled
from evalhouse.warehouse.errors import WarehouseError


@flow(name="judge-part", **FLOW_OPTIONS, validate_parameters=True)
async def judge_part(
    *,
    run_id: str,
    warehouse: str,
    first: int,
    last: int,
    attempt: int,
    code_version: str,
    mend: bool = False,
    changes: dict[str, Any] | None = None,
) -> "State[Any]":
    """Judge samples `first` to `last` of a run, by ordinal; see `PartOrder`.

    It ends as Failed "Stopped" when no other worker could do better.
    """
    order = PartOrder(
        run_id=run_id,
        warehouse=warehouse,
        first=first,
        last=last,
        code_version=code_version,
        mend=mend,
        changes=changes or {},
    )
    get_run_logger().info("Samples %d to %d of run %s, attempt %d.", first, last, run_id, attempt)
    try:
        n_shards = await work_on_part(order, _is_wanted)
    except RunCancelled as error:
        return Cancelled(message=str(error))
    except WarehouseError as error:  # this machine's trouble, it may be; another one may try
        return Failed(message=str(error))
    except Exception as error:  # of any error that has words for a person these are what the flow run ends with
        message = explain(error)
        if message is None:
            raise
        return Failed(name=STOPPED, message=message) if isinstance(error, FatalJudgeError) else Failed(message=message)
    return Completed(message=f"{n_shards} shards were judged.")


async def _is_wanted() -> bool:
    """Whether this flow run was never cancelled nor given up; a server that does not answer has not said so.

    All its states are looked at, because a process that is just starting sets a flow run under way again that was
    cancelled a moment before.
    """
    try:
        async with get_client() as client:
            states = await client.read_flow_run_states(UUID(str(flow_run.id)))
    except ObjectNotFound:
        return False
    except (httpx.HTTPError, PrefectException):
        return True
    return bool(states) and not any(state.is_final() or state.is_cancelling() for state in states)
