"""Full scans of one table, by weir in every model and by its peers, in interleaved rounds."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.harness.bars import Bar, at_least, at_most
from bench.harness.errors import BenchFailed
from bench.harness.metrics import labelled
from bench.harness.processes import Worker, running_worker
from bench.harness.spread import ratio
from bench.peers.reading import Cost, Reading, reader
from bench.peers.rows import WIDTHS, Width
from bench.peers.servers import TABLE, Servers, Stored, running_peers, running_servers, store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.harness.certificates import Certificates
    from bench.harness.processes import Peer
    from bench.peers.serving import Origin

MODELS: Final = ("push", "push trio", "session", "token", "cursor", "asof")
"""All but one by the blocking client, which hands each batch over to another thread. `push trio` is by the client that
it stands on, in the thread of the application, as the peers' are."""
THROUGH_TLS: Final = ("push", "session")
BATCH_BYTES: Final = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
BATCH_TRIES: Final = 3
"""Of each size; of one chance decides, and a peer keeps what it chose."""
OVER_STORAGE_MIN: Final = 0.95
OVER_MEMORY_MIN: Final = 1.2
OWN_PART_NS_MAX: Final = 60
IMAGE_CPU_SHARE_MAX: Final = 0.125
"""Of the server's CPU for a row from the row store: what it may take for one from an image."""
REUSED_MIN: Final = 0.9
REPEATED_S: Final = 0.4
"""In a round a way is read again until its scans have taken so long: of one of 40 ms chance decides."""
ORIGINS: Final[dict[str, tuple[Origin, ...]]] = {
    "flight": ("storage", "generator", "memory"),
    "grpcio": ("storage", "memory"),
}
"""Where the peers have their rows from. Those of grpcio from memory always pass through Python."""


@dataclass(kw_only=True, slots=True)
class Scanned:
    """One way to read one table, over all rounds."""

    width: str
    buckets: int
    way: str
    rows: int = 0
    """Of the table."""
    tls: bool = False
    batch_bytes: int | None = None
    rows_per_s: list[float] = field(default_factory=list)
    first_batch_ms: list[float] = field(default_factory=list)
    server_us_per_row: list[float] = field(default_factory=list)
    client_us_per_row: list[float] = field(default_factory=list)
    disk_read_mb: list[float] = field(default_factory=list)
    """Fetched from the disk, by server and client."""
    server_resident_bytes: int = 0
    """At most; of a server that was asked in other ways, too."""
    client_resident_bytes: int = 0
    """With all rows, and nothing of other scans."""
    reused_share: float | None = None
    """Of the Arrow octets that push sent from images: those that went out as they lie."""

    def add(self, costs: Sequence[Cost], server_cpu_s: float, server_disk_bytes: int) -> None:
        """One more round: of its scans the median times, and a scan's share of what they took together."""
        rows = sum(cost.rows for cost in costs)
        self.rows_per_s.append(round(statistics.median(cost.rows / cost.seconds for cost in costs)))
        self.first_batch_ms.append(round(statistics.median(cost.first_batch_s for cost in costs) * 1e3, 2))
        self.server_us_per_row.append(round(server_cpu_s * 1e6 / rows, 4))
        self.client_us_per_row.append(round(sum(cost.cpu_s for cost in costs) * 1e6 / rows, 4))
        disk_bytes = server_disk_bytes + sum(cost.disk_read_bytes for cost in costs)
        self.disk_read_mb.append(round(disk_bytes / len(costs) / 1e6, 1))


@dataclass(frozen=True, slots=True)
class Way:
    """How a table is read, and whose server it is read from; None: nobody's."""

    name: str
    peer: Peer | None
    reading: Reading


def _reading(
    how: str, place: str, stored: Stored, certificates: Certificates | None, origin: Origin = "storage"
) -> Reading:
    ca = None if certificates is None else str(certificates.ca)
    return Reading(way=how, place=place, table=TABLE, buckets=stored.buckets, origin=origin, ca=ca)


