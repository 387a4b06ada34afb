"""Cuts received octets into frames without waiting for whole DATA frames.

The reader owns one receive buffer, which is small until reads fill it and small again after many that do not: most
connections are idle, and ten thousand of them must not hold 256 KiB each. Payload of DATA is handed on as it arrives,
so that a frame of any size costs no memory; other frames are handed on whole, and are short. While a long message is
being assembled, the socket is offered the message's own memory first (`buffers`), so that its octets are copied by the
kernel alone.

Knows frame headers; knows no stream states, windows or meanings: these are the handler's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from transport.errors import ErrorCode, RemoteProtocolError
from transport.protocol import frames

if TYPE_CHECKING:
    from transport.config import TransportConfig
    from transport.protocol.stream import StreamCore

_DIRECT_BYTES_MIN: Final = 16 * 1024
"""A read straight into a message is worth its longer call from this size on."""
_DIRECT_SPILL_BYTES: Final = 16 * 1024
"""What such a read may take beyond the message: the next frame headers, and little that must be copied."""
_BUFFER_BYTES_MIN: Final = 4 * 1024
"""The receive buffer of a connection on which little comes."""
_BUFFER_GROWTH: Final = 8
_OTHER_BEGINNINGS: Final = {
    b"\x16\x03": "TLS",
    b"PROXY ": "the PROXY protocol",
    b"\r\n\r\n\0\r\nQUIT\n": "the PROXY protocol",
}
"""What clients and proxies speak that are set up for another kind of server, by how it begins."""
_SMALL_READS: Final = 100
"""Reads in a row, each of which the smallest buffer would have held, after which the buffer is the smallest again."""


_TURN: Final = 128
"""The work of one turn: a DATA frame that is not small counts 1, another frame 4, and 1 more for each 16 octets. That
is about a millisecond, whatever a peer sends; the rest waits for the next turn (`transport.fairness`)."""
_SMALL_BYTES: Final = 256
_EXACT_BYTES: Final = {frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
"""Length of the frames that have but one; another ends the connection (RFC 9113 section 4.2)."""
_SETTING_BYTES: Final = 6
_HEADER_KINDS: Final = frozenset({frames.HEADERS, frames.CONTINUATION})


class FrameHandler(Protocol):
    """Gives frames their meaning. Each method may raise RemoteProtocolError, which ends the connection."""

    def begin_data(self, stream_id: int, length: int, padding: int, flags: int) -> StreamCore | None:
        """A DATA frame's header; None: its payload is to be discarded."""

    def data(self, stream: StreamCore, payload: memoryview) -> bool:
        """Some of its payload; False: the rest of it is to be discarded."""

    def data_in_place(self, stream: StreamCore, size: int) -> bool:
        """Some of its payload, which is in the stream's message already; False as above."""

    def end_data(self, stream: StreamCore, flags: int) -> None:
        """All of it was handed on."""

    def control(self, kind: int, flags: int, stream_id: int, frame: memoryview) -> None:
        """A whole frame of another kind, header included; the view is valid during the call only."""

    def part_of_headers(self) -> None:
        """A part of a frame of header fields, which may be long; the whole of it, or another part, follows."""


