"""How far is a real client from the budgets that end an abusive connection?

grpcio reads a stream through a relay that knows no more of HTTP/2 than the nine octets before each frame, and counts
what the client sends. Expected: a few WINDOW_UPDATEs and PINGs for tens of megabytes, where thousands are allowed.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from bench.harness.bars import Bar, write_json
from bench.harness.processes import running_peer
from bench.harness.relay import relayed
from bench.questions.transport import Case, grpcio_client, weir_server
from tests.support import wire
from transport.protocol.abuse import ALLOWANCES, Cost

if TYPE_CHECKING:
    from rich.console import Console

MEGABYTES: Final = 64
MESSAGE_BYTES: Final = 64 << 10
SHARE_MAX: Final = 0.5
COSTS: Final = {
    wire.PING: Cost.PING,
    wire.SETTINGS: Cost.SETTINGS,
    wire.RST_STREAM: Cost.RESET,
    wire.PRIORITY: Cost.IGNORED,
    wire.WINDOW_UPDATE: Cost.WINDOW_UPDATE,
    wire.CONTINUATION: Cost.CONTINUATION,
}


class FrameCount:
    """Counts the frames in octets that are passed by in any pieces."""

    def __init__(self) -> None:
        self.kinds: collections.Counter[int] = collections.Counter()
        self._header = bytearray()
        self._preface_left = len(wire.PREFACE)
        self._payload_left = 0

    def see(self, octets: bytes) -> None:
        """Take the next octets that a client sent."""
        at = min(self._preface_left, len(octets))
        self._preface_left -= at
        while at < len(octets):
            if self._payload_left:
                step = min(self._payload_left, len(octets) - at)
                self._payload_left -= step
            else:
                step = min(9 - len(self._header), len(octets) - at)
                self._header += octets[at : at + step]
                if len(self._header) == 9:
                    self._payload_left = int.from_bytes(self._header[:3], "big")
                    self.kinds[self._header[3]] += 1
                    self._header.clear()
            at += step


def measure() -> collections.Counter[int]:
    """What grpcio sends while it reads the stream."""
    case = Case(message_bytes=MESSAGE_BYTES, streams=1, total_bytes=MEGABYTES << 20)
    count = FrameCount()
    with running_peer(weir_server, case) as server, relayed(server.port, up=count.see) as port:
        grpcio_client(port, case)
    return count.kinds


def run(output: Path | None, console: Console) -> list[Bar]:
    """Run the bench, write the JSON, print the table."""
    kinds = measure()
    table = Table("frame", "grpcio sent", "allowed at once", "share")
    shares = {}
    for kind, cost in COSTS.items():
        limit = ALLOWANCES[cost].burst
        shares[cost.name] = kinds[kind] / limit
        table.add_row(cost.name, str(kinds[kind]), f"{limit:g}", f"{100 * shares[cost.name]:.1f} %")
    most = max(shares, key=lambda name: shares[name])
    bars = [
        Bar(
            name=f"share of a full budget that grpcio spends for {MEGABYTES} MiB, the most",
            value=f"{shares[most]:.3f} ({most})",
            bar=f"<= {SHARE_MAX}",
            ok=shares[most] <= SHARE_MAX,
        )
    ]
    write_json(output, bars, sent={cost.name: kinds[kind] for kind, cost in COSTS.items()})
    console.print(table)
    return bars
