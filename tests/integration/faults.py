"""A proxy on loopback that does to a store's answers what bad days do: asyncio, in a thread of its own.

Each request is matched with the first rule that has turns left; without one it passes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

Headers = dict[str, str]  # names in lower case


@dataclass(frozen=True)
class Request:
    method: str
    target: str  # path and query, as sent
    headers: Headers

    @property
    def kind(self) -> str:
        if self.method == "HEAD":
            return "HEAD"
        listing = "list-type=" in self.target or "comp=list" in self.target or "prefix=" in self.target
        return "LIST" if listing else self.method


@dataclass
class Answer:
    """What the client gets: `body`, said to have `promised` bytes (as many as it has when None), then maybe an end."""

    status: int
    headers: Headers
    body: bytes
    promised: int | None = None
    reset: bool = False


Fault = Callable[["Proxy", Request], "Answer | None"]  # None: pass, changed as the fault saw fit


@dataclass
class Rule:
    fault: Callable
    turns: float = float("inf")
    kinds: tuple[str, ...] = ("GET", "HEAD", "LIST")
    matches: Callable[[Request], bool] = lambda _: True


# -- faults: what one request meets ------------------------------------------------------------------------------------


def answer(status: int, code: str = "", headers: Headers | None = None):
    """An S3 error in the place of the answer."""
    body = f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode() if code else b""

    async def fault(proxy, request):
        return Answer(status, {"content-type": "application/xml", **(headers or {})}, body)

    return fault


def slow_down():
    return answer(503, "SlowDown")


def denied():
    return answer(403, "AccessDenied")


def expired():
    return answer(400, "ExpiredToken")


async def reset_at_half(proxy, request):
    """The whole Content-Length, half the bytes, then a closed connection."""
    whole = await proxy.forward(request)
    return Answer(whole.status, whole.headers, whole.body[: len(whole.body) // 2], len(whole.body), reset=True)


async def reset_at_once(proxy, request):
    return Answer(0, {}, b"", reset=True)


async def short(proxy, request):
    """Half the bytes, and a Content-Length that agrees with them."""
    whole = await proxy.forward(request)
    return Answer(whole.status, whole.headers, whole.body[: len(whole.body) // 2])


async def ignore_range(proxy, request):
    """The whole object, status 200."""
    return await proxy.forward(Request(request.method, request.target, {**request.headers, "range": ""}))


def stall(seconds: float):
    async def fault(proxy, request):
        await asyncio.sleep(seconds)
        return await proxy.forward(request)

    return fault


def first(act: Callable[[], None]):
    """Do something, to the object say, before the request passes."""

    async def fault(proxy, request):
        act()
        return await proxy.forward(request)

    return fault


# -- the proxy ---------------------------------------------------------------------------------------------------------


@dataclass
class Proxy:
    """Listens at `endpoint`; `requests` so far; each answer comes after `delay_s`, its body at `bytes_per_s`."""

    upstream: str
    endpoint: str = ""
    delay_s: float = 0.0
    bytes_per_s: float = float("inf")
    rules: list[Rule] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    active: int = 0
    most_active: int = 0

    def add(self, fault, turns: float = float("inf"), kinds=("GET", "HEAD", "LIST"), matches=lambda _: True) -> None:
        self.rules.append(Rule(fault, turns, kinds, matches))

    def count(self, kind: str) -> int:
        return sum(request.kind == kind for request in self.requests)

    def clear(self) -> None:
        self.rules.clear()
        self.requests.clear()
        self.most_active = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                self.active += 1
                self.most_active = max(self.active, self.most_active)
                try:
                    if self.delay_s:
                        await asyncio.sleep(self.delay_s)
                    found = await self._answer(request)
                    await self._send(writer, request, found)
                finally:
                    self.active -= 1
                if found.reset:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the proxy ends
        finally:
            writer.close()

    async def _answer(self, request: Request) -> Answer:
        for rule in self.rules:
            if rule.turns > 0 and request.kind in rule.kinds and rule.matches(request):
                rule.turns -= 1
                return await rule.fault(self, request) or await self.forward(request)
        return await self.forward(request)

    async def _send(self, writer: asyncio.StreamWriter, request: Request, found: Answer) -> None:
        if found.status:
            length = len(found.body) if found.promised is None else found.promised
            if request.method == "HEAD":
                length, body = int(found.headers.get("content-length", 0)), b""
            else:
                body = found.body
            lines = [f"HTTP/1.1 {found.status} X"]
            lines += [f"{k}: {v}" for k, v in found.headers.items() if k not in _HOP]
            writer.write("\r\n".join([*lines, f"content-length: {length}", "", ""]).encode("latin-1"))
            step = len(body) if self.bytes_per_s == float("inf") else 16384
            for at in range(0, len(body), step or 1):
                writer.write(body[at : at + step])
                await writer.drain()
                if self.bytes_per_s != float("inf"):
                    await asyncio.sleep(step / self.bytes_per_s)
            await writer.drain()
        if found.reset:
            await asyncio.sleep(0.01)  # what was written is on its way
            writer.transport.abort()

    async def forward(self, request: Request) -> Answer:
        """What the store itself answers."""
        parts = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        headers = {k: v for k, v in request.headers.items() if v and k not in ("connection", "content-length")}
        lines = [f"{request.method} {request.target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1"))
        try:
            raw = await reader.read()
        finally:
            writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        status, found = _parse_head(head.decode("latin-1"))
        if found.get("transfer-encoding") == "chunked":
            body = _dechunk(body)
        return Answer(int(status.split(" ")[1]), found, body)


_HOP = ("connection", "content-length", "transfer-encoding", "keep-alive")


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, headers = _parse_head(head.removesuffix("\r\n\r\n"))
    await reader.readexactly(int(headers.get("content-length", 0)))
    method, target, _ = line.split(" ", 2)
    return Request(method, target, headers)


def _parse_head(head: str) -> tuple[str, Headers]:
    line, *fields = head.split("\r\n")
    return line, {k.strip().lower(): v.strip() for k, v in (field.split(":", 1) for field in fields)}


def _dechunk(body: bytes) -> bytes:
    out, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if not size:
            return b"".join(out)
        out.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


@contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    """A running proxy in front of `upstream`, on a free port."""
    made = Proxy(upstream)
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=1 << 20)
        made.endpoint = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]  # noqa: UP031
        started.set()
        await server.serve_forever()

    def thread() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            for left in asyncio.all_tasks(loop):
                left.cancel()
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()

    task = loop.create_task(run())
    runner = threading.Thread(target=thread, daemon=True)
    runner.start()
    started.wait(10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(task.cancel)
        runner.join(5)
