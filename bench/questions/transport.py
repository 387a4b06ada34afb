"""How fast does the transport stream, beside gRPC's C core and beside a bare TCP copy?

One server process sends messages of one size to one client process over loopback, as one server-streaming call or as 16
at once, in plaintext or through TLS. Rounds are interleaved, because the machine drifts; medians and their ratio are
kept, because an absolute speed proves nothing. `tcp` is the local limit of trio: `send_all` of the same messages into
`recv_into` of one reused buffer, with no framing at all.

What was expected: a vectored write of a header and the message costs one copy into the kernel, a read into the
message's own memory one copy out of it; so large messages should go at about the speed of `tcp`, and small ones at what
Python spends on each (a few microseconds at either end).

Through TLS both ends encrypt with what they agree upon, which is printed: grpcio brings BoringSSL, Python an OpenSSL of
its own. What was expected there: encryption and three more copies at each end cost several times what the plaintext
does, so that the two come close, and what Python spends on a turn of its scheduler must be spread over many records.

What was learned, and is built in:

* No allocation per frame. Fresh memory of 128 KiB and more comes from `mmap`, and its page faults cost more than the
  copy. Messages are assembled in memory from Arrow's pool (`pa.allocate_buffer`), which recycles it; with `bytearray`
  the same stream of 1 MiB messages loses about a third.
* Small messages are joined with their prefix and share DATA frames and writes: at 4 KiB about 60 of them go out in one
  `writev`, and neither end switches tasks per message.
* A read goes straight into the message that is being assembled, with 16 KiB to spare for the next frame headers.
* Large messages are slow in the kernel's send buffer. The sender is faster than the receiver, so up to 4 MiB wait
  between them, and both copies go through memory instead of the processor's cache: the server spent 59 % of its time in
  the kernel's copy. With SO_SNDBUF of 384 KiB (`near_send_buffer_bytes`) and DATA frames of 1 MiB, the same stream of 1
  MiB messages went from 2.2 to 4.4 GB/s, past the bare copy, which keeps its buffer. HTTP/2's windows do not do it: a
  window of that size makes the two ends wait for each other.
* What comes out of OpenSSL's memory is fresh, so it is taken in pieces of 64 KiB, below `mmap`; four of them go out in
  one `sendmsg`, and up to 256 KiB come in with one read, so that turns of trio's scheduler are few.
* The order of TLS 1.3's suites is OpenSSL's, AES-256 first; Python's `ssl` cannot change it. grpcio agrees on AES-128.
* OpenSSL 3.0 does not use a processor's VAES; later ones do. Of messages of 1 MiB through TLS, `--tls --size 65536
  --size 1048576 --streams 1 --rounds 7` said by turns 0.94 and 0.98 of grpcio with Python 3.11.7 and OpenSSL 3.0.19,
  and 2.01 and 2.13 with Python 3.14.10 and OpenSSL 3.6.5: the client's CPU a MiB was 565 and 578 us, and 390 and 400;
  the server's 598 and 614, and 413 and 431.
* pyOpenSSL brings a newer OpenSSL, but copies once more each way: 1 MiB took 216 us to encrypt and 242 to decrypt with
  OpenSSL 4.0.3, in memory, and 262 and 293 by `ssl` with 3.0.19. That is no reason to leave `ssl`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import trio
from rich.table import Table

import transport
from bench.harness.bars import Bar, at_least, write_json
from bench.harness.certificates import Certificates, make_certificates
from bench.harness.processes import running_peer
from bench.harness.relay import relayed
from bench.harness.tls_hello import suite_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from rich.console import Console

KIB, MIB = 1 << 10, 1 << 20
MESSAGE_SIZES = (1 * KIB, 4 * KIB, 64 * KIB, 1 * MIB, 16 * MIB)
PATH = "/bench.Stream/Flood"
READY_S = 30.0
_BARS = (
    (False, 4 * KIB, 4.0),
    (False, 64 * KIB, 2.0),
    (False, 1 * MIB, 2.0),
    (True, 64 * KIB, 1.0),
    (True, 1 * MIB, 1.0),
)
"""Whether through TLS, message bytes, least ratio to grpcio."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is streamed."""

    message_bytes: int
    streams: int
    total_bytes: int
    """Over all streams."""
    certificates: Certificates | None = None
    """For TLS; None: plaintext."""

    @property
    def messages_per_stream(self) -> int:
        """Messages that each stream carries."""
        return max(1, self.total_bytes // self.message_bytes // self.streams)


@dataclass(frozen=True, slots=True)
class Measured:
    """One case over all rounds."""

    peer: str
    message_bytes: int
    streams: int
    tls: bool
    mb_per_second: float
    """Median."""
    rounds: list[float]
    grpcio_ratio: float
    """Median of the rounds' ratios to grpcio's speed in the same round."""
    server_cpu_us: float
    """Median; microseconds of processor time for each MiB, all threads."""
    client_cpu_us: float
    cipher: str
    """What the two ends agreed upon; empty: plaintext."""


@dataclass(frozen=True, slots=True)
class Run:
    """One case of one peer, once."""

    mb_per_second: float
    server_cpu_us: float
    client_cpu_us: float


# ---------------------------------------------------------------------- weir


def weir_server(case: Case, ready: Connection) -> None:
    """Serve the flood with weir's transport."""
    payload = os.urandom(case.message_bytes)

    async def flood(stream: transport.ServerStream) -> None:
        await stream.receive()
        for _ in range(case.messages_per_stream):
            await stream.send(payload)

    async def main() -> None:
        tls = None
        if case.certificates is not None:
            tls = transport.ServerTls(case.certificates.certificate, case.certificates.key)
        async with transport.serve({PATH: flood}, ssl_context=tls) as server:
            ready.send(server.port)
            await trio.sleep_forever()

    trio.run(main)


def weir_client(port: int, case: Case) -> tuple[int, float]:
    """Read the flood with weir's transport; returns octets and seconds."""

    async def read(client: transport.Client, counts: list[int]) -> None:
        async with client.open_stream(PATH) as stream:
            await stream.send(b"")
            await stream.send_end()
            got = 0
            while (message := await stream.receive()) is not None:
                got += len(message)
            counts.append(got)

    async def main() -> tuple[int, float]:
        counts: list[int] = []
        tls = None if case.certificates is None else transport.client_tls(case.certificates.ca)
        async with transport.connect(
            "127.0.0.1", port, ssl_context=tls, allocate=pa.allocate_buffer
        ) as client:
            started = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(case.streams):
                    nursery.start_soon(read, client, counts)
            return sum(counts), time.perf_counter() - started

    return trio.run(main)


# ---------------------------------------------------------------------- grpcio


def grpcio_server(case: Case, ready: Connection) -> None:
    """Serve the flood with grpcio."""
    from concurrent import futures

    import grpc

    payload = os.urandom(case.message_bytes)

    def flood(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in range(case.messages_per_stream):
            yield payload

    server = grpc.server(futures.ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", -1)])
    service, method = PATH[1:].split("/")
    handler: Any = grpc.unary_stream_rpc_method_handler(flood)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    if case.certificates is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (case.certificates.key.read_bytes(), case.certificates.certificate.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    ready.send(port)
    server.start()
    server.wait_for_termination()


def grpcio_client(port: int, case: Case) -> tuple[int, float]:
    """Read the flood with grpcio; returns octets and seconds."""
    from concurrent import futures

    import grpc
    from grpc.experimental import ChannelOptions

    options = [("grpc.max_receive_message_length", -1)]
    address = f"127.0.0.1:{port}"
    if case.certificates is None:
        # Without the thread that hands each message over: less CPU, but more through TLS.
        options.append((ChannelOptions.SingleThreadedUnaryStream, 1))
        opened = grpc.insecure_channel(address, options=options)
    else:
        trusted = grpc.ssl_channel_credentials(case.certificates.ca.read_bytes())
        opened = grpc.secure_channel(address, trusted, options=options)
    with opened as channel:
        grpc.channel_ready_future(channel).result(READY_S)

        def read() -> int:
            call: Any = channel.unary_stream(PATH)
            return sum(map(len, call(b"")))

        started = time.perf_counter()
        if case.streams == 1:
            return read(), time.perf_counter() - started
        with futures.ThreadPoolExecutor(case.streams) as pool:
            counts = [pool.submit(read) for _ in range(case.streams)]
            got = sum(count.result() for count in counts)
        return got, time.perf_counter() - started


# ---------------------------------------------------------------------- bare TCP


def tcp_server(case: Case, ready: Connection) -> None:
    """Send the same octets over bare TCP, one connection per stream."""
    payload = os.urandom(case.message_bytes)

    async def flood(stream: trio.SocketStream) -> None:
        for _ in range(case.messages_per_stream):
            await stream.send_all(payload)
        await stream.send_eof()
        await stream.receive_some(1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, flood, 0)
            ready.send(listeners[0].socket.getsockname()[1])

    trio.run(main)


def tcp_client(port: int, case: Case) -> tuple[int, float]:
    """Read them into one reused buffer per connection; returns octets and seconds."""

    async def read(counts: list[int]) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            room = memoryview(bytearray(256 * KIB))
            got = 0
            while size := await stream.socket.recv_into(room):
                got += size
            counts.append(got)

    async def main() -> tuple[int, float]:
        counts: list[int] = []
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(case.streams):
                nursery.start_soon(read, counts)
        return sum(counts), time.perf_counter() - started

    return trio.run(main)


# ---------------------------------------------------------------------- rounds

PEERS: dict[str, tuple[Callable[[Case, Connection], None], Callable[[int, Case], tuple[int, float]]]] = {
    "weir": (weir_server, weir_client),
    "grpcio": (grpcio_server, grpcio_client),
    "tcp": (tcp_server, tcp_client),
}


def measure_once(peer: str, case: Case) -> Run:
    """One peer in one case."""
    serve, read = PEERS[peer]
    with running_peer(serve, case) as server:
        before_s, own_before_s = server.cpu_s(), time.process_time()
        got, seconds = read(server.port, case)
        own_s, server_s = time.process_time() - own_before_s, server.cpu_s() - before_s
    assert got == case.messages_per_stream * case.streams * case.message_bytes
    return Run(got / seconds / 1e6, server_s * 1e6 * MIB / got, own_s * 1e6 * MIB / got)


def agreed_cipher(peer: str, case: Case) -> str:
    """The cipher suite that the two ends of a peer agree upon; empty: plaintext."""
    if case.certificates is None:
        return ""
    serve, read = PEERS[peer]
    said = bytearray()
    with running_peer(serve, case) as server, relayed(server.port, down=said.extend) as relay_port:
        read(relay_port, case)
    return suite_of(said)


def measure(cases: list[Case], rounds: int, console: Console) -> list[Measured]:
    """All cases, every peer in turn in every round. Bare TCP has no TLS: there is nothing to learn from it."""
    measured = []
    for case in cases:
        tls = case.certificates is not None
        runs: dict[str, list[Run]] = {peer: [] for peer in PEERS if not (tls and peer == "tcp")}
        ciphers = {peer: agreed_cipher(peer, replace(case, total_bytes=1)) for peer in runs}
        for _ in range(rounds):
            for peer, values in runs.items():
                values.append(measure_once(peer, case))
        for peer, values in runs.items():
            row = _summary(peer, case, values, runs["grpcio"], ciphers[peer])
            measured.append(row)
            console.print(
                f"{case.message_bytes:>9} B  {case.streams:>2} streams  {'TLS  ' if tls else 'plain'}  {peer:<7}"
                f" {row.mb_per_second:7.0f} MB/s  [{min(row.rounds):.0f} .. {max(row.rounds):.0f}]"
                f"  CPU a MiB: server {row.server_cpu_us:.0f} us, client {row.client_cpu_us:.0f} us  {row.cipher}"
            )
    return measured


def _summary(peer: str, case: Case, runs: list[Run], grpcio: list[Run], cipher: str) -> Measured:
    return Measured(
        peer=peer,
        message_bytes=case.message_bytes,
        streams=case.streams,
        tls=case.certificates is not None,
        mb_per_second=statistics.median(run.mb_per_second for run in runs),
        rounds=[run.mb_per_second for run in runs],
        grpcio_ratio=statistics.median(
            run.mb_per_second / beside.mb_per_second for run, beside in zip(runs, grpcio, strict=True)
        ),
        server_cpu_us=statistics.median(run.server_cpu_us for run in runs),
        client_cpu_us=statistics.median(run.client_cpu_us for run in runs),
        cipher=cipher,
    )


def bars(measured: list[Measured]) -> list[Bar]:
    """The ratios to grpcio that must hold: one stream."""
    found = []
    for tls, message_bytes, least in _BARS:
        for row in measured:
            if (row.peer, row.message_bytes, row.streams, row.tls) == ("weir", message_bytes, 1, tls):
                name = f"weir / grpcio at {message_bytes} B{' through TLS' if tls else ''}"
                ratio = row.grpcio_ratio
                found.append(at_least(name, ratio, least))
    return found


def _table(measured: list[Measured]) -> Table:
    table = Table(title="MB/s, median")
    for heading in ("message bytes", "streams", "", *PEERS, "weir / grpcio"):
        table.add_column(heading, justify="right")
    for shape in dict.fromkeys((row.message_bytes, row.streams, row.tls) for row in measured):
        rows = {row.peer: row for row in measured if (row.message_bytes, row.streams, row.tls) == shape}
        message_bytes, streams, tls = shape
        cells = (f"{rows[peer].mb_per_second:.0f}" if peer in rows else "" for peer in PEERS)
        ratio = f"{rows['weir'].grpcio_ratio:.2f}"
        table.add_row(f"{message_bytes}", f"{streams}", "TLS" if tls else "plain", *cells, ratio)
    return table


def run(
    output: Path | None,
    console: Console,
    *,
    rounds: int,
    megabytes: int,
    sizes: tuple[int, ...],
    streams: tuple[int, ...],
    tls: tuple[bool, ...],
) -> list[Bar]:
    """Measure, write the JSON, and print; messages below 64 KiB get a tenth of the megabytes."""
    with tempfile.TemporaryDirectory() as directory:
        made = make_certificates(Path(directory))
        cases = [
            Case(
                size,
                count,
                megabytes * 1_000_000 // (1 if size >= 64 * KIB else 10),
                made if secured else None,
            )
            for secured in tls
            for size in sizes
            for count in streams
        ]
        measured = measure(cases, rounds, console)
    judged = write_json(output, bars(measured), measured=measured)
    console.print(_table(measured))
    return judged
