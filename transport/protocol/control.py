"""The control plane: SETTINGS and PING by way of h2, which knows of no stream. Only this and `header_blocks` use it.

Everything else is ours (docs/decisions/0001): what h2 does for each stream and each frame is most of what a small call
costs, and GOAWAY, sent or received, closes its state machine. It reads our MAX_FRAME_SIZE, raised, only once the peer
has acknowledged it; so our SETTINGS are its initial values.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from transport.errors import ErrorCode, RemoteProtocolError
from transport.protocol import frames

if TYPE_CHECKING:
    import hpack

    from transport.config import TransportConfig

_HEADER_TABLE_BYTES_MAX: Final = 4096
_CODES = h2.settings.SettingCodes
_SETTINGS_KNOWN: Final = frozenset(int(code) for code in _CODES)
_KIND_AT: Final = 3
"""Where a frame's type is."""
_SETTING: Final = struct.Struct(">HL")


class ControlPlane:
    """One end's h2 connection, fed with whole frames that the gate has let through.

    Args:
        config: Bounds of this end.
        client: Which end this is.
        encoder: Of our header blocks; follows the peer's SETTINGS_HEADER_TABLE_SIZE.
    """

    def __init__(self, config: TransportConfig, *, client: bool, encoder: hpack.Encoder) -> None:
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=client))
        self._h2.encoder = encoder
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
        self._h2.local_settings = h2.settings.Settings(client=client, initial_values=advertised)
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

    def receive_frame_untrusted(self, frame: bytes) -> list[h2.events.Event]:
        """Hand one whole frame to h2.

        Raises:
            RemoteProtocolError: The peer broke a rule; the connection cannot go on.
        """
        if frame[_KIND_AT] == frames.SETTINGS:
            self._shrink_table(frame)
        try:
            return self._h2.receive_data(frame)
        except h2.exceptions.ProtocolError as error:
            # h2 has queued a GOAWAY of its own; ours carries the true last stream id.
            self._h2.clear_outbound_data_buffer()
            raise RemoteProtocolError(_one_line(error), ErrorCode(int(error.error_code))) from error
        except Exception as error:
            self._h2.clear_outbound_data_buffer()
            raise RemoteProtocolError(f"unparsable frame: {_one_line(error)}") from error

    def _shrink_table(self, settings: bytes) -> None:
        """Make the encoder's table as small as the frame says anywhere in it; h2 goes by the last value of several.

        The peer's decoder may have evicted so much, and is to be told the least size (RFC 7541 section 4.2).
        """
        entries = _SETTING.iter_unpack(settings[frames.HEADER_BYTES :])
        sizes = [value for identifier, value in entries if identifier == _CODES.HEADER_TABLE_SIZE]
        if sizes:
            self._h2.encoder.header_table_size = min(sizes)

    def ping(self, payload: bytes) -> bytes:
        """A PING of 8 octets."""
        self._h2.ping(payload)
        return self._h2.data_to_send()

    def replies(self) -> bytes:
        """What h2 has answered by itself: acknowledgements of SETTINGS and PING."""
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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
