"""Protection of the page: hosts, authentication, headers, and tokens of forms."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.core.jobs.logs import get_logger
from penstock.errors import BadArgument

__all__ = ["LOOPBACK_NAMES", "Auth", "Guard", "Notes", "Options", "is_loopback", "token_of"]

audit = get_logger("penstock.web.audit")

AuthCall: TypeAlias = Callable[[Request], "str | Awaitable[str | None] | None"]
Auth: TypeAlias = "tuple[str, str] | AuthCall"
"""A user name and a password, or a function that returns the user's name; None = refused."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""Hosts that name this machine."""
CSRF_COOKIE = "penstock_csrf"
PROBE_PATH = "/health"
"""The path that says whether the process answers, to anybody."""
MOST_FAILURES, FAILURES_SECONDS = 10, 60
"""Wrong passwords from one address, and the time in which so many block it."""
MOST_FAILING_CLIENTS = 1000
"""Addresses that are remembered."""
NOTE_COOKIE = "penstock_note"
NOTE_SECONDS = 60
"""Seconds for which a browser keeps a note that no page has shown."""
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the page.

    Attributes:
        write: whether actions are allowed.
        auth: how users are recognized; None = only clients on this machine are served.
        hosts: names of the server that requests may use, without ports; "*" = any.
        hide_bodies: whether bodies and results are hidden.
        secret: key of the tokens of forms.
    """

    write: bool
    auth: Auth | None
    hosts: tuple[str, ...]
    hide_bodies: bool
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)


def check_hosts(hosts: object) -> tuple[str, ...]:
    """Return names of hosts as a tuple.

    Raises:
        BadArgument: not a sequence of names, or a name with a port.
    """
    if isinstance(hosts, str) or not isinstance(hosts, Sequence):
        raise BadArgument("hosts", hosts, 'must be names, such as ["queues.example.com"]')
    if not all(isinstance(host, str) and host and _name_of(host) == host.lower() for host in hosts):
        raise BadArgument("hosts", hosts, "must be names without ports, IPv6 in brackets: [::1]")
    return tuple(host.lower() for host in hosts)


def check_auth(auth: object) -> Auth | None:
    """Return the way in which users are recognized.

    Raises:
        BadArgument: neither a name and a password, nor a function.
    """
    if auth is None or callable(auth):
        return auth
    if isinstance(auth, tuple) and len(auth) == 2:
        user, password = auth
        if isinstance(user, str) and isinstance(password, str) and user and password:
            return user, password
    reason = "must be (user, password), both not empty, or a function of the request"
    raise BadArgument("auth", "<hidden>", reason)


def is_loopback(host: str) -> bool:
    """Return True if a name or an address is one of this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def token_of(options: Options, cookie: str) -> str:
    """Return the token that the forms of the user with this cookie must contain."""
    return hmac.new(options.secret, cookie.encode(), hashlib.sha256).hexdigest()


def is_token(request: Request, options: Options, token: str) -> bool:
    """Return True if a form has the token of its user."""
    cookie = request.cookies.get(CSRF_COOKIE, "")
    expected = token_of(options, cookie)
    return bool(cookie) and hmac.compare_digest(expected.encode(), token.encode())