def _ways_of_peers(peers: Mapping[str, Peer], stored: Stored, certificates: Certificates | None) -> list[Way]:
    return [
        Way(f"{name} {origin}", peer, _reading(name, peer.endpoint, stored, certificates, origin))
        for name, peer in peers.items()
        for origin in ORIGINS[name]
    ]


def _ways(servers: Servers, stored: Stored, certificates: Certificates | None) -> list[Way]:
    """All ways; through TLS those that are a peer's or of weir's models push and session."""
    ways = [
        Way(model + suffix, peer, _reading(model, peer.endpoint, stored, certificates))
        for suffix, peer in (("", servers.weir), (", image", servers.image))
        for model in (MODELS if certificates is None else THROUGH_TLS)
    ]
    ways += _ways_of_peers(servers.peers, stored, certificates)
    if certificates is None:
        grpcio = servers.peers["grpcio"]
        ways.append(Way("local", grpcio, _reading("local", grpcio.endpoint, stored, None)))
        files = ("parquet", "duckdb")
        ways += [Way(name, None, _reading(name, str(stored.parquet), stored, None)) for name in files]
    return ways


def measure(
    width: Width,
    rows: int,
    buckets: int,
    rounds: int,
    log: Callable[[str], object],
    certificates: Certificates | None = None,
) -> list[Scanned]:
    """Read a table of so many rows by every way; through TLS if there are certificates.

    Raises:
        BenchFailed: A way read other rows than there are, or a process did not answer.
    """
    with tempfile.TemporaryDirectory() as directory:
        stored = store(Path(directory), width, rows, buckets)
        best = _best_batch_bytes(stored, certificates)
        # Servers of their own: those of the peers have batches of every size in memory by now.
        with running_servers(stored, certificates) as servers, running_worker(reader) as worker:
            chosen = [_with_batches(way, best.get(way.name)) for way in _ways(servers, stored, certificates)]
            found = [
                Scanned(
                    width=width.name,
                    buckets=buckets,
                    way=way.name,
                    rows=rows,
                    tls=certificates is not None,
                    batch_bytes=best.get(way.name),
                )
                for way in chosen
            ]
            for number in range(rounds + 1):  # The first one warms up.
                log(
                    f"{width.name}, {buckets} buckets{', TLS' * bool(certificates)}: round {number} of {rounds}"
                )
                digests = set()
                for way, scanned in zip(chosen, found, strict=True):
                    if number:
                        # The memory that a host takes from those who wait is theirs again.
                        worker.do(way.reading)
                        digests |= measure_scan(way, worker, rows, scanned, repeated_s=REPEATED_S)
                    else:
                        digests |= warm_up(way, worker, rows, scanned)
                if len(digests) != 1:
                    raise BenchFailed(f"weir's models read different rows: digests {digests}")
            _add_reused(servers, found)
        return found


def _best_batch_bytes(stored: Stored, certificates: Certificates | None) -> dict[str, int]:
    """By way of a peer: the size of its batches at which it is quickest."""
    best = {}
    with running_peers(stored, certificates) as peers, running_worker(reader) as worker:
        for way in _ways_of_peers(peers, stored, certificates):
            seconds: dict[int, list[float]] = {size: [] for size in BATCH_BYTES}
            for _ in range(BATCH_TRIES):
                for size, tries in seconds.items():
                    reading = _with_batches(way, size).reading
                    worker.do(reading)  # What is in memory is made now.
                    tries.append(worker.do(reading).seconds)
            best[way.name] = min(seconds, key=lambda size: min(seconds[size]))
    return best


def _with_batches(way: Way, batch_bytes: int | None) -> Way:
    if batch_bytes is None:
        return way
    return Way(way.name, way.peer, replace(way.reading, batch_bytes=batch_bytes))


def warm_up(way: Way, worker: Worker[Reading, Cost], rows: int, scanned: Scanned) -> set[int]:
    """Scan once, as `measure_scan` does, and keep nothing of it but the client's memory."""
    cost = _scan(way, worker, rows, trimmed=True)
    scanned.client_resident_bytes = cost.resident_bytes
    return _digests([cost])


