"""Two connection cores talk: calls of every shape, whatever the cuts, at ordinary and at tiny bounds."""

from __future__ import annotations

import pytest

from tests.support import pair as support
from tests.support.configs import TINY
from tests.support.pair import Pair, answer, drain_messages, every, take, whole
from transport.config import TransportConfig
from transport.errors import CallFailed, LocalProtocolError, StatusCode, StreamReset
from transport.protocol.events import RequestReceived, StreamClosed
from transport.protocol.state import StreamState
from transport.protocol.stream import END, NOTHING

CONFIGS = {"default": TransportConfig(), "tiny": TINY}
WINDOW = TINY.stream_window_bytes
SIZES = [
    0,
    1,
    5,
    294,
    295,
    296,
    299,
    300,
    301,
    WINDOW - 6,
    WINDOW - 5,
    WINDOW - 4,
    WINDOW,
    WINDOW + 1,
    5_000,
    40_000,
]

both_configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def payload(size: int) -> bytes:
    return bytes(at % 251 for at in range(size))


def exchange_all(pair: Pair, down: list[bytes], up: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """One bidirectional call, everything sent at once; returns what arrived at the server and at the client."""
    stream, accepted = pair.call()
    for message in up:
        pair.client.outbound.send_message(stream, [message])
    pair.client.outbound.end_stream(stream)
    for message in down:
        pair.server.outbound.send_message(accepted, [message[:3], message[3:]])
    at_server: list[bytes] = []
    at_client: list[bytes] = []
    for _ in range(2_000):
        pair.exchange()
        at_server += drain_messages(pair.server, accepted)
        at_client += drain_messages(pair.client, stream)
        if accepted.remote_ended and not accepted.inbox:
            pair.server.outbound.end_call(accepted, StatusCode.OK)
        if stream.state is StreamState.CLOSED and not stream.inbox:
            break
    assert stream.next_message() is END
    assert accepted.next_message() is END
    assert stream.state is accepted.state is StreamState.CLOSED
    return at_server, at_client


@both_configs
@pytest.mark.parametrize("cut", [whole, every(1), every(7)], ids=["whole", "octets", "sevens"])
def test_every_size_arrives_in_both_directions(config: TransportConfig, cut: support.Cut) -> None:
    """Messages below, at and above every bound arrive whole and in order, however the octets are cut."""
    pair = Pair(config, cut=cut)
    expected = [payload(size) for size in (SIZES if cut is whole else SIZES[:-1])]
    assert exchange_all(pair, expected, expected) == (expected, expected)
    assert not pair.client.streams
    assert not pair.server.streams


def test_chunking_does_not_change_events() -> None:
    """One octet at a time gives the same events, in the same order, as everything at once."""
    told: list[list[str]] = []
    for cut in (whole, every(1), every(13)):
        pair = Pair(TINY, cut=cut)
        exchange_all(pair, [b"a" * 700, b"", b"b"], [b"c" * 300])
        events = [*pair.client_events, *pair.server_events]
        told.append(
            [type(event).__name__ for event in events if isinstance(event, RequestReceived | StreamClosed)]
        )
        assert pair.client.shutdown.failure is None
        assert pair.server.shutdown.failure is None
    assert told == [["StreamClosed", "RequestReceived", "StreamClosed"]] * 3


def test_answer_without_messages_is_trailers_only() -> None:
    """A call that ends before its first message gets one header block, and the client its status."""
    pair = Pair()
    stream, accepted = pair.call()
    pair.server.outbound.end_call(accepted, StatusCode.NOT_FOUND, "no table ö%", b"\x00details")
    pair.exchange()
    with pytest.raises(CallFailed) as caught:
        stream.next_message()
    assert caught.value.status is StatusCode.NOT_FOUND
    assert caught.value.message == "no table ö%"
    assert caught.value.details == b"\x00details"


def test_status_comes_after_the_last_message_and_again_on_every_call() -> None:
    """Messages before a failure are delivered; then the failure is raised as often as one asks."""
    pair = Pair()
    stream, accepted = pair.call()
    pair.server.outbound.send_message(accepted, [b"one"])
    pair.server.outbound.end_call(accepted, StatusCode.DATA_LOSS, "gone")
    pair.exchange()
    assert bytes(take(stream)) == b"one"
    depths = []
    for _ in range(3):
        with pytest.raises(CallFailed) as caught:
            stream.next_message()
        depth, traceback = 0, caught.value.__traceback__
        while traceback is not None:
            depth, traceback = depth + 1, traceback.tb_next
        depths.append(depth)
    assert len(set(depths)) == 1, "each call makes the traceback longer"


def test_metadata_timeout_and_path_arrive() -> None:
    """Custom fields, binary ones too, and the deadline reach the server as they were sent."""
    pair = Pair()
    metadata = (("x-trace", "a b c"), ("x-blob-bin", b"\x00\xff\x80"), ("x-empty-bin", b""))
    pair.call(path="/weir.v1.Scanner/Scan", timeout_s=1.5, metadata=metadata)
    head = pair.requests()[0].head
    assert head.path == "/weir.v1.Scanner/Scan"
    assert head.timeout_s == pytest.approx(1.5)
    assert head.metadata == metadata


def test_half_closed_client_still_receives() -> None:
    """After its half-close a client gets every message of the answer."""
    pair = Pair()
    stream, accepted = pair.call()
    pair.client.outbound.end_stream(stream)
    pair.client.outbound.end_stream(stream)
    pair.exchange()
    assert accepted.next_message() is END
    answer(pair.server, accepted, b"1", b"2")
    pair.exchange()
    assert drain_messages(pair.client, stream) == [b"1", b"2"]
    with pytest.raises(LocalProtocolError, match="end of this stream"):
        pair.client.outbound.send_message(stream, [b"late"])


def test_answer_before_the_clients_end_resets_the_rest() -> None:
    """A server that has answered closes the stream; the client still gets the whole answer and the status."""
    pair = Pair()
    stream, accepted = pair.call()
    answer(pair.server, accepted, b"done")
    pair.exchange()
    assert accepted.state is StreamState.CLOSED
    assert drain_messages(pair.client, stream) == [b"done"]
    assert stream.next_message() is END
    assert stream.state is StreamState.CLOSED
    with pytest.raises(StreamReset):
        pair.client.outbound.send_message(stream, [b"late"])


def test_window_update_after_our_end_changes_nothing() -> None:
    """Window that comes back for a request that was half-closed does not end it twice."""
    pair = Pair(TINY)
    stream, accepted = pair.call()
    pair.client.outbound.send_message(stream, [b"x" * 600])
    pair.exchange()
    pair.client.outbound.end_stream(stream)
    assert drain_messages(pair.server, accepted) == [b"x" * 600]  # its WINDOW_UPDATE crosses the end
    pair.exchange()
    pair.exchange()
    assert stream.state is StreamState.HALF_CLOSED_LOCAL
    answer(pair.server, accepted)
    pair.exchange()
    assert pair.client.shutdown.failure is None
    assert stream.next_message() is END


@pytest.mark.parametrize("end", ["client", "server"])
def test_reset_while_our_end_waits_in_line(end: str) -> None:
    """A reset between asking for the end of a stream and framing it leaves the connection usable."""
    pair = Pair()
    stream, accepted = pair.call()
    if end == "client":
        pair.client.outbound.end_stream(stream)
        pair.client.outbound.reset(stream)
    else:
        pair.client.outbound.reset(stream)
        octets = support.sent(pair.client)
        pair.server.outbound.end_call(accepted, StatusCode.OK)
        pair.server.receive_data(octets, 0.0)
    pair.exchange()
    assert accepted.state is StreamState.CLOSED
    exchange_all(pair, [b"x"], [b"y"])
    assert pair.client.shutdown.failure is None
    assert pair.server.shutdown.failure is None


def test_many_small_messages_leave_in_few_buffers() -> None:
    """A frame of thousands of tiny messages is one buffer: a vectored write takes no more than 1 024."""
    pair = Pair()
    stream, accepted = pair.call()
    for _ in range(20_000):
        pair.server.outbound.send_message(accepted, [b"x"])
    taken = pair.server.data_to_send(1 << 20)
    assert len(taken) < 100
    pair.client.receive_data(b"".join(taken), 0.0)
    pair.exchange()
    assert len(drain_messages(pair.client, stream)) == 20_000


def test_verb_that_raises_has_changed_nothing() -> None:
    """Parts that are no buffers, or not contiguous, are refused before anything of the message is queued."""
    pair = Pair()
    stream, accepted = pair.call()
    with pytest.raises(TypeError):
        pair.client.outbound.send_message(stream, [b"x" * 20_000, memoryview(b"y" * 20_000)[::2]])
    with pytest.raises(TypeError):
        pair.server.outbound.send_message(accepted, [memoryview(b"y" * 20_000)[::2]])
    assert not accepted.headers_sent
    with pytest.raises(LocalProtocolError, match="status"):
        pair.server.outbound.end_stream(accepted)
    with pytest.raises(LocalProtocolError, match="opens no streams"):
        pair.server.open_stream(support.request())
    pair.client.outbound.send_message(stream, [memoryview(b"\1\2\3\4").cast("I"), b"z"])
    pair.exchange()
    assert drain_messages(pair.server, accepted) == [b"\1\2\3\4z"]
    assert stream.outgoing_bytes == 0


def test_partial_message_is_not_delivered() -> None:
    """A message that has not come whole is not there."""
    pair = Pair(TINY)
    stream, accepted = pair.call()
    pair.client.outbound.send_message(stream, [b"x" * 5_000])
    pair.exchange()
    assert accepted.next_message() is NOTHING
    assert accepted.buffered_bytes == WINDOW
    pair.client.outbound.reset(stream)
    pair.exchange()
    with pytest.raises(StreamReset, match="CANCEL"):
        accepted.next_message()


def test_long_message_is_the_allocated_memory() -> None:
    """A long message arrives in the very object that `allocate` made, at the client as at the server."""
    made: list[bytearray] = []

    def allocate(size: int) -> bytearray:
        made.append(bytearray(size))
        return made[-1]

    pair = Pair()
    pair.client.table._allocate = allocate
    pair.server.table._allocate = allocate
    stream, accepted = pair.call()
    for core, other in ((pair.client, stream), (pair.server, accepted)):
        core.outbound.send_message(other, [payload(3_000_000)])
        core.outbound.send_message(other, [b"short"])
    pair.exchange()
    for received in (stream, accepted):
        message = take(received)
        assert any(message is one for one in made)
        assert message == payload(3_000_000)
        assert bytes(take(received)) == b"short"


def test_prefix_alone_is_not_worth_its_memory() -> None:
    """Five octets that announce 64 MiB make a server take 4 MiB at most; the rest comes with the evidence."""
    sizes: list[int] = []
    pair = Pair()

    def allocate(size: int) -> bytearray:
        sizes.append(size)
        return bytearray(size)

    pair.server.table._allocate = allocate
    stream, accepted = pair.call()
    pair.client.outbound.send_message(stream, [bytes(64 << 20)])
    pair.server.receive_data(b"".join(pair.client.data_to_send(1)), 0.0)
    assert accepted.assembler.partial_bytes > 0
    assert sizes == []
    while not accepted.inbox:
        pair.exchange()
        message = take(accepted)
        if message is NOTHING:
            pair.server.windows.expect_message(accepted)
            continue
        assert len(message) == 64 << 20
        break
    assert sizes == [64 << 20]
