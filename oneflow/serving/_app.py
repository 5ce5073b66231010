"""The HTTP interface, an ASGI application: routes, who may ask, limits, and errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from .._base.refuse import shown
from . import _protocol as protocol
from ._metrics import Counts, Metrics
from ._protocol import RequestError
from ._repository import NAME, Repository
from ._settings import ServerSettings

logger = logging.getLogger("oneflow.serving")
_LARGE_JSON = 256 << 10  # is parsed beside the event loop
_LINGER_SECONDS = 5.0  # how long the rest of a body that is too large is still read
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_OPEN = {"/", "/v2/health/live", "/v2/health/ready"}  # need no token: a page without data, and probes
_SECURITY = (
    (b"content-security-policy",
     b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob: data:; "
     b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)  # fmt: skip


@dataclass(slots=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def _json(content: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(content, separators=(",", ":")).encode(), {"content-type": protocol.JSON})


class _Disconnected(Exception):
    """The client is gone."""


class Call:
    """One HTTP request."""

    def __init__(self, scope: Any, receive: Callable[[], Awaitable[Any]]):
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.began = time.perf_counter()
        self.counts: Counts | None = None  # of an inference request's version, once it is known to exist
        self.reserved = 0
        self._receive = receive
        self._more = True  # of the body is to come

    async def body(self, most: int) -> bytes:
        """All of the body. Raises RequestError where it has more than ``most`` bytes."""
        parts, size = [], 0
        while self._more:
            part = await self._part()
            size += len(part)
            if size > most:
                raise RequestError(413, f"the body has more than {most} bytes", {"connection": "close"})
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def discard(self, seconds: float) -> None:
        """Reads what is left of the body, for at most ``seconds``, and keeps nothing of it."""
        with contextlib.suppress(TimeoutError, _Disconnected):
            async with asyncio.timeout(seconds):
                while self._more:
                    await self._part()

    async def _part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        self._more = message.get("more_body", False)
        return message.get("body", b"")


class App:
    """The application. ``ready`` is set by the server that runs it, and taken back when it drains."""

    def __init__(self, repository: Repository, settings: ServerSettings, metrics: Metrics, version: str):
        self.ready = False
        self.draining = False
        self._repository = repository
        self._settings = settings
        self._metrics = metrics
        self._version = version
        self._bodies = 0
        self._token = None if settings.token is None else settings.token.encode()
        self._is_loopback = settings.is_loopback
        self._hosts = {*_LOOPBACK, settings.host.lower(), *settings.allowed_hosts}
        self._page = resources.files(__package__).joinpath("page.html").read_bytes()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        call = Call(scope, receive)
        try:
            answer = await self._answer(call)
        except _Disconnected:
            return
        except asyncio.CancelledError:  # the time for requests that were under way is over
            answer = _json({"error": "the server is stopping"}, 503)
            self._metrics.responded(answer.status)
        headers = {**answer.headers, "content-length": str(len(answer.body))}
        if self.draining:
            headers["connection"] = "close"
        body = b"" if call.method == "HEAD" else answer.body
        encoded = [*_SECURITY, *((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items())]
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        if answer.status == 413:
            # A connection closed while the client still sends is reset, and most clients then never see the answer.
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await call.discard(_LINGER_SECONDS)
            body = b""
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, call: Call) -> Answer:
        try:
            self._admit(call)
            answer = await self._routed(call)
        except RequestError as error:
            answer = _json({"error": error.reason}, error.status)
            answer.headers.update(error.headers)
        except _Disconnected:
            raise
        except Exception:
            logger.exception("%s %s", call.method, shown(call.path))
            answer = _json({"error": "internal error; the server's log says more"}, 500)
        finally:
            self._bodies -= call.reserved
        self._metrics.responded(answer.status)
        if call.counts is not None:
            call.counts.answered(answer.status, time.perf_counter() - call.began)
        return answer

    # --- who may ask

    def _admit(self, call: Call) -> None:
        """Raises RequestError for requests of strangers: without the token, or sent by another site's page in a browser."""
        headers = call.headers
        host = headers.get("host", "")
        if self._token is None and self._is_loopback and _hostname(host) not in self._hosts:
            raise RequestError(403, f"the host {host[:80]!r} is not one of this server's names (--allowed-host)")
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != host:
            raise RequestError(403, "requests of other sites' pages are refused")
        if self._token is None or call.path in _OPEN:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
        if scheme.lower() != "bearer" or not right:
            raise RequestError(401, "this server needs a bearer token", {"www-authenticate": "Bearer"})

    def _may_change(self) -> None:
        if self._token is None and not self._is_loopback:
            raise RequestError(403, "models are loaded and unloaded with a token only, where other machines reach the server")

    # --- routes

    async def _routed(self, call: Call) -> Answer:
        path = call.path.rstrip("/") or "/"
        match path.split("/")[1:]:
            case ["v2", "models", name, "infer"]:
                return await self._post(call, self._infer, name, None)
            case ["v2", "models", name, "versions", version, "infer"]:
                return await self._post(call, self._infer, name, version)
            case ["v2", "models", name, "versions", version, *rest] if len(rest) <= 1:
                return self._get(call, self._about, name, version, "".join(rest))
            case ["v2", "models", "stats"]:
                return self._get(call, self._statistics, None, None)
            case ["v2", "models", name, *rest] if len(rest) <= 1:
                return self._get(call, self._about, name, None, "".join(rest))
            case ["v2", "repository", "index"]:
                return await self._post(call, self._index)
            case ["v2", "repository", "models", name, "load"]:
                return await self._post(call, self._load, name)
            case ["v2", "repository", "models", name, "unload"]:
                return await self._post(call, self._unload, name)
            case ["v2", "health", "live"]:
                return self._get(call, lambda: Answer(200))
            case ["v2", "health", "ready"]:
                return self._get(call, self._readiness)
            case ["v2"]:
                return self._get(call, lambda: _json({"name": "oneflow", "version": self._version,
                                                      "extensions": protocol.EXTENSIONS}))  # fmt: skip
            case ["metrics"]:
                return self._get(call, self._measured)
            case [""]:
                return self._get(call, lambda: Answer(200, self._page, {"content-type": "text/html; charset=utf-8"}))
        raise RequestError(404, f"there is nothing at {shown(call.path[:200])}")

    def _get(self, call: Call, answer: Callable[..., Answer], *args: Any) -> Answer:
        if call.method not in ("GET", "HEAD"):
            raise RequestError(405, f"{call.method[:20]} is not possible here, but GET is", {"allow": "GET, HEAD"})
        return answer(*args)

    async def _post(self, call: Call, answer: Callable[..., Awaitable[Answer]], *args: Any) -> Answer:
        if call.method != "POST":
            raise RequestError(405, f"{call.method[:20]} is not possible here, but POST is", {"allow": "POST"})
        return await answer(call, *args)

    def _readiness(self) -> Answer:
        if not self.ready or self.draining:
            raise RequestError(
                503, "the server is stopping" if self.draining else "models are being loaded", {"retry-after": "1"}
            )
        return Answer(200)

    def _about(self, name: str, version: str | None, what: str) -> Answer:
        if what == "stats":
            return self._statistics(name, version)
        model = self._repository.find(name, version).model
        match what:
            case "":
                return _json(model.metadata(self._repository.versions(name)))
            case "ready":
                return Answer(200)
            case "config":
                return _json(model.config())
        raise RequestError(404, f"a model has no {shown(what)}")

    def _statistics(self, name: str | None, version: str | None) -> Answer:
        names = self._repository.names() if name is None else [name]
        found = []
        for each in names:
            self._repository.find(each, version)  # it is there
            found += [self._repository.find(each, v) for v in (self._repository.versions(each) if version is None else [version])]
        return _json({"model_stats": [batcher.counts.statistics() for batcher in found]})

    def _measured(self) -> Answer:
        body, content_type = self._metrics.text(self._repository.queues())
        return Answer(200, body, {"content-type": content_type})

    # --- models

    async def _index(self, call: Call) -> Answer:
        given = await self._object(call)
        index = self._repository.index()
        if given.get("ready") is True:
            index = [entry for entry in index if entry["state"] == "READY"]
        return _json(index)

    async def _object(self, call: Call) -> dict[str, Any]:
        """The JSON of a request that need not have any."""
        given = protocol.parsed_json(await self._body(call), empty={})
        if not isinstance(given, dict):
            raise RequestError(400, "the request must be a JSON object, or empty")
        return given

    async def _load(self, call: Call, name: str) -> Answer:
        self._may_change()
        given = await self._object(call)
        if given.get("parameters"):
            raise RequestError(400, "a model is loaded as its files say; configurations and files in requests are not taken")
        if not NAME.fullmatch(name):
            raise RequestError(404, f"there is no model {shown(name[:128])}")
        await self._repository.load(name)
        return _json({})

    async def _unload(self, call: Call, name: str) -> Answer:
        self._may_change()
        await self._body(call)
        await self._repository.unload(name)
        return _json({})

    async def _infer(self, call: Call, name: str, version: str | None) -> Answer:
        call.counts = self._repository.find(name, version).counts
        body = await self._body(call)
        head_bytes, binary = protocol.split(body, call.headers.get(protocol.HEADER_LENGTH))
        with self._repository.find(name, version).lease() as batcher:
            model, call.counts = batcher.model, batcher.counts
            if len(head_bytes) > _LARGE_JSON:
                request = await asyncio.to_thread(_parsed, head_bytes, binary, model.inputs, model.outputs)
            else:
                request = _parsed(head_bytes, binary, model.inputs, model.outputs)
            limit = min(self._settings.timeout, request.timeout or self._settings.timeout)
            results = await batcher.submit(request, limit, time.perf_counter() - call.began)
        content, headers = protocol.encode(request, results, model.outputs, model.name, model.version)
        return Answer(200, content, headers)

    async def _body(self, call: Call) -> bytes:
        """The body of a request, within all limits."""
        settings = self._settings
        announced = call.headers.get("content-length", "")
        size = int(announced) if announced.isdecimal() and len(announced) < 20 else settings.max_body
        if announced and size > settings.max_body:
            raise RequestError(413, f"the body has {size} bytes, and may have {settings.max_body}", {"connection": "close"})
        encoding = call.headers.get("content-encoding", "").strip().lower()
        reserved = size if not encoding else settings.max_body
        if self._bodies and self._bodies + reserved > settings.max_bodies:
            raise RequestError(503, "the server is busy with as many bytes as it may hold", {"retry-after": "1"})
        self._bodies += reserved
        call.reserved = reserved
        try:
            async with asyncio.timeout(settings.body_timeout):
                body = await call.body(settings.max_body)
        except TimeoutError:
            raise RequestError(
                408, f"the body did not arrive within {settings.body_timeout:g} s", {"connection": "close"}
            ) from None
        return protocol.decompressed(body, encoding, settings.max_body)


def _parsed(head: memoryview, binary: memoryview, inputs: Any, outputs: Any) -> protocol.InferRequest:
    return protocol.parse(protocol.parsed_json(head), binary, inputs, outputs)


def _authority(origin: str) -> str | None:
    """The host and port in a header Origin such as ``http://localhost:8000``; None where there is none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _hostname(host: str) -> str:
    """The name in a header such as ``localhost:8000`` or ``[::1]:8000``."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
