"""The rows of a bucket from a server of Arrow Flight or grpcio, batch by batch, in plaintext or through TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa
from grpc.experimental import ChannelOptions
from pyarrow import flight

from bench.peers.rows import SCHEMA
from bench.peers.serving import SERVICE, Ticket

Stream = Callable[[Ticket], Iterable[pa.RecordBatch]]
_READY_S: Final = 30.0
_ANY_LENGTH: Final = ("grpc.max_receive_message_length", -1)
_SINGLE_THREADED: Final = (ChannelOptions.SingleThreadedUnaryStream, 1)
"""Without the thread that hands each message over: up to two fifths less of the client's CPU, but more through TLS."""


@contextmanager
def _from_flight(place: str, ca: str | None) -> Iterator[Stream]:
    scheme = "grpc" if ca is None else "grpc+tls"
    trusted = None if ca is None else Path(ca).read_bytes()
    with flight.connect(f"{scheme}://{place}", tls_root_certs=trusted) as client:
        yield lambda ticket: (chunk.data for chunk in client.do_get(flight.Ticket(ticket.to_bytes())))


@contextmanager
def _from_grpcio(place: str, ca: str | None) -> Iterator[Stream]:
    with grpcio_channel(place, ca) as channel:
        read: Any = channel.unary_stream(f"/{SERVICE}/Read")
        yield lambda ticket: (
            pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA) for message in read(ticket.to_bytes())
        )


@contextmanager
def grpcio_channel(place: str, ca: str | None) -> Iterator[grpc.Channel]:
    """A channel that is connected.

    Args:
        place: HOST:PORT.
        ca: PEM file of whom to trust; None: plaintext.
    """
    if ca is None:
        opened = grpc.insecure_channel(place, options=[_ANY_LENGTH, _SINGLE_THREADED])
    else:
        trusted = grpc.ssl_channel_credentials(Path(ca).read_bytes())
        opened = grpc.secure_channel(place, trusted, options=[_ANY_LENGTH])
    with opened as channel:
        grpc.channel_ready_future(channel).result(_READY_S)
        yield channel


STREAMS: Final[dict[str, Callable[[str, str | None], AbstractContextManager[Stream]]]] = {
    "flight": _from_flight,
    "grpcio": _from_grpcio,
}
"""By peer: connect to HOST:PORT, trusting the CA in a PEM file; None: plaintext."""
