"""URLs of servers: check them, and hide their passwords in errors.

A password that is not percent-encoded moves the borders of a URL: a part of it is then taken for a
port, a path or an option, and shown by whatever complains of that. So such a URL is refused first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final

from penstock.errors import BadArgument

__all__ = [
    "DEFAULT_URL",
    "FROM_ENVIRONMENT",
    "HOST_NAME_FAULT",
    "NOT_SHOWN",
    "URL_VARIABLE",
    "bracketed",
    "can_be_looked_up",
    "check_url",
    "fault_of",
    "host_and_port",
    "redacted",
    "shown",
    "source_of",
    "split_urls",
    "unusable",
]

SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")
URL_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)([^?#]*)(.*)", re.DOTALL)
HOST_AND_PORT_OF_URL = r"(?:\[[0-9A-Fa-f:.%]+\]|([\w.-]*))(?::\d{1,5})?"
DEFAULT_URL = "redis://localhost:6379/0"
URL_VARIABLE = "PENSTOCK_URL"
HOST_NAME_FAULT = (
    "in a host name each part between two dots has 1 to 63 characters, all of them characters that "
    "IDNA allows"
)
NOT_SHOWN = "<not shown>"
SECRET_IN_OPTION = r"[?&]\w*(?i:username|password)="
SECRET_IN_TEXT = re.compile(
    r"(?<![^\s'\"(\[])([A-Za-z][A-Za-z0-9+.-]*:/+|:)"
    rf"(?:.*{SECRET_IN_OPTION}.*|.*(?=@)|(?<=/):.*)",
    re.DOTALL,
)
"""A URL that begins a word, or the rest of one, from its scheme to where it shows no password.

That is the last @ of the text. It is the end of the text if an option has a password, which may
contain an @ or a blank, or if no host follows the password.
"""


class _FromEnvironment:
    """The source of a client that was given none."""

    def __repr__(self) -> str:
        return f"<${URL_VARIABLE}, or {DEFAULT_URL}>"


FROM_ENVIRONMENT: Final[Any] = _FromEnvironment()


def source_of(source: Any) -> Any:
    """Return the source of a client; without one, that of the environment, or the default.

    Raises:
        BadArgument: the environment has a URL that can't be used.
    """
    if source is not FROM_ENVIRONMENT:
        return source
    urls = split_urls(os.environ.get(URL_VARIABLE) or DEFAULT_URL)
    checked = [check_url(URL_VARIABLE, url) for url in urls]
    return checked if len(checked) > 1 else checked[0]


def split_urls(text: str) -> list[str]:
    """Return the URLs of a text, which spaces separate; one that is malformed as it is.

    Raises:
        BadArgument: there are several, and one of them is no URL.
    """
    urls = text.split()
    if len(urls) < 2:
        return [text]
    if any(map(fault_of, urls)):  # perhaps one whose password has a space
        raise BadArgument(
            "url", NOT_SHOWN, "must be URLs separated by spaces; write a space in a URL as %20"
        )
    return urls


def bracketed(host: str) -> str:
    """Return a host as URLs name it: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def can_be_looked_up(host: str) -> bool:
    """Return whether a host name has a form for DNS: lengths and characters of its parts."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def host_and_port(host: object, port: object) -> str:
    """Return the address of a server as URLs and texts name it."""
    return f"{bracketed(str(host))}:{port}"


def shown(source: object) -> str:
    """Return a source as errors show it: the address of a sound URL, no user name or password."""
    if isinstance(source, (bytes, bytearray)):
        source = source.decode("utf-8", "replace")
    if isinstance(source, str):
        match = URL_PARTS.fullmatch(source)
        if match is None or fault_of(source):
            scheme = match[1].lower() if match else ""
            return f"{scheme if scheme in SCHEMES else ''}{NOT_SHOWN}"
        return f"{match[1]}{match[2].rpartition('@')[2]}{match[3]}"
    if isinstance(source, Sequence):
        return f"[{', '.join(map(shown, source))}]"
    return f"<{type(source).__module__}.{type(source).__qualname__}>"


def redacted(text: str) -> str:
    """Hide the user names and passwords of URLs in a text."""
    hidden = rf"\1{NOT_SHOWN}"
    return re.sub(
        rf"({SECRET_IN_OPTION}).*", hidden, SECRET_IN_TEXT.sub(hidden, text), flags=re.DOTALL
    )


def check_url(argument: str, url: object) -> str:
    """Return the URL of a node; in its form no part of a password is taken for another part.

    Raises:
        BadArgument: it has another form; the error shows only its address.
    """
    fault = fault_of(url) if isinstance(url, str) else "must be the URL of a node, as a str"
    if fault:
        raise BadArgument(argument, shown(url), fault)
    return str(url)


def fault_of(url: str) -> str:
    """Return the fault of a URL's form; empty = none."""
    match = URL_PARTS.fullmatch(url)
    if match is None or match[1].lower() not in SCHEMES:
        schemes = f"{', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}"
        return f"must be a URL that begins with {schemes}, such as redis://localhost:6379/0"
    _, authority, path, options = match.groups()
    if "@" in path + options:
        return (
            "in a URL the characters / ? # @ % of a user name, a password, a path or an option "
            "must be percent-encoded, as urllib.parse.quote(password, safe='') does"
        )
    for place in authority.rpartition("@")[2].split(","):
        named = re.fullmatch(HOST_AND_PORT_OF_URL, place)
        if named is None:
            return "must be a URL with a host name and a port such as redis://host:6379/0"
        if not can_be_looked_up(named[1] or ""):
            return HOST_NAME_FAULT
    if match[1].lower() in SCHEMES[:2] and not re.fullmatch(r"/?[0-9]*/?", path):
        return (
            "after the host a URL has the number of a database, as in redis://host:6379/0; the "
            "name of a queue belongs in queue(name)"
        )
    return ""


def unusable(url: str, complaint: str) -> str:
    """Return the reason why redis-py can't use a URL of sound form, without any value of it.

    Args:
        url: the URL.
        complaint: the message of redis-py, which may quote a value.
    """
    match = re.search(r"(?:keyword argument|Invalid value for) '(\w+)'", complaint)
    name = _named(url, match[1]) if match else ""
    if not name:
        return "redis-py can't use this URL: check the port, the database and the options"
    if "keyword" in complaint:
        return f"unknown option {name!r}: the options are those of redis-py's connections"
    return f"the value of option {name!r} can't be used"


def _named(url: str, option: str) -> str:
    """Return the option as the URL names it; '' after a password, which may contain it."""
    for pair in url.partition("?")[2].split("&"):
        name = pair.partition("=")[0]
        if name in (option, f"sentinel_{option}"):
            return name
        if "password" in name:
            break
    return ""
