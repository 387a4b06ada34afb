"""Memory stays within the formulas of docs/limits.md, and the page names every limit that there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import trio

import transport
from bench.attacks import ATTACKS
from scanner.server.config import ScannerConfig
from tests.support import wire
from tests.support.configs import TINY
from tests.support.pair import Peer
from transport import TransportConfig
from transport.protocol.abuse import ALLOWANCES
from transport.protocol.memory import MESSAGE_OVERHEAD_BYTES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "limits.md"
SMALL = dataclasses.replace(TINY, stream_window_bytes=4_000, receive_memory_bytes_max=100_000, streams_max=50)


def test_messages_that_nobody_takes() -> None:
    """Receiving: streams_max windows of messages, with what each message costs, and never above the memory's bound."""
    message = wire.message(b"x" * 95)
    for limit, streams_full in ((100_000, 16), (1_000_000, 50)):
        peer = Peer(config=dataclasses.replace(SMALL, receive_memory_bytes_max=limit))
        memory = peer.core.table.receive_memory
        assert memory is not None
        for stream_id in range(1, 2 * SMALL.streams_max, 2):
            peer.request(stream_id)
            peer.send(wire.data(stream_id, message * (SMALL.stream_window_bytes // len(message))))
        full = SMALL.stream_window_bytes // len(message) * (95 + MESSAGE_OVERHEAD_BYTES)
        assert memory.taken_bytes <= min(limit, SMALL.streams_max * full)
        assert memory.taken_bytes >= streams_full * full
        assert not peer.failed


def test_messages_that_cannot_be_sent() -> None:
    """Sending: send_buffer_bytes and one message a stream, however much its handler has to say."""

    async def flood(stream: transport.ServerStream) -> None:
        while True:
            await stream.send(bytes(700))

    async def main() -> None:
        async with transport.serve({"/flood": flood}, config=SMALL) as server:
            narrow = dataclasses.replace(SMALL, stream_window_bytes=1)
            async with transport.connect("127.0.0.1", server.port, config=narrow) as client:
                async with trio.open_nursery() as nursery:

                    async def hold() -> None:
                        async with client.open_stream("/flood"):
                            await trio.sleep_forever()

                    for _ in range(SMALL.streams_max):
                        nursery.start_soon(hold)
                    bound = SMALL.streams_max * (SMALL.send_buffer_bytes + 705)
                    with trio.fail_after(100):
                        while server.statistics().unsent_bytes < SMALL.streams_max * SMALL.send_buffer_bytes:
                            await trio.lowlevel.checkpoint()
                            assert server.statistics().unsent_bytes <= bound
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    assert server.statistics().unsent_bytes <= bound
                    nursery.cancel_scope.cancel()

    trio.run(main)


def test_replies_that_nobody_reads() -> None:
    """Replying: control_backlog_bytes_max, and the answers to one turn of frames."""
    peer = Peer(config=dataclasses.replace(SMALL, control_backlog_bytes_max=1_024))
    most = 0
    while peer.core.shutdown.failure is None:
        peer.core.receive_data(wire.ping() * 10, 0.0)
        most = max(most, peer.core.outbound.queue._control_bytes)
    assert most <= 1_024 + 17 * 32


def test_receive_buffer() -> None:
    """Reading: 4 KiB a connection, and receive_buffer_bytes where DATA fills it."""
    peer = Peer(config=dataclasses.replace(SMALL, stream_window_bytes=1 << 20))
    assert sum(map(len, peer.core.buffers())) <= 4_096
    peer.request(1)
    for _ in range(10):
        peer.send(wire.data(1, bytes(10_000)))
        assert sum(map(len, peer.core.buffers())) <= SMALL.receive_buffer_bytes


def rows(name: str) -> list[str]:
    """First cells of the rows of a table of the page, by the heading over it."""
    text = PAGE.read_text(encoding="utf-8").split(f"## {name}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)


def shown(name: str, value: float | str) -> str:
    """A default as the page writes it: a word, a size by its unit, a count or a time by its digits."""
    if isinstance(value, str):
        return value
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if "bytes" in name and isinstance(value, int) and value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:g}"


def test_page_names_every_limit_with_its_default() -> None:
    """docs/limits.md has a row for each field of the two configurations, in their order, with its default."""
    text = PAGE.read_text(encoding="utf-8")
    for name, config in (("A connection", TransportConfig()), ("The server", ScannerConfig())):
        fields = [f"`{field.name}`" for field in dataclasses.fields(config)]
        assert [row for row in rows(name) if row.startswith("`")] == fields
        for field in dataclasses.fields(config):
            assert f"| `{field.name}` | {shown(field.name, getattr(config, field.name))} |" in text


def test_page_names_every_budget_and_every_attack() -> None:
    """docs/limits.md has a row for each budget with its figures, and for each attack that is tried."""
    text = PAGE.read_text(encoding="utf-8")
    for cost, allowance in ALLOWANCES.items():
        frames = f"{allowance.per_frame:g} a frame" if allowance.per_frame else ""
        octets = f"{allowance.per_byte:g} an octet" if allowance.per_byte >= 1 else ""
        if 0 < allowance.per_byte < 1:
            octets = f"{allowance.per_byte * 2**20:g} a MiB"
        earns = ", ".join(filter(None, (frames, octets))) or "-"
        figures = f"{shown(cost.name, int(allowance.burst))} | {allowance.per_second:g} | {earns}"
        assert f"| {cost.name} | {figures} |" in text
    listed = rows("Abuse, row by row")
    assert [attack.name for attack in ATTACKS if attack.name not in listed] == []
