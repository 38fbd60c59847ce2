"""Whether a Prefect server of the user's own answers, asked before a run is begun and by `doctor`.

Prefect itself would say so in a hundred lines, after the run is on record. Nothing here imports Prefect.
"""

import http.client
import urllib.error
import urllib.request

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.address import hide_credentials
from evalhouse.flows.server.environment import API_URL, find_api_url

_REACH_S = 10.0


def check_prefect_server() -> None:
    """Refuse a server that was chosen and does not answer; raises SettingsError."""
    url = find_api_url()
    problem = ask_health(url) if url else None
    if url and problem:
        raise SettingsError(explain_unreachable(url, problem))


def explain_unreachable(url: str, problem: str) -> str:
    """What a person reads about a server that does not answer."""
    return (
        f"the Prefect server at {hide_credentials(url)} does not answer: {problem}; start it, mend {API_URL}, "
        "or take that away: each run then starts a server of its own"
    )


def ask_health(url: str) -> str | None:
    """What is wrong with a Prefect server, or None. One that wants a key first is well."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=_REACH_S) as response:
            content: bytes = response.read(100)
    except urllib.error.HTTPError as error:
        error.close()
        return None if error.code in (401, 403) else f"status {error.code}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None if content.strip() == b"true" else "what answers there is no Prefect API, whose address ends in /api"
