"""The variables that libraries read from the environment by themselves: keys, addresses, proxies and certificates.

httpx, aiohttp, urllib, websockets and the clients of providers each read them by other rules, and fail far from the
cause. Here they are brought into the form that all of them read, before any of them is imported or called.
"""

import os
import re
import ssl
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("127.0.0.1", "localhost")
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CERTIFICATES: Final = ("SSL_CERT_FILE", "PREFECT_API_SSL_CERT_FILE")
_PROVIDERS: Final = "OPENAI|AZURE_OPENAI|ANTHROPIC|GOOGLE|GEMINI|MISTRAL|OLLAMA|AWS|LANGSMITH|LANGCHAIN"
_READ: Final = re.compile(
    rf"(?:{_PROVIDERS}|PREFECT|EVALHOUSE)_\w+|\w+_API_KEY|(?:HTTPS?|ALL|NO)_PROXY|SSL_CERT_(?:FILE|DIR)", re.IGNORECASE
)
_QUOTES: Final = ('""', "''", "``", "“”", "‘’")
_INVISIBLE: Final = "\ufeff\u200b"  # a byte order mark and a space of no width, as files and web pages add them


def tidy_variables() -> list[str]:
    """Take line ends, blanks and quotes off the variables that libraries read; return a notice for each.

    `socks://`, as some programs write it, becomes `socks5://`, the only form that httpx reads.
    """
    notices = []
    for name, value in list(os.environ.items()):
        if _READ.fullmatch(name) is None:
            continue
        tidy = value.strip().strip(_INVISIBLE).strip()
        if len(tidy) > 1 and tidy[0] + tidy[-1] in _QUOTES:
            tidy = tidy[1:-1].strip()
        if tidy != value:
            notices.append(f"{name} is read without the line end, blanks or quotes around its value")
        if name.upper() in PROXIES and tidy.lower().startswith("socks://"):
            tidy = f"socks5{tidy[5:]}"
        if tidy != value:
            os.environ[name] = tidy
    return notices


def find_environment_problems() -> list[str]:
    """Return a sentence for each proxy and each file of certificates that no client can use."""
    problems = []
    for name in (*PROXIES, *(name.lower() for name in PROXIES)):
        if not (value := os.environ.get(name)):
            continue
        scheme, separator, rest = value.partition("://")
        scheme = scheme.lower() if separator else "http"
        try:
            is_address = bool(urlsplit(f"//{rest if separator else value}").hostname)
            _ = urlsplit(f"//{rest if separator else value}").port
        except ValueError:  # a port that is not a number, half a bracket
            is_address = False
        # Not the value itself, which may hold a password.
        if not is_address or scheme not in ("http", "https", "socks5", "socks5h"):
            problems.append(
                f"{name} is not an address of a proxy that can be used ({scheme}://…); write it like "
                f"http://HOST:PORT or socks5://HOST:PORT, or unset {name}"
            )
        elif scheme.startswith("socks") and not (find_spec("socksio") and find_spec("aiohttp_socks")):
            problems.append(
                f"{name} is a SOCKS proxy, which needs two packages: pip install socksio aiohttp-socks; or name an "
                f"HTTP proxy, such as http://HOST:PORT, or unset {name}"
            )
    for name in _CERTIFICATES:
        if path := os.environ.get(name):
            try:
                ssl.create_default_context(cafile=path)
            except OSError as error:  # an SSLError is one too
                reason = f"which holds no certificate ({error})" if os.path.isfile(path) else "which is not a file"
                problems.append(f"{name} is {path}, {reason}; name a PEM file with certificates, or unset {name}")
    return problems


def find_proxy(url: str) -> str | None:
    """Return the environment's proxy for an address, None if it is asked directly.

    HTTP_PROXY or HTTPS_PROXY by the address's scheme comes before ALL_PROXY; hosts in NO_PROXY and this machine have
    none. Lower-case names win, as they do in urllib.
    """
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415  # 20 ms, which a command's help does without

    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or parts.hostname in LOOPBACK or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
