"""Two connection cores, or one and a peer made of raw frames, moved by hand: no socket, no clock, no task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.support import wire
from transport.config import TransportConfig
from transport.errors import StatusCode
from transport.protocol import calls
from transport.protocol.connection import ConnectionCore
from transport.protocol.events import ConnectionFailed, Event, RequestReceived
from transport.protocol.stream import END, NOTHING, StreamCore

Cut = Callable[[bytes], Iterable[bytes]]
"""How octets are cut into reads."""


def whole(octets: bytes) -> Iterable[bytes]:
    """All at once."""
    return [octets] if octets else []


def every(size: int) -> Cut:
    """`size` octets at a time."""
    return lambda octets: [octets[at : at + size] for at in range(0, len(octets), size)]


def sent(core: ConnectionCore, size: int = 1 << 20) -> bytes:
    """Everything that a core has to send now."""
    out = b""
    while taken := core.data_to_send(size):
        out += b"".join(taken)
    return out


class Pair:
    """A client and a server core, with what each of them reported."""

    def __init__(
        self,
        config: TransportConfig | None = None,
        *,
        cut: Cut = whole,
    ) -> None:
        self.now = 0.0
        self.cut = cut
        config = config or TransportConfig()
        self.client = ConnectionCore(config, client=True, now=self.now)
        self.server = ConnectionCore(config, client=False, now=self.now)
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.up = bytearray()
        """All octets that the client has sent."""
        self.down = bytearray()
        """All octets that the server has sent."""
        self.exchange()

    def exchange(self) -> None:
        """Move octets both ways until neither has any."""
        self.client_events += self.client.events.take()
        self.server_events += self.server.events.take()
        while True:
            up, down = sent(self.client), sent(self.server)
            if not up and not down:
                return
            self.up += up
            self.down += down
            for part in self.cut(up):
                self.server_events += self.server.receive_data(part, self.now)
            for part in self.cut(down):
                self.client_events += self.client.receive_data(part, self.now)
            self.client_events += self.client.events.take()
            self.server_events += self.server.events.take()

    def open(self, path: str = "/test.Test/Method", **options: Any) -> StreamCore:
        """Open a call at the client; nothing is moved."""
        return self.client.open_stream(request(path, **options))

    def accepted(self) -> StreamCore:
        """The server's end of the newest call."""
        return self.requests()[-1].stream

    def requests(self) -> list[RequestReceived]:
        """All calls that the server was told of."""
        return [event for event in self.server_events if isinstance(event, RequestReceived)]

    def call(self, **options: Any) -> tuple[StreamCore, StreamCore]:
        """Both ends of a new call."""
        stream = self.open(**options)
        self.exchange()
        return stream, self.accepted()


def request(
    path: str = "/test.Test/Method",
    *,
    timeout_s: float | None = None,
    metadata: Iterable[tuple[str, str | bytes]] = (),
) -> calls.Headers:
    """The fields of a request."""
    return calls.request_headers(path, "test", scheme="http", timeout_s=timeout_s, metadata=metadata)


def take(stream: StreamCore) -> Any:
    """`next_message`, for who knows what will come."""
    return stream.next_message()


def drain_messages(core: ConnectionCore, stream: StreamCore) -> list[bytes]:
    """Take all complete messages, with credit for them, and wait for more."""
    found = []
    while (message := take(stream)) is not NOTHING and message is not END:
        core.windows.credit(stream)
        found.append(bytes(message))
    if message is NOTHING:
        core.windows.expect_message(stream)
    return found


def answer(core: ConnectionCore, stream: StreamCore, *messages: bytes) -> None:
    """Send messages and an OK."""
    for message in messages:
        core.outbound.send_message(stream, [message])
    core.outbound.end_call(stream, StatusCode.OK)


class Peer:
    """One core whose peer is the test, with raw frames."""

    def __init__(
        self, *, client: bool = False, config: TransportConfig | None = None, hello: bool = True
    ) -> None:
        self.core = ConnectionCore(config or TransportConfig(), client=client, now=0.0)
        self.now = 0.0
        self.events: list[Event] = []
        sent(self.core)
        if hello:
            self.send(wire.SERVER_HELLO if client else wire.CLIENT_HELLO)

    def send(self, *frames: bytes) -> list[wire.Frame]:
        """Send octets to the core; returns the frames that it answers with."""
        self.events += self.core.receive_data(b"".join(frames), self.now)
        return wire.parse(sent(self.core))

    def request(self, stream_id: int = 1, *, end: bool = False) -> StreamCore:
        """Open a call at a server core."""
        self.send(wire.headers(stream_id, end=end))
        return self.core.streams[stream_id]

    @property
    def failed(self) -> bool:
        """Whether the connection failed, and said so exactly once."""
        failures = [event for event in self.events if isinstance(event, ConnectionFailed)]
        assert len(failures) == (self.core.shutdown.failure is not None)
        return bool(failures)
