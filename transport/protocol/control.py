"""The control plane: HEADERS, RST_STREAM, SETTINGS and PING by way of h2. Only this module and `header_blocks` know it.

DATA, WINDOW_UPDATE, GOAWAY and PRIORITY never reach h2, and it never makes one (docs/decisions/0001). Facts of h2 4.4
that shape this module:

* GOAWAY, sent or received, closes its state machine and every live stream with it. So ours are made in `frames`.
* It checks `content-length` against the DATA that it sees, and here it sees none: that check is switched off per
  stream and is made by `peer_events`.
* A stream past its own limit kills the connection. So its limit is above the one that we advertise, and
  `peer_events` refuses single streams.
* A header list past its decoder's limit kills the connection. So that limit is above the one that we advertise, too.
* It reads our MAX_FRAME_SIZE, raised, only once the peer has acknowledged it. So our SETTINGS are its initial values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hpack

from transport.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from transport.protocol import frames
from transport.protocol.header_blocks import BlockDecoder, BlockEncoder, HeaderRules

if TYPE_CHECKING:
    from transport.config import TransportConfig

Headers = list[tuple[bytes, bytes]]
"""Header or trailer fields in wire order, names in lower case."""

_CLOSED_REMEMBERED: Final = 4_096
"""Closed streams that h2 remembers; its own 65 536 cost 13 MB a connection."""
_STREAMS_MARGIN: Final = 100
_WALK_STREAMS_MIN: Final = 32
_HEADER_TABLE_BYTES_MAX: Final = 4096
_HEADER_LISTS: Final = 2
"""What is decoded of a header list, in limits on header lists. Decoding must not stop inside a block, else no later one
can be decoded; so a list that is somewhat too long is decoded, and refused by `peer_events`."""
_CODES = h2.settings.SettingCodes
_RESPONSES: Final = (h2.events.ResponseReceived, h2.events.InformationalResponseReceived)
_WITH_HEADERS: Final = (h2.events.RequestReceived, h2.events.TrailersReceived, *_RESPONSES)
_SETTINGS_KNOWN: Final = frozenset(int(code) for code in _CODES)


class _Connection(h2.connection.H2Connection):
    """h2 walks all streams whenever one is opened: 5 000 open ones cost 0.4 ms for the next.

    The walk counts them, for a limit that `peer_events` keeps itself, and forgets closed ones. Here it takes place when
    the streams have grown by a quarter, so that each pays for a few, however many there are.
    """

    MAX_CLOSED_STREAMS = _CLOSED_REMEMBERED
    _walk_at = 0

    def _open_streams(self, remainder: int) -> int:
        if len(self.streams) < self._walk_at:
            return 0  # within the limit: `peer_events` has seen to that
        count = super()._open_streams(remainder)
        self._walk_at = len(self.streams) * 5 // 4 + _WALK_STREAMS_MIN
        return count


class ControlPlane:
    """One end's h2 connection, fed with whole frames that the gate has let through."""

    def __init__(self, config: TransportConfig, *, client: bool) -> None:
        self._h2 = _Connection(
            h2.config.H2Configuration(
                client_side=client,
                header_encoding=None,
                # Ours are made in `calls`, and the peer's are checked by `_rules`.
                normalize_outbound_headers=False,
                validate_outbound_headers=False,
                validate_inbound_headers=False,
            )
        )
        self._h2.encoder = BlockEncoder()
        self._h2.decoder = BlockDecoder(_HEADER_LISTS * config.header_list_bytes_max)
        self._rules = HeaderRules(client=client)
        advertised: dict[h2.settings.SettingCodes, int] = {
            _CODES.HEADER_TABLE_SIZE: _HEADER_TABLE_BYTES_MAX,
            _CODES.INITIAL_WINDOW_SIZE: config.stream_window_bytes,
            _CODES.MAX_FRAME_SIZE: config.inbound_frame_bytes_max,
            _CODES.MAX_HEADER_LIST_SIZE: config.header_list_bytes_max,
        }
        if client:
            advertised[_CODES.ENABLE_PUSH] = 0
        else:
            advertised[_CODES.MAX_CONCURRENT_STREAMS] = config.streams_max
        ours = {**advertised, _CODES.MAX_CONCURRENT_STREAMS: config.streams_max + _STREAMS_MARGIN}
        self._h2.local_settings = h2.settings.Settings(client=client, initial_values=ours)
        self._h2.max_inbound_frame_size = config.inbound_frame_bytes_max
        self._h2.initiate_connection()
        self._h2.clear_outbound_data_buffer()
        if not client:
            self._h2.incoming_buffer.add_data(frames.PREFACE)  # the gate has checked the real one
        self.preface = (frames.PREFACE if client else b"") + frames.settings(
            {int(code): value for code, value in advertised.items()}
        )
        """The first bytes that this end sends."""

    @property
    def peer_frame_bytes_max(self) -> int:
        """The longest frame that the peer takes now."""
        return self._h2.max_outbound_frame_size

    @property
    def peer_stream_window_bytes(self) -> int:
        """The window that the peer gives to a new stream now."""
        return self._h2.remote_settings.initial_window_size

    @property
    def peer_streams_max(self) -> int:
        """The streams that the peer lets us have open now."""
        return self._h2.remote_settings.max_concurrent_streams

    def receive_frame_untrusted(self, frame: bytes | memoryview) -> list[h2.events.Event]:
        """Hand one whole frame to h2.

        Raises:
            RemoteProtocolError: The peer broke a rule; the connection cannot go on.
        """
        try:
            events = self._h2.receive_data(frame)
            for event in events:
                if isinstance(event, _WITH_HEADERS):
                    self._rules.check_untrusted(
                        event.headers or [],
                        response=isinstance(event, _RESPONSES),
                        trailers=isinstance(event, h2.events.TrailersReceived),
                    )
            return events
        except h2.exceptions.ProtocolError as error:
            # h2 has queued a GOAWAY of its own; ours carries the true last stream id.
            self._h2.clear_outbound_data_buffer()
            raise RemoteProtocolError(_one_line(error), _code(error)) from error
        except Exception as error:
            self._h2.clear_outbound_data_buffer()
            raise RemoteProtocolError(f"unparsable frame: {_one_line(error)}") from error

    def ignore_content_length(self, stream_id: int) -> None:
        """Keep h2 from comparing `content-length` with DATA that it does not see."""
        stream = self._h2.streams.get(stream_id)
        if stream is not None:
            stream._expected_content_length = None

    def next_stream_id(self) -> int:
        """The id of the next stream that we open.

        Raises:
            LocalProtocolError: All 2^30 ids of this connection are used up.
        """
        with _local_errors():
            return self._h2.get_next_available_stream_id()

    def send_headers(
        self, stream_id: int, headers: Iterable[tuple[bytes, bytes]], *, end_stream: bool
    ) -> bytes:
        """Open a stream, answer on it, or end it with trailers; returns the frames.

        Args:
            stream_id: Of the stream.
            headers: In lower case, and lawful: nothing looks at them any more (`calls` makes such).
            end_stream: Whether they are the last.

        Raises:
            LocalProtocolError: Not in this state; nothing has changed.
        """
        with _local_errors(stream_id):
            self._h2.send_headers(stream_id, headers, end_stream=end_stream)
        return self._h2.data_to_send()

    def send_end(self, stream_id: int) -> bytes:
        """Half-close a stream with an empty DATA frame; returns the frame."""
        with _local_errors(stream_id):
            self._h2.end_stream(stream_id)
        return self._h2.data_to_send()

    def reset(self, stream_id: int, code: int) -> bytes:
        """Reset a stream; returns the frame, nothing if h2 has forgotten the stream."""
        try:
            self._h2.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            return b""
        return self._h2.data_to_send()

    def forget_streams(self) -> None:
        """Release the streams of a connection that is gone.

        h2's objects are in reference cycles, and thousands of streams would wait for the garbage collector.
        """
        self._h2.streams.clear()

    def ping(self, payload: bytes) -> bytes:
        """A PING of 8 octets."""
        self._h2.ping(payload)
        return self._h2.data_to_send()

    def replies(self) -> bytes:
        """What h2 has answered by itself: acknowledgements of SETTINGS and PING, resets."""
        return self._h2.data_to_send()


