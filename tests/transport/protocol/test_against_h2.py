"""A random walk of one core and a connection of h2: what each sends, the other takes, and both keep the same accounts.

h2 keeps every rule for streams, windows and header tables by itself, and shares no line with ours but hpack, and the
rules for header lists: what our two ends got wrong alike, `test_machine` would not see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.settings import SettingCodes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support import wire
from tests.support.pair import request, sent
from tests.transport.protocol.test_machine import CONFIGS
from transport.errors import StatusCode, TransportError
from transport.protocol.connection import ConnectionCore
from transport.protocol.events import ConnectionFailed, RequestReceived
from transport.protocol.state import SENDABLE, StreamState
from transport.protocol.stream import END, NOTHING, StreamCore

if TYPE_CHECKING:
    from transport.config import TransportConfig

_STREAMS: Final = 4
_NUMBERS: Final = st.integers(0, 99)
_SIZES: Final = st.sampled_from([0, 1, 4, 95, 3_000, 20_000])
_METADATA: Final = st.lists(
    st.sampled_from(
        [
            ("x-a", "b"),
            ("x-long", "v" * 9_000),
            ("authorization", "secret"),
            ("x-bin", b"\0\xff"),
            ("x-a", ""),
        ]
    ),
    max_size=3,
)


class H2Peer:
    """A peer made of h2: takes frames whole, and remembers what came, by stream."""

    def __init__(self, *, client: bool, window_bytes: int) -> None:
        config = h2.config.H2Configuration(client_side=client, header_encoding=None)
        self.connection = h2.connection.H2Connection(config)
        self.connection.initiate_connection()
        self.unread = b""
        self.lists: dict[int, list[Any]] = defaultdict(list)
        self.came: dict[int, bytearray] = defaultdict(bytearray)
        self.to_credit: dict[int, int] = defaultdict(int)
        self.waiting: dict[int, bytearray] = {}
        """What is still to be sent, of streams that it has not ended."""
        self.ending: set[int] = set()
        self.sent: dict[int, bytes] = defaultdict(bytes)
        self.reset: set[int] = set()
        self.unacknowledged = 1
        self.change(
            {SettingCodes.INITIAL_WINDOW_SIZE: window_bytes, SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS}
        )

    def change(self, values: dict[SettingCodes | int, int]) -> None:
        """Send SETTINGS."""
        self.connection.update_settings(values)
        self.unacknowledged += 1

    def receive(self, octets: bytes) -> None:
        """Take octets; a frame at a time, since h2 looks at its own MAX_FRAME_SIZE once for all that it is given."""
        self.unread += octets
        at = len(wire.PREFACE) if self.unread.startswith(wire.PREFACE[:3]) else 9 + self._length()
        while len(self.unread) >= max(9, at):
            frame, self.unread = self.unread[:at], self.unread[at:]
            for event in self.connection.receive_data(frame):
                self._on(event)
            at = 9 + self._length()

    def _length(self) -> int:
        return int.from_bytes(self.unread[:3], "big")

    def _on(self, event: h2.events.Event) -> None:
        assert not isinstance(event, h2.events.ConnectionTerminated)
        if isinstance(event, h2.events.SettingsAcknowledged):
            self.unacknowledged -= 1
        elif isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            self.came[event.stream_id] += event.data or b""
            self.to_credit[event.stream_id] += event.flow_controlled_length or 0
        elif isinstance(event, h2.events.StreamReset):
            assert event.stream_id is not None
            self.waiting.pop(event.stream_id, None)
            if event.error_code:
                self.reset.add(event.stream_id)
        elif isinstance(
            event, h2.events.RequestReceived | h2.events.ResponseReceived | h2.events.TrailersReceived
        ):
            assert event.stream_id is not None
            self.lists[event.stream_id].append(event.headers)
            if isinstance(event, h2.events.RequestReceived):
                self.connection.send_headers(event.stream_id, wire.RESPONSE)
                self.waiting[event.stream_id] = bytearray()

    def credit(self, share: float) -> None:
        """Give back some of what came."""
        for stream_id, size in self.to_credit.items():
            if given := int(size * share):
                self.to_credit[stream_id] -= given
                try:
                    self.connection.acknowledge_received_data(given, stream_id)
                except h2.exceptions.StreamClosedError:
                    self.connection.increment_flow_control_window(given)

    def flush(self, frame_bytes: int, padding: int | None = None) -> None:
        """Send one frame of each stream that has something to send, as far as the windows go; or its end."""
        for stream_id, waiting in list(self.waiting.items()):
            room = self.connection.local_flow_control_window(stream_id) - (padding or 0) - 1
            part = bytes(waiting[: max(0, min(room, frame_bytes, 16_000))])
            if part:
                self.connection.send_data(stream_id, part, pad_length=padding)
                del waiting[: len(part)]
            elif not waiting and stream_id in self.ending:
                if self.connection.config.client_side:
                    self.connection.end_stream(stream_id)
                else:
                    self.connection.send_headers(stream_id, wire.TRAILERS, end_stream=True)
                del self.waiting[stream_id]


class Machine(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        config=CONFIGS,
        client=st.booleans(),
        window_bytes=st.sampled_from([0, 1, 50, 65_535]),
        calls=st.integers(0, _STREAMS),
    )
    def start(self, config: TransportConfig, client: bool, window_bytes: int, calls: int) -> None:
        self.now = 0.0
        self.core = ConnectionCore(config, client=client, now=0.0)
        self.peer = H2Peer(client=not client, window_bytes=window_bytes)
        self.window_bytes = window_bytes
        self.pipes = {True: bytearray(), False: bytearray()}
        self.streams: dict[int, StreamCore] = {}
        self.asked: dict[int, Any] = {}
        self.sent: dict[int, bytes] = defaultdict(bytes)
        self.taken: dict[int, bytes] = defaultdict(bytes)
        self.reset_by_us: set[int] = set()
        self.move_all()
        for _ in range(calls):
            self.open([], None)
        self.move_all()

    # ------------------------------------------------------------------ bytes

    @rule(ours=st.booleans(), size=st.sampled_from([1, 100, 1 << 20]))
    def write(self, ours: bool, size: int) -> None:
        self.pipes[ours] += (
            b"".join(self.core.data_to_send(size)) if ours else self.peer.connection.data_to_send()
        )
        self.look()

    @rule(ours=st.booleans(), size=st.sampled_from([1, 9, 50, 700, 1 << 20]))
    def deliver(self, ours: bool, size: int) -> None:
        part = bytes(self.pipes[ours][:size])
        del self.pipes[ours][:size]
        if ours:
            self.peer.receive(part)
        else:
            self.look(self.core.receive_data(part, self.now))

    def look(self, events: Any = ()) -> None:
        for event in [*events, *self.core.events.take()]:
            assert not isinstance(event, ConnectionFailed), event.error
            if isinstance(event, RequestReceived):
                stream_id = event.stream.stream_id
                self.streams[stream_id] = event.stream
                assert list(event.head.metadata) == self.asked[stream_id]

    def move_all(self) -> None:
        """Deliver everything; then both ends say the same of windows, streams and header tables."""
        for _ in range(4):
            for ours in (True, False):
                self.pipes[ours] += sent(self.core) if ours else self.peer.connection.data_to_send()
                self.look()
                self.deliver(ours, 1 << 30)
        core, other = self.core, self.peer.connection
        assert (
            core.outbound.queue.window.available
            == other._inbound_flow_control_window_manager.current_window_size
        )
        assert core.windows.connection.available == other.outbound_flow_control_window
        theirs = {number: each for number, each in other.streams.items() if not each.closed}
        assert core.streams.keys() == theirs.keys()
        for number, stream in core.streams.items():
            if stream.state in SENDABLE:
                assert (
                    stream.send_window.available == theirs[number]._inbound_window_manager.current_window_size
                )
            if not stream.remote_ended:
                assert stream.receive_window.available == theirs[number].outbound_flow_control_window
        coders = core._header_frames
        if not coders.encoder.table_size_changes:  # Told with the next block.
            assert coders.encoder.header_table.dynamic_entries == other.decoder.header_table.dynamic_entries
        assert coders._decoder.header_table.dynamic_entries == other.encoder.header_table.dynamic_entries

    # ------------------------------------------------------------------ calls

    @precondition(lambda self: len(self.streams) < 12)
    @rule(metadata=_METADATA, timeout_s=st.sampled_from([None, 1.0, 0.123_45]))
    def open(self, metadata: list[tuple[str, str | bytes]], timeout_s: float | None) -> None:
        fields = request(metadata=metadata, timeout_s=timeout_s)
        if self.core.client:
            if self.core.can_open:
                stream = self.core.open_stream(fields)
                self.streams[stream.stream_id] = stream
                self.look()
        elif self.peer.connection.open_outbound_streams < _STREAMS:
            stream_id = self.peer.connection.get_next_available_stream_id()
            self.asked[stream_id] = metadata
            self.peer.connection.send_headers(stream_id, fields)
            self.peer.waiting[stream_id] = bytearray()

    def pick(self, number: int) -> StreamCore | None:
        return list(self.streams.values())[number % len(self.streams)] if self.streams else None

    @rule(number=_NUMBERS, size=_SIZES, end=st.booleans())
    def send(self, number: int, size: int, end: bool) -> None:
        if (stream := self.pick(number)) is None:
            return
        try:
            self.core.outbound.send_message(stream, [bytes(size)])
        except TransportError:
            return
        self.sent[stream.stream_id] += wire.message(bytes(size))
        if end:
            self.end(stream)

    def end(self, stream: StreamCore) -> None:
        if self.core.client:
            self.core.outbound.end_stream(stream)
        else:
            self.core.outbound.end_call(stream, StatusCode.ABORTED, "no, é", b"details")
        self.look()

    @rule(number=_NUMBERS)
    def reset(self, number: int) -> None:
        if (stream := self.pick(number)) is not None and stream.state is not StreamState.CLOSED:
            self.reset_by_us.add(stream.stream_id)
            self.core.outbound.reset(stream)
            self.look()

    @rule(number=_NUMBERS)
    def take(self, number: int) -> None:
        if (stream := self.pick(number)) is not None:
            for message in self.messages(stream):
                self.taken[stream.stream_id] += wire.message(message)

    def messages(self, stream: StreamCore) -> Iterator[bytes]:
        while True:
            try:
                message: Any = stream.next_message()
            except TransportError:
                return
            if message is END:
                return
            if message is NOTHING:
                self.core.windows.expect_message(stream)
                return
            self.core.windows.credit(stream)
            yield bytes(message)

    # ------------------------------------------------------------------ h2's side

    @rule(number=_NUMBERS, size=_SIZES, end=st.booleans(), frame_bytes=st.sampled_from([1, 300, 1 << 20]))
    def peer_sends(self, number: int, size: int, end: bool, frame_bytes: int) -> None:
        open_ = [stream_id for stream_id in self.peer.waiting if stream_id not in self.peer.ending]
        if open_:
            stream_id = open_[number % len(open_)]
            self.peer.waiting[stream_id] += wire.message(bytes(size))
            self.peer.sent[stream_id] += wire.message(bytes(size))
            if end:
                self.peer.ending.add(stream_id)
        self.peer.flush(frame_bytes, padding=number if number < 20 else None)

    @rule(number=_NUMBERS)
    def peer_resets(self, number: int) -> None:
        if self.peer.waiting:
            stream_id = list(self.peer.waiting)[number % len(self.peer.waiting)]
            self.peer.connection.reset_stream(stream_id)
            self.peer.reset.add(stream_id)
            del self.peer.waiting[stream_id]

    @rule(share=st.sampled_from([0.3, 1.0]))
    def peer_credits(self, share: float) -> None:
        self.peer.credit(share)

    @rule(
        more=st.sampled_from([0, 1, 1_000]),
        table_bytes=st.sampled_from([None, 0, 33, 100, 4_096, 65_536]),
        frame_bytes=st.sampled_from([None, 16_384, 20_000]),
    )
    def peer_changes(self, more: int, table_bytes: int | None, frame_bytes: int | None) -> None:
        if self.peer.unacknowledged:  # h2 takes one acknowledgement for those of several changes.
            return
        self.window_bytes += more  # h2 does not take the empty frame of an end in a window below 0.
        values = {
            SettingCodes.INITIAL_WINDOW_SIZE: self.window_bytes,
            SettingCodes.HEADER_TABLE_SIZE: table_bytes,
            SettingCodes.MAX_FRAME_SIZE: frame_bytes,
        }
        self.peer.change({code: value for code, value in values.items() if value is not None})

    @rule()
    def settle(self) -> None:
        self.move_all()

    # ------------------------------------------------------------------ what holds

    @invariant()
    def what_came_is_what_was_sent(self) -> None:
        for number, came in self.peer.came.items() if hasattr(self, "peer") else ():
            assert self.sent[number].startswith(bytes(came))
            assert self.peer.sent[number].startswith(self.taken[number])

    def teardown(self) -> None:
        """With everything read and all windows open, every call comes to its end, whole where nobody reset it."""
        if not hasattr(self, "core"):
            return
        self.move_all()
        self.window_bytes = 65_535
        self.peer_changes(0, None, None)
        turns = 0
        while turns < 5 or self.core.streams:
            turns += 1
            assert turns < 5_000, "a call hangs"
            self.now += 1.0
            self.core.bytes_received(0, self.now)
            self.core.handle_deadline(self.now)
            self.peer.ending |= self.peer.waiting.keys()
            self.peer.flush(1 << 20)
            self.peer.credit(1.0)
            for number, stream in enumerate(self.streams.values()):
                self.take(number)
                if self.core.client or stream.remote_ended:
                    self.end(stream)
            self.move_all()
        for number in self.streams.keys() - self.peer.reset - self.reset_by_us:
            assert self.peer.sent[number].startswith(self.taken[number])
            if self.core.client:
                assert self.taken[number] == self.peer.sent[number]
            else:
                assert self.peer.came[number] == self.sent[number]
                assert dict(self.peer.lists[number][-1])[b"grpc-status"] == b"10"


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
