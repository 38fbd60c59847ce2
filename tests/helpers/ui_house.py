"""`evalhouse ui` over a warehouse, asked in the test's own process or by a browser."""

from __future__ import annotations

import contextlib
import html
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from starlette.testclient import TestClient

from evalhouse.flows.server.connections import listen, make_server
from evalhouse.flows.ui.app import Access, create_app
from evalhouse.warehouse.store import Warehouse

PORT = 4210
TOKEN = "a0b1c2d3e4f5a6b7"


def make_client(url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None) -> TestClient:
    """A client of the app as a browser on this machine would be, without a socket; redirections are not followed."""
    app = create_app(Warehouse(url), Access(port=PORT, token=token))
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers=headers, follow_redirects=False)


def read_main(client: TestClient, address: str) -> str:
    """The text of a page's main part, without its markup and without the data of its charts."""
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    main = answer.text.partition("<main")[2].partition("</main>")[0]
    main = re.sub(r"<script.*?</script>", " ", main, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main.partition(">")[2])).split())


@contextlib.contextmanager
def serve_ui(path: Path | str, *, token: str | None = None) -> Iterator[str]:
    """The app behind a real socket, for a browser; its address, without a slash at the end."""
    listening = listen("127.0.0.1", None, 0)
    port = int(listening.getsockname()[1])
    server = make_server(create_app(Warehouse(str(path)), Access(port=port, token=token)), leave_s=1)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listening.close()