def filter_settings_untrusted(payload: bytes, *, settings_max: int) -> bytes:
    """A SETTINGS payload, of whole entries, without what h2 would keep for ever or adopt unchecked.

    Unknown identifiers are dropped (h2 keeps them for ever), the encoder's table stays at 4 096 octets.

    Raises:
        RemoteProtocolError: More than `settings_max` entries.
    """
    if len(payload) > 6 * settings_max:
        raise RemoteProtocolError(f"SETTINGS of {len(payload) // 6} entries", ErrorCode.ENHANCE_YOUR_CALM)
    kept = bytearray()
    for at in range(0, len(payload), 6):
        identifier = int.from_bytes(payload[at : at + 2], "big")
        if identifier not in _SETTINGS_KNOWN:
            continue
        value = int.from_bytes(payload[at + 2 : at + 6], "big")
        if identifier == _CODES.HEADER_TABLE_SIZE:
            value = min(value, _HEADER_TABLE_BYTES_MAX)
        kept += payload[at : at + 2] + value.to_bytes(4, "big")
    return bytes(kept)


def initial_window_change(event: h2.events.RemoteSettingsChanged) -> int:
    """How much the peer's SETTINGS_INITIAL_WINDOW_SIZE went up (or down), octets."""
    change = event.changed_settings.get(_CODES.INITIAL_WINDOW_SIZE)
    if change is None:
        return 0
    old = 65_535 if change.original_value is None else change.original_value
    return int(change.new_value) - int(old)


@contextlib.contextmanager
def _local_errors(stream_id: int | None = None) -> Iterator[None]:
    try:
        yield
    except (h2.exceptions.ProtocolError, h2.exceptions.NoAvailableStreamIDError) as error:
        raise LocalProtocolError(_one_line(error), stream_id=stream_id) from error


def _code(error: h2.exceptions.ProtocolError) -> ErrorCode:
    """What h2 says, but for a header block that cannot be decoded, which it calls PROTOCOL_ERROR (section 4.3)."""
    code = ErrorCode(int(error.error_code))
    undecodable = code is ErrorCode.PROTOCOL_ERROR and isinstance(error.__cause__, hpack.HPACKError)
    return ErrorCode.COMPRESSION_ERROR if undecodable else code


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