def measure_scan(
    way: Way, worker: Worker[Reading, Cost], rows: int, scanned: Scanned, *, repeated_s: float = 0.0
) -> set[int]:
    """Scan, and add what it took as one round; returns the digest, if the way has one, or several that should be one.

    Args:
        way: How.
        worker: The client.
        rows: That there are.
        scanned: Gets the figures.
        repeated_s: Scan until the scans have taken so many seconds.

    Raises:
        BenchFailed: It read another number of rows, or a process did not answer.
    """
    peer = way.peer
    cpu_s, disk_bytes = (0.0, 0) if peer is None else (peer.cpu_s(), peer.disk_read_bytes())
    costs = [_scan(way, worker, rows)]
    while sum(cost.seconds for cost in costs) < repeated_s:
        costs.append(_scan(way, worker, rows))
    if peer is None:
        scanned.add(costs, 0.0, 0)
    else:
        scanned.add(costs, peer.cpu_s() - cpu_s, peer.disk_read_bytes() - disk_bytes)
        scanned.server_resident_bytes = max(scanned.server_resident_bytes, peer.resident_bytes())
    return _digests(costs)


def _scan(way: Way, worker: Worker[Reading, Cost], rows: int, *, trimmed: bool = False) -> Cost:
    cost = worker.do(replace(way.reading, trimmed=trimmed))
    if cost.rows != rows:
        raise BenchFailed(f"{way.name} read {cost.rows} rows of {rows}")
    return cost


def _digests(costs: Sequence[Cost]) -> set[int]:
    return {cost.digest for cost in costs if cost.digest is not None}


def _add_reused(servers: Servers, found: Sequence[Scanned]) -> None:
    """What push sent from images without encoding it again, as the server counted it over all its scans."""
    made = labelled(servers.image_metrics_port, "weir_scan_payload_bytes_total", "made")
    for scanned in found:
        if scanned.way == "push, image":
            scanned.reused_share = round(made.get("image", 0.0) / sum(made.values()), 3)


def judge(scans: Sequence[Scanned]) -> list[Bar]:
    """What must hold of full scans."""
    found = []
    by_way = {(each.width, each.buckets, each.way): each for each in scans}
    for width, buckets in dict.fromkeys((each.width, each.buckets) for each in scans):
        narrow = width == WIDTHS["86"].name
        for mine, origin, least in (
            ("push trio", "storage", OVER_STORAGE_MIN),
            *((("push trio, image", "memory", OVER_MEMORY_MIN),) if narrow else ()),
        ):
            for peer in (f"flight {origin}", f"grpcio {origin}"):
                pair = [by_way.get((width, buckets, way)) for way in (mine, peer)]
                if pair[0] is None or pair[1] is None:
                    continue
                value = ratio(pair[0].rows_per_s, pair[1].rows_per_s)
                name = f"{mine} over {peer}, {width}, {_buckets(buckets)}"
                found.append(at_least(name, value, least))
    push, image, local = (by_way.get((WIDTHS["86"].name, 1, way)) for way in ("push", "push, image", "local"))
    return [*found, *_own_part(push, local), *_image_bars(push, image)]


def _buckets(count: int) -> str:
    return f"{count} bucket{'s' * (count != 1)}"


def _own_part(push: Scanned | None, local: Scanned | None) -> list[Bar]:
    """What the server does for a row beside iterating and decoding; of one bucket of narrow rows."""
    if push is None or local is None:
        return []
    pairs = zip(push.server_us_per_row, local.server_us_per_row, strict=True)
    own_ns = round(statistics.median([mine - theirs for mine, theirs in pairs]) * 1e3)
    return [at_most("weir's own part of a row, ns", own_ns, OWN_PART_NS_MAX)]


def _image_bars(push: Scanned | None, image: Scanned | None) -> list[Bar]:
    """What an image spares the server; of one bucket of narrow rows."""
    if push is None or image is None:
        return []
    cpu, reused = ratio(image.server_us_per_row, push.server_us_per_row), image.reused_share or 0.0
    return [
        at_most("server's CPU of a row, image over row store", cpu, IMAGE_CPU_SHARE_MAX),
        at_least("octets from an image that were not encoded again", reused, REUSED_MIN),
    ]
