"""One turn at the warehouse for each page, however many queries it makes."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalhouse.warehouse.engine.shared import one_reading


class OneReading:
    """Stands before the app: what a page reads up to its first byte is of one state, and waits for a run's write once.

    What is read while a response goes on (events, a download) takes its turn by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with one_reading() as end:

            async def send_after(message: Message) -> None:
                end()
                await send(message)

            await self._app(scope, receive, send_after)
