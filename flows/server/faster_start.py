"""Start the Prefect server of one run in 60 % of the CPU, by names that Prefect, pydantic and FastAPI do not document.

`EVALHOUSE_PLAIN_SERVER=1` leaves all of it out. Where a new release of them does not fit, the child starts with it.
"""

import gc
import os
import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

PLAIN_SERVER = "EVALHOUSE_PLAIN_SERVER"


def is_plain() -> bool:
    """Return whether the server starts without the shortcuts."""
    return os.environ.get(PLAIN_SERVER, "") not in ("", "0")


def build_when_used() -> None:
    """Build Prefect's models and routes when they are first used; call it before Prefect's server is imported.

    Prefect builds 840 pydantic models, and FastAPI all that 185 routes need twice; a run uses fifteen of these.
    """
    gc.disable()  # the garbage collector visits all that the imports allocate, and frees nothing: 0.6 s
    import pydantic  # noqa: PLC0415

    pydantic.BaseModel.model_config = pydantic.ConfigDict(defer_build=True)
    import prefect.server.utilities.server as routing  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    make_route = routing.PrefectAPIRoute

    class LateRoute(Route):
        """A route with Prefect's arguments, whose real route is built by the first request."""

        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401
            late = LateEndpoint(partial(make_route, path, endpoint, **options))
            super().__init__(path, late, methods=options["methods"], name=endpoint.__name__)

    routing.PrefectAPIRoute = LateRoute  # type: ignore[assignment, misc]


class LateEndpoint:
    """An endpoint that builds its route when it is first requested, with the version check Prefect adds to each."""

    def __init__(self, make: "partial[Any]") -> None:
        self._make = make

    @cached_property
    def app(self) -> Any:  # noqa: ANN401  # the application of a FastAPI route
        """The route, built when it is first requested."""
        from fastapi import Depends  # noqa: PLC0415
        from prefect.server.api.server import enforce_minimum_version  # noqa: PLC0415

        dependencies = [Depends(enforce_minimum_version), *self._make.keywords["dependencies"]]
        return self._make(dependencies=dependencies).app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Answer one request."""
        await self.app(scope, receive, send)


def create_app_faster(pipe_fd: int) -> Any:  # noqa: ANN401  # FastAPI's application
    """Return Prefect's application for one run, or start again without shortcuts, with the parent's pipe as output."""
    try:
        build_when_used()
        from prefect.server.api import flow_runs, server  # noqa: PLC0415

        app = server.create_app(ephemeral=True)
        route: Any = flow_runs.router.routes[0]
        assert route.endpoint.app  # built as by its first request
    except Exception as error:  # on any misfit the plain start has to do
        print(f"started again with {PLAIN_SERVER}=1: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os.dup2(pipe_fd, 1)
        os.execve(sys.executable, sys.orig_argv, {**os.environ, PLAIN_SERVER: "1"})
    gc.freeze()
    gc.enable()
    return app
