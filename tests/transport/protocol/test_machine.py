"""A random walk over two connection cores, checked against a model after every step.

The model knows only what was sent on each stream and what was taken from it. Octets travel in two pipes that deliver
any part of what is in them; a third hand puts SETTINGS into the pipe to the server, so that its windows for what it
sends shrink, grow and go negative in mid-stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support import wire
from tests.support.pair import request
from transport.config import TransportConfig
from transport.errors import LocalProtocolError, StatusCode, StreamRefused, StreamReset
from transport.protocol.connection import ConnectionCore
from transport.protocol.events import ConnectionFailed, Event, RequestReceived, StreamWritable
from transport.protocol.state import SENDABLE, StreamState
from transport.protocol.stream import END, NOTHING, StreamCore

CONFIGS = st.builds(
    TransportConfig,
    stream_window_bytes=st.sampled_from([50, 100, 1_000, 70_000]),
    connection_window_bytes=st.sampled_from([65_535, 100_000]),
    outbound_frame_bytes_max=st.sampled_from([9, 300, 20_000]),
    send_buffer_bytes=st.sampled_from([1, 500, 2_000]),
    receive_buffer_bytes=st.sampled_from([17 * 1024, 64 * 1024]),
    message_bytes_max=st.just(200_000),
    streams_max=st.just(4),
    handshake_timeout_s=st.just(1e6),
    first_message_timeout_s=st.just(1e6),
    ping_timeout_s=st.just(1e6),
)


@dataclass(eq=False)
class End:
    """One end of a call and the model of what it sent."""

    core: ConnectionCore
    stream: StreamCore
    other: End | None = None
    sent: list[bytes] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)
    over: bool = False


class Machine(RuleBasedStateMachine):
    """See the module."""

    @initialize(client=CONFIGS, server=CONFIGS, calls=st.integers(0, 4))
    def start(self, client: TransportConfig, server: TransportConfig, calls: int) -> None:
        self.now = 0.0
        self.client = ConnectionCore(client, client=True, now=0.0)
        self.server = ConnectionCore(server, client=False, now=0.0)
        self.pipes = {True: bytearray(), False: bytearray()}
        self.begun = False  # the client's preface has been written
        self.changes = 0
        self.ends: list[End] = []
        self.serial = 0
        self.draining = False
        if calls:
            self.move_all()
            for _ in range(calls):
                self.open()
            self.move_all()

    def move_all(self) -> None:
        for up in (True, False, True, False):
            self.write(up, 1 << 20)
            self.deliver(up, 1 << 20)

    # ------------------------------------------------------------------ bytes

    @rule(up=st.booleans(), size=st.sampled_from([1, 100, 5_000, 1 << 20]))
    def write(self, up: bool, size: int) -> None:
        """One write of an end's writer: frames go into the pipe whole."""
        core = self.client if up else self.server
        self.pipes[up] += b"".join(core.data_to_send(size))
        self.begun |= up
        self.look(core)

    @rule(up=st.booleans(), size=st.sampled_from([1, 3, 9, 50, 700, 1 << 20]))
    def deliver(self, up: bool, size: int) -> None:
        pipe = self.pipes[up]
        part = bytes(pipe[:size])
        del pipe[:size]
        receiver = self.server if up else self.client
        events = receiver.receive_data(part, self.now)
        self.look(receiver, events)

    def look(self, core: ConnectionCore, events: Sequence[Event] = ()) -> None:
        for event in [*events, *core.events.take()]:
            if isinstance(event, ConnectionFailed):
                raise AssertionError(f"the connection failed: {event.error}")
            if isinstance(event, RequestReceived):
                partner = next(
                    end
                    for end in self.ends
                    if end.stream.stream_id == event.stream.stream_id and end.core is self.client
                )
                partner.other = End(core, event.stream, partner)
                self.ends.append(partner.other)
            elif isinstance(event, StreamWritable):
                assert event.stream.outgoing_bytes < core.config.send_buffer_bytes or event.stream.failure

    # ------------------------------------------------------------------ calls

    @precondition(lambda self: len(self.ends) < 12)
    @rule()
    def open(self) -> None:
        if not self.client.can_open:
            return
        try:
            stream = self.client.open_stream(request())
        except StreamRefused:
            assert self.client.shutdown.closing
            return
        self.ends.append(End(self.client, stream))
        self.look(self.client)

    def pick(self, number: int) -> End | None:
        return self.ends[number % len(self.ends)] if self.ends else None

    @rule(number=st.integers(0, 99), size=st.sampled_from([0, 1, 4, 95, 994, 995, 996, 3_000, 9_000]))
    def send(self, number: int, size: int) -> None:
        end = self.pick(number)
        if end is None:
            return
        self.serial += 1
        message = (b"%d." % self.serial * (size // 2 + 1))[:size]
        try:
            end.core.outbound.send_message(end.stream, [message[: size // 3], message[size // 3 :]])
        except LocalProtocolError:
            assert end.stream.end_requested or end.stream.state not in SENDABLE
        except (StreamReset, StreamRefused):
            assert end.stream.failure is not None
        else:
            end.sent.append(message)

    @rule(number=st.integers(0, 99))
    def end(self, number: int) -> None:
        end = self.pick(number)
        if end is None:
            return
        if end.core is self.client:
            end.core.outbound.end_stream(end.stream)
        else:
            end.core.outbound.end_call(end.stream, StatusCode.OK)
        self.look(end.core)

    @rule(number=st.integers(0, 99))
    def reset(self, number: int) -> None:
        end = self.pick(number)
        if end is not None:
            end.core.outbound.reset(end.stream)
            self.look(end.core)

    @rule(number=st.integers(0, 99))
    def wait_room(self, number: int) -> None:
        """A task waits until more can be sent, as the shell's do."""
        end = self.pick(number)
        if end is not None and self.must_wait(end):
            end.stream.sender_waiting = True

    @staticmethod
    def must_wait(end: End) -> bool:
        """Whether the send buffer has no room, and may have some yet."""
        full = end.stream.outgoing_bytes >= end.core.config.send_buffer_bytes
        return full and end.stream.failure is None and end.stream.state in SENDABLE

    @rule(number=st.integers(0, 99), wait=st.booleans())
    def take(self, number: int, wait: bool) -> None:
        end = self.pick(number)
        if end is not None:
            self.take_from(end, wait)

    def take_from(self, end: End, wait: bool) -> bool:
        try:
            message: Any = end.stream.next_message()
        except (StreamReset, StreamRefused):
            end.over = True
            return False
        if message is END:
            end.over = True
            assert end.other is not None
            assert end.taken == end.other.sent, "the end came before all messages"
            return False
        if message is NOTHING:
            if wait:
                end.core.windows.expect_message(end.stream)
            return False
        end.core.windows.credit(end.stream)
        end.taken.append(bytes(message))
        return True

    # ------------------------------------------------------------------ the third hand, time, goodbye

    @rule(size=st.sampled_from([0, 1, 50, 1_000, 65_535, 100_000]))
    def change_window(self, size: int) -> None:
        """Put SETTINGS into the client's octets, where a frame of its own ends."""
        if self.begun and not self.pipes[True] and self.changes < 20:
            self.changes += 1
            size = min(size, self.client.config.stream_window_bytes)  # the client holds the server to its own
            self.pipes[True] += wire.settings((wire.INITIAL_WINDOW_SIZE, size))

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        for core in (self.client, self.server):
            core.bytes_received(0, self.now)
            core.handle_deadline(self.now)
            assert core.next_deadline() > self.now

    @precondition(lambda self: len(self.ends) > 4)
    @rule()
    def drain(self) -> None:
        self.server.shutdown.drain()
        self.draining = True
        self.look(self.server)

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def connection_credit_is_never_lost(self) -> None:
        """F1, F2, F3, F5."""
        for core in (self.client, self.server) if hasattr(self, "client") else ():
            window = core.windows.connection
            assert window.outstanding == 0
            assert window.available + window.owed == window.size
            assert window.owed < (window.size + 1) // 2 + 1

    @invariant()
    def streams_are_consistent(self) -> None:
        """F1, F4 for each stream; what was delivered is what was sent, in order."""
        for end in getattr(self, "ends", ()):
            stream = end.stream
            window = stream.receive_window
            assert stream.buffered_bytes >= 0
            # A frame counts in the window from its header on, its payload in the stream as it comes.
            assert window.outstanding >= stream.body_bytes - stream._credited >= 0
            assert sum(map(len, stream.outgoing)) == stream.outgoing_bytes
            assert (stream.stream_id in end.core.streams) == (stream.state is not StreamState.CLOSED)
            if end.other is not None:
                assert end.taken == end.other.sent[: len(end.taken)]
            if stream.scheduled and stream.state in SENDABLE:
                assert stream in end.core.outbound.queue._round

    @invariant()
    def who_waits_for_room_is_told(self) -> None:
        """F7: as soon as there is some, or never will be."""
        for end in getattr(self, "ends", ()):
            assert not end.stream.sender_waiting or self.must_wait(end)

    @invariant()
    def who_can_send_is_in_line(self) -> None:
        """F7, F9: no stream with octets and window is forgotten by the scheduler."""
        for end in getattr(self, "ends", ()):
            stream = end.stream
            if stream.state in SENDABLE and stream.outgoing_bytes and stream.send_window.available > 0:
                assert stream.scheduled

    def teardown(self) -> None:
        """With everything delivered, taken and windows reopened, every call that was not reset completes."""
        if not hasattr(self, "client"):
            return
        for _ in range(50):
            self.write(True, 1 << 20)
            self.write(False, 1 << 20)
            self.deliver(True, 1 << 30)
            self.deliver(False, 1 << 30)
        self.changes = 0
        self.change_window(100_000)
        for end in self.ends:
            if end.core is self.client:
                self.client.outbound.end_stream(end.stream)
        quiet = turns = 0
        while quiet < 3:
            busy = False
            turns += 1
            assert turns < 20_000, "octets move for ever"
            self.now += 1.0  # budgets refill
            for end in self.ends:
                while self.take_from(end, True):
                    busy = True
                if end.core is self.server and end.stream.remote_ended and not end.stream.inbox:
                    self.server.outbound.end_call(end.stream, StatusCode.OK)
            for core, up in ((self.client, True), (self.server, False)):
                while taken := core.data_to_send(1 << 20):
                    busy = True
                    self.pipes[up] += b"".join(taken)
                self.look(core)
                self.deliver(up, 1 << 30)
            quiet = 0 if busy else quiet + 1
        for end in self.ends:
            assert end.over, f"stream {end.stream.stream_id} hangs"
            if end.other is not None and end.stream.failure is None and end.other.stream.failure is None:
                assert end.taken == end.other.sent
        assert not self.client.streams
        assert not self.server.streams
        if self.draining:
            assert self.server.shutdown.drained


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
