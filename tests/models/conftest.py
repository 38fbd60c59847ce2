from __future__ import annotations

from collections.abc import Iterator

import pytest
from endpoint import Endpoint, running_endpoint
from live_runs import point_to
from provider_calls import KEY


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """The local endpoint, which `openai:` judges of the test are pointed to."""
    with running_endpoint(keep_bodies=True) as running:
        point_to(running.base_url, KEY)
        yield running