class Failures:
    """Wrong passwords of the last minute, by address. Too many block an address for the rest of it.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, tuple[int, float]] = {}

    def note(self, client: str) -> None:
        """Count a wrong password from an address; its minute begins with the first one."""
        now = self._clock()
        count, ends = self._counts.pop(client, (0, 0.0))
        if ends <= now:
            count, ends = 0, now + FAILURES_SECONDS
        self._counts[client] = (count + 1, ends)
        if len(self._counts) > MOST_FAILING_CLIENTS:
            del self._counts[next(iter(self._counts))]

    def is_blocked(self, client: str) -> bool:
        """Return True if an address has sent too many."""
        count, ends = self._counts.get(client, (0, 0.0))
        return count >= MOST_FAILURES and ends > self._clock()


class Notes:
    """Texts that the next page shows once: each is a cookie, and only its user's page makes it.

    Args:
        options: of the page.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    def attach(self, request: Request, response: Response, text: str) -> None:
        """Let the next page of this user show a text."""
        value = base64.urlsafe_b64encode(text.encode()).decode()
        self._set(request, response, f"{self._proof(request, value)}.{value}", NOTE_SECONDS)

    def read(self, request: Request) -> str:
        """Return the text that this page is to show; empty = none."""
        proof, _, value = request.cookies.get(NOTE_COOKIE, "").partition(".")
        if not hmac.compare_digest(proof.encode(), self._proof(request, value).encode()):
            return ""
        return base64.urlsafe_b64decode(value).decode()

    def drop(self, request: Request, response: Response) -> None:
        """Forget the text that this page has shown."""
        if NOTE_COOKIE in request.cookies:
            self._set(request, response, "", 0)

    def _proof(self, request: Request, value: str) -> str:
        text = f"{request.cookies.get(CSRF_COOKIE, '')} {value}"
        return hmac.new(self._options.secret, text.encode(), hashlib.sha256).hexdigest()

    def _set(self, request: Request, response: Response, value: str, seconds: int) -> None:
        response.set_cookie(
            NOTE_COOKIE,
            value,
            max_age=seconds,
            path=request.scope.get("root_path") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


class Guard:
    """Answers only allowed requests, and adds headers to all answers.

    Args:
        app: gets the allowed requests, with `user` and `csrf` in their state.
        options: the options of the page.
    """

    def __init__(self, app: ASGIApp, options: Options) -> None:
        self.app = app
        self.options = options
        self._failures = Failures()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        if request.url.path == scope.get("root_path", "") + PROBE_PATH:
            await PlainTextResponse("ok\n")(scope, receive, send)
            return
        cookie = request.cookies.get(CSRF_COOKIE)
        given = cookie or secrets.token_hex(16)
        send_guarded = self._guarding(send, None if cookie else self._cookie(request, given))
        refused = self._refused(request)
        if refused is None:
            user = await self._user(request)
            if user is None:
                refused = self._unknown_user()
            else:
                request.state.user = user
                request.state.csrf = token_of(self.options, given)
        await (refused or self.app)(scope, receive, send_guarded)

    def _refused(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if "*" not in self.options.hosts and _name_of(host) not in self.options.hosts:
            text = f"This page is not served as {host[:200]!a}: add the name to its hosts.\n"
            return PlainTextResponse(text, 400)
        client = _client_of(request)
        if self.options.auth is None and not is_loopback(client):
            text = "Without authentication only this machine is served: set a user and password.\n"
            return PlainTextResponse(text, 403)
        origin = request.headers.get("origin")
        is_safe = request.method in ("GET", "HEAD")
        if not is_safe and origin is not None and _netloc(origin) != host:
            text = (
                f"The form comes from {origin[:200]!a}, and this page is served as {host[:200]!a}."
                " If these are one page behind a proxy, let the proxy pass the header Host on"
                " (nginx: proxy_set_header Host $http_host), and allow that name.\n"
            )
            return PlainTextResponse(text, 403)
        if isinstance(self.options.auth, tuple) and self._failures.is_blocked(client):
            text = "Too many wrong passwords from your address: try again in a minute.\n"
            return PlainTextResponse(text, 429, {"retry-after": str(FAILURES_SECONDS)})
        return None

    async def _user(self, request: Request) -> str | None:
        auth = self.options.auth
        if auth is None:
            return "-"
        if not isinstance(auth, tuple):
            answer = auth(request)
            user: object = await answer if inspect.isawaitable(answer) else answer
            return user if user and isinstance(user, str) else None
        name, password = _basic(request.headers.get("authorization", ""))
        is_user = hmac.compare_digest(name, auth[0].encode())
        is_password = hmac.compare_digest(password, auth[1].encode())
        if is_user and is_password:
            return auth[0]
        if name or password:
            client, user = _client_of(request), name.decode("utf-8", "replace")
            self._failures.note(client)
            audit.warning("wrong password: user=%r client=%s", user, client)
        return None

    def _unknown_user(self) -> Response:
        if isinstance(self.options.auth, tuple):
            ask = {"www-authenticate": 'Basic realm="penstock", charset="UTF-8"'}
            return PlainTextResponse("A user name and a password are needed.\n", 401, ask)
        return PlainTextResponse("You may not see this page.\n", 403)

    def _cookie(self, request: Request, value: str) -> str:
        path = request.scope.get("root_path") or "/"
        secure = "; Secure" if request.url.scheme == "https" else ""
        return f"{CSRF_COOKIE}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}"

    def _guarding(self, send: Send, cookie: str | None) -> Send:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                keep = "max-age=3600" if "etag" in headers else "no-store"
                headers.setdefault("cache-control", keep)
                if cookie is not None:
                    headers.append("set-cookie", cookie)
            await send(message)

        return send_guarded


def _client_of(request: Request) -> str:
    return request.client.host if request.client else "localhost"


def _name_of(host: str) -> str:
    """Return the host of a Host header, without its port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdecimal() else host).lower()


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _basic(header: str) -> tuple[bytes, bytes]:
    """Return the user and the password of a header; both are empty if there are none."""
    kind, _, encoded = header.partition(" ")
    if kind.lower() != "basic":
        return b"", b""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return b"", b""
    return user, password
