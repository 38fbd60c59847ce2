"""What Prefect's pages show of a run that has ended: its suite and tags, and red where a person should look."""

from evalhouse.flows.display.output import print_notice
from evalhouse.warehouse.rows.runs import RunRow


def show_end(run: RunRow, problem: str | None) -> None:
    """Tag a run's flow run, and fail it for a `problem` that Prefect knows nothing of: a gate, samples that failed.

    The run is the same without: a server that does not take it is reported and no more.
    """
    tags = [*([run.suite] if run.suite else []), *run.tags]
    if run.flow_run_id is None or not (tags or problem):
        return
    from evalhouse.flows.server.api import PrefectApiError, find_api  # noqa: PLC0415  # most runs do without

    try:
        api = find_api("the run's end cannot be shown")
        if tags:
            api.patch(f"/flow_runs/{run.flow_run_id}", {"tags": tags})
        if problem is not None:
            state = {"type": "FAILED", "name": "Failed", "message": problem}
            api.post(f"/flow_runs/{run.flow_run_id}/set_state", {"state": state, "force": True})
    except PrefectApiError as error:
        print_notice(f"Prefect's page of the run lacks how it ended: {error}")
