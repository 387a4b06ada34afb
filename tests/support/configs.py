"""Configurations of the transport that tests share."""

from __future__ import annotations

from typing import Final

from transport.config import FRAME_BYTES_MIN, KIB, TransportConfig

TINY: Final = TransportConfig(
    stream_window_bytes=1_000,
    connection_window_bytes=65_535,
    inbound_frame_bytes_max=FRAME_BYTES_MIN,
    outbound_frame_bytes_max=300,
    message_bytes_max=100_000,
    send_buffer_bytes=2_000,
    write_bytes_max=1_000,
    receive_buffer_bytes=17 * KIB,
    streams_max=10,
)
"""Bounds so small that ordinary tests hit every one of them."""
