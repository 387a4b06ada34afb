"""HEADERS and CONTINUATION (RFC 9113 sections 6.2 and 6.10): header lists to frames, and frames to header lists.

Coding and checking of lists is `header_blocks`; which list may come when is `peer_events`. The frame reader has seen to
it that nothing stands between the frames of a block, and `inbound` bounds their octets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import hpack

from transport.errors import ErrorCode, RemoteProtocolError
from transport.protocol import frames
from transport.protocol.header_blocks import BlockDecoder, BlockEncoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FRAME_BYTES_MAX: Final = 16_384
"""Of a frame that we send: every peer takes as much (section 4.2)."""
_FRAMES_MAX: Final = 64
"""Of one header block that we take."""
_PRIORITY_BYTES: Final = 5
_OCTETS: Final = re.compile(r""":? (?:from )?(?:<memory at |b['"]).*""", re.DOTALL)
"""How hpack ends some of its messages: with an address in this process, which is not for the peer, or with the rest of
the block, which is not for the log: it may be long, and have credentials in it."""


class HeaderFrames:
    """The header blocks of one connection, both ways.

    Args:
        list_bytes_max: The longest list that is decoded, in octets as HTTP/2 counts them. A longer one ends the
            connection: decoding must not stop inside a block, else no later one can be decoded.
    """

    def __init__(self, list_bytes_max: int) -> None:
        self.encoder = BlockEncoder()
        self._decoder = BlockDecoder(list_bytes_max)
        self._parts: list[bytes] = []
        self._end_stream = False

    def receive_untrusted(
        self, kind: int, flags: int, stream_id: int, frame: memoryview
    ) -> tuple[Sequence[tuple[bytes, bytes]], bool] | None:
        """Take a whole frame.

        Returns:
            The list, and whether it ends its stream; None: the block goes on in the next frame.

        Raises:
            RemoteProtocolError: The frame, or the block, is malformed; the connection cannot go on.
        """
        if kind == frames.CONTINUATION:
            self._parts.append(bytes(frame[frames.HEADER_BYTES :]))
        else:
            self._parts = [_fragment_untrusted(flags, stream_id, frame)]
            self._end_stream = bool(flags & frames.FLAG_END_STREAM)
        if len(self._parts) > _FRAMES_MAX:
            raise RemoteProtocolError(f"header block of over {_FRAMES_MAX} frames")
        if not flags & frames.FLAG_END_HEADERS:
            return None
        block = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        return self._decode_untrusted(block), self._end_stream

    def make(self, stream_id: int, headers: Iterable[tuple[bytes, bytes]], *, end_stream: bool) -> bytes:
        """The frames of a list. Nothing looks at its fields any more: `calls` makes lawful ones."""
        block = self.encoder.encode(headers)
        first = block[:_FRAME_BYTES_MAX]
        flags = frames.FLAG_END_STREAM if end_stream else 0
        if len(first) == len(block):
            return _frame(frames.HEADERS, flags | frames.FLAG_END_HEADERS, stream_id, block)
        made = [_frame(frames.HEADERS, flags, stream_id, first)]
        for at in range(_FRAME_BYTES_MAX, len(block), _FRAME_BYTES_MAX):
            part = block[at : at + _FRAME_BYTES_MAX]
            last = at + len(part) == len(block)
            made.append(_frame(frames.CONTINUATION, frames.FLAG_END_HEADERS if last else 0, stream_id, part))
        return b"".join(made)

    def _decode_untrusted(self, block: bytes) -> Sequence[tuple[bytes, bytes]]:
        try:
            return self._decoder.decode(block, raw=True)
        except hpack.OversizedHeaderListError as error:
            raise RemoteProtocolError(str(error), ErrorCode.ENHANCE_YOUR_CALM) from error
        except Exception as error:  # also what hpack does not foresee
            raise RemoteProtocolError(
                f"header block that cannot be decoded: {_OCTETS.sub('', str(error))}",
                ErrorCode.COMPRESSION_ERROR,
            ) from error


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    size = len(payload)
    return frames.pack_header(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def _fragment_untrusted(flags: int, stream_id: int, frame: memoryview) -> bytes:
    """The part of a header block in a HEADERS frame, without padding and priority, which nobody goes by any more."""
    if not stream_id:
        raise RemoteProtocolError("HEADERS on stream 0")
    at, end = frames.HEADER_BYTES, len(frame)
    if not flags & (frames.FLAG_PADDED | frames.FLAG_PRIORITY):
        return bytes(frame[at:])
    if flags & frames.FLAG_PADDED:
        if at == end:
            raise RemoteProtocolError("padded HEADERS without a pad length", ErrorCode.FRAME_SIZE_ERROR)
        end -= frame[at]
        at += 1
    if flags & frames.FLAG_PRIORITY:
        depends_on = int.from_bytes(frame[at : at + 4], "big") & frames.STREAM_ID_MAX
        at += _PRIORITY_BYTES
        if at <= end and depends_on == stream_id:
            raise RemoteProtocolError(f"stream {stream_id} depends on itself")
    if at > end:
        raise RemoteProtocolError("HEADERS shorter than its padding and priority")
    return bytes(frame[at:end])