class Turn:
    """What is left of the present turn; work beyond a frame's own is charged to it."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0

    def charge(self, cost: int) -> None:
        """Count work that one frame has made: 1 is that of a DATA frame."""
        self.left -= cost


class FrameReader:
    """The receive buffer of a connection and the position in the frame that is arriving."""

    def __init__(
        self,
        config: TransportConfig,
        handler: FrameHandler,
        turn: Turn,
        *,
        header_block_bytes_max: int,
        expect_preface: bool,
    ) -> None:
        self._handler = handler
        self._turn = turn
        self._buffer_bytes_max = config.receive_buffer_bytes
        self._buffer = bytearray(min(_BUFFER_BYTES_MIN, config.receive_buffer_bytes))
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._small_reads = 0
        self._frame_bytes_max = config.inbound_frame_bytes_max
        self._control_bytes_max = config.control_frame_bytes_max
        # A peer may send a header block as one frame, as long as we have announced: grpcio does.
        fits_bytes = config.receive_buffer_bytes - frames.HEADER_BYTES - 1
        self._header_bytes_max = max(self._control_bytes_max, min(header_block_bytes_max, fits_bytes))
        self._preface_left = frames.PREFACE if expect_preface else b""
        self._stream: StreamCore | None = None
        self._flags = 0
        self._data_left = 0  # octets of DATA payload to hand on
        self._skip_left = 0  # octets to drop: padding, discarded payload, unknown frames
        self._direct_bytes = 0  # octets of message memory offered by `buffers`
        self._at = 0  # octets of the buffer that were handed on in earlier turns
        self._read_bytes = 0
        self.unread = False
        """Whole frames may be left in the buffer, for the next turn: `advance_untrusted(0)` goes on."""
        self.headers_open = 0
        """The stream whose header block is unfinished, or 0: only its CONTINUATION may follow (section 6.10)."""

    def buffers(self) -> list[memoryview]:
        """Memory for the next octets of the connection, to be filled in this order."""
        room = self._view[self._filled :]
        self._direct_bytes = 0
        if self._stream is not None and self._filled == 0 and self._data_left >= _DIRECT_BYTES_MIN:
            target = self._stream.assembler.target
            if target is not None and len(target) >= _DIRECT_BYTES_MIN:
                target = target[: self._data_left]
                self._direct_bytes = len(target)
                return [target, room[:_DIRECT_SPILL_BYTES]]
        return [room]

    def advance_untrusted(self, size: int) -> None:
        """Take `size` octets that were written into `buffers`; 0: only go on, if there are `unread` ones.

        Raises:
            RemoteProtocolError: The peer broke a rule of framing, or one of the handler's.
        """
        direct = min(size, self._direct_bytes)
        if direct:
            self._take_direct(direct)
        self._filled += size - direct
        full = self._filled == len(self._buffer)
        self._read_bytes = size or self._read_bytes
        self._turn.left, self.unread = _TURN, False
        at = self._at = self._parse()
        if self.unread:
            return
        if at:
            rest = self._filled - at
            if rest:
                self._view[:rest] = bytes(self._view[at : self._filled])
            self._filled = rest
        self._at = 0
        # Control frames alone do not make it grow: they would make for long turns.
        self._fit_buffer(self._read_bytes, full=full and (self._data_left > 0 or not at))

    def beginning(self, size: int) -> bytes:
        """The first octets in the buffer, as far as they are there; before the first frame, of the connection."""
        return bytes(self._view[: min(size, self._filled)])

    def _fit_buffer(self, size: int, *, full: bool) -> None:
        """Grow the buffer after a read that filled it, shrink it after many that needed little of it.

        A frame that does not fit fills the buffer; so there is always room for the next octet.
        """
        length = len(self._buffer)
        if full and length < self._buffer_bytes_max:
            self._replace_buffer(min(_BUFFER_GROWTH * length, self._buffer_bytes_max))
        if length <= _BUFFER_BYTES_MIN or size > _BUFFER_BYTES_MIN or self._filled:
            self._small_reads = 0
            return
        self._small_reads += 1
        if self._small_reads >= _SMALL_READS:
            self._replace_buffer(_BUFFER_BYTES_MIN)

    def _replace_buffer(self, length: int) -> None:
        buffer = bytearray(length)
        buffer[: self._filled] = self._view[: self._filled]
        self._buffer, self._view, self._small_reads = buffer, memoryview(buffer), 0

    def _take_direct(self, size: int) -> None:
        stream = self._stream
        assert stream is not None
        self._data_left -= size
        if not self._handler.data_in_place(stream, size):
            self._discard_rest()
        elif not self._data_left:
            self._end_of_payload()

    def _parse(self) -> int:
        """Hand on all frames, and parts of DATA, that are in the buffer; returns the octets used up."""
        at, filled, buffer, view, turn = self._at, self._filled, self._buffer, self._view, self._turn
        if self._preface_left:
            at = self._match_preface(filled)
        while at < filled:
            if self._data_left:
                take = min(self._data_left, filled - at)
                stream = self._stream
                assert stream is not None
                self._data_left -= take
                if not self._handler.data(stream, view[at : at + take]):
                    self._discard_rest()
                elif not self._data_left:
                    self._end_of_payload()
                at += take
                continue
            if self._skip_left:
                take = min(self._skip_left, filled - at)
                self._skip_left -= take
                at += take
                continue
            if filled - at < frames.HEADER_BYTES:
                break
            length = (buffer[at] << 16) | (buffer[at + 1] << 8) | buffer[at + 2]
            kind = buffer[at + 3]
            if turn.left <= 0:
                self.unread = True
                break
            turn.left -= 1 if kind == frames.DATA and length >= _SMALL_BYTES else 4 + (length >> 4)
            if length > self._frame_bytes_max:
                raise RemoteProtocolError(
                    f"frame of {length} octets, the limit is {self._frame_bytes_max}",
                    ErrorCode.FRAME_SIZE_ERROR,
                )
            used = (
                self._data_frame(at, length) if kind == frames.DATA else self._other_frame(at, length, kind)
            )
            if not used:
                break
            at += used
        return at

    def _match_preface(self, filled: int) -> int:
        size = min(len(self._preface_left), filled)
        if self._view[:size] != self._preface_left[:size]:
            raise RemoteProtocolError("not an HTTP/2 connection preface" + self._spoken_instead(filled))
        self._preface_left = self._preface_left[size:]
        return size

    def _spoken_instead(self, filled: int) -> str:
        first = bytes(self._view[:filled])
        names = [name for octets, name in _OTHER_BEGINNINGS.items() if first.startswith(octets)]
        return f", but {names[0]}" if names else ""

    def _data_frame(self, at: int, length: int) -> int:
        buffer = self._buffer
        if self.headers_open:
            raise RemoteProtocolError("DATA inside a header block")
        flags, used, padding = buffer[at + 4], frames.HEADER_BYTES, 0
        if flags & frames.FLAG_PADDED:
            if not length:
                raise RemoteProtocolError("padded DATA without a pad length", ErrorCode.FRAME_SIZE_ERROR)
            if self._filled - at < frames.HEADER_BYTES + 1:
                return 0
            padding = buffer[at + 9] + 1
            used += 1
            if padding > length:
                raise RemoteProtocolError(f"padding of {padding - 1} octets in DATA of {length}")
        stream_id = int.from_bytes(buffer[at + 5 : at + 9], "big") & frames.STREAM_ID_MAX
        stream = self._handler.begin_data(stream_id, length, padding, flags)
        if stream is None:
            self._skip_left = length - (used - frames.HEADER_BYTES)
            return used
        self._stream, self._flags = stream, flags
        self._data_left, self._skip_left = length - padding, max(padding - 1, 0)
        if not self._data_left:
            self._end_of_payload()
        return used

    def _other_frame(self, at: int, length: int, kind: int) -> int:
        bytes_max = self._header_bytes_max if kind in _HEADER_KINDS else self._control_bytes_max
        if length > bytes_max:
            if kind <= frames.CONTINUATION and kind != frames.GOAWAY:
                raise RemoteProtocolError(
                    f"frame of type {kind} with {length} octets, the limit is {bytes_max}",
                    ErrorCode.FRAME_SIZE_ERROR,
                )
            # Extensions are ignored whatever their size, and a GOAWAY may carry any amount of debug data.
            keep = 8 if kind == frames.GOAWAY else 0
        else:
            keep = length
        buffer = self._buffer
        flags = buffer[at + 4]
        _check_length(kind, flags, length)
        end = at + frames.HEADER_BYTES + keep
        if self._filled < end:
            if kind in _HEADER_KINDS:
                self._handler.part_of_headers()
            return 0
        stream_id = int.from_bytes(buffer[at + 5 : at + 9], "big") & frames.STREAM_ID_MAX
        self._track_header_block(kind, flags, stream_id)
        self._handler.control(kind, flags, stream_id, self._view[at:end])
        self._skip_left = length - keep
        return end - at

    def _track_header_block(self, kind: int, flags: int, stream_id: int) -> None:
        if self.headers_open and (kind != frames.CONTINUATION or stream_id != self.headers_open):
            raise RemoteProtocolError(f"frame of type {kind} on stream {stream_id} inside a header block")
        if kind == frames.CONTINUATION and not self.headers_open:
            raise RemoteProtocolError("CONTINUATION outside of a header block")
        if kind in _HEADER_KINDS:
            self.headers_open = 0 if flags & frames.FLAG_END_HEADERS else stream_id

    def _discard_rest(self) -> None:
        self._skip_left += self._data_left
        self._data_left = 0
        self._stream = None

    def _end_of_payload(self) -> None:
        stream, self._stream = self._stream, None
        assert stream is not None
        self._handler.end_data(stream, self._flags)


def _check_length(kind: int, flags: int, length: int) -> None:
    """Raise if a frame of this kind cannot have this length: from its header, since the rest may never come."""
    if kind == frames.SETTINGS:
        wrong = length if flags & frames.FLAG_ACK else length % _SETTING_BYTES
    else:
        wrong = _EXACT_BYTES.get(kind, length) - length
    if wrong:
        raise RemoteProtocolError(f"frame of type {kind} with {length} octets", ErrorCode.FRAME_SIZE_ERROR)
