"""The knife itself: it finds the ends of frames, and cuts where it was told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import check_half_closeable_stream

from bench.cutting.stream import PREFACE_BYTES, Cut, CutStream, Direction, FrameMeter
from bench.simulation.pipes import Line, Pipe, PipeEnd
from tests.support import wire

frames = st.lists(st.binary(max_size=40).map(lambda payload: wire.data(1, payload)), max_size=6)
sizes = st.lists(st.integers(1, 30), min_size=1)


def ends_of(octets: Sequence[bytes], first: int = 0) -> list[int]:
    """Positions behind each piece."""
    found, at = [], first
    for piece in octets:
        at += len(piece)
        found.append(at)
    return found


def pair() -> tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]:
    """Both ends of a connection."""
    up, down = Pipe(Line()), Pipe(Line())
    return PipeEnd(up, down), PipeEnd(down, up)


@given(frames, sizes, st.booleans())
def test_frames_are_found_however_they_are_cut(sent: list[bytes], reads: list[int], preface: bool) -> None:
    """The ends of frames are the same whatever the sizes of the reads; the preface is a frame."""
    octets = (wire.PREFACE if preface else b"") + b"".join(sent)
    meter, at, turn = FrameMeter(PREFACE_BYTES if preface else 0), 0, 0
    while at < len(octets):
        size = reads[turn % len(reads)]
        meter.measure(octets[at : at + size])
        at, turn = at + size, turn + 1

    first = [PREFACE_BYTES] if preface else []
    assert meter.ends == [*first, *ends_of(sent, sum(first))]
    assert meter.octets == len(octets)


async def test_without_a_cut_it_is_a_stream() -> None:
    """Wrapped around both ends of a connection it is what trio expects of a stream."""

    async def make() -> tuple[CutStream, CutStream]:
        ours, theirs = pair()
        return CutStream(ours, None), CutStream(theirs, None)

    await check_half_closeable_stream(make, None)


SENT = (wire.data(1, b"first"), wire.data(1, b"second"), wire.data(1, b"third"))
PLACES = [
    (Cut(Direction.DOWN, frames=0), 0),
    (Cut(Direction.DOWN, frames=1), 14),
    (Cut(Direction.DOWN, frames=2), 29),
    (Cut(Direction.DOWN, octets=1), 1),
    (Cut(Direction.DOWN, octets=20), 20),
]


@pytest.mark.parametrize(("cut", "passes"), PLACES, ids=str)
@pytest.mark.parametrize("read_bytes", [3, 1000])
@pytest.mark.parametrize("reset", [False, True])
async def test_what_is_read_ends_at_the_cut(cut: Cut, passes: int, read_bytes: int, reset: bool) -> None:
    """Every octet before it arrives and none behind it; then comes an error or an end, as asked for."""
    ours, theirs = pair()
    stream = CutStream(ours, cut, reset=reset)
    await theirs.send_all(b"".join(SENT))
    got = b""
    while True:
        try:
            data = await stream.receive_some(read_bytes)
        except trio.BrokenResourceError:
            assert reset
            break
        if not data:
            assert not reset
            break
        got += data

    assert got == b"".join(SENT)[:passes]
    assert stream.struck
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"more")
    assert await theirs.receive_some(1) == b""


@pytest.mark.parametrize("octets", [0, 1, 24, 30])
async def test_what_is_written_ends_at_the_cut(octets: int) -> None:
    """The peer gets every octet before it, and then the end; a read that waits is woken and fails."""
    ours, theirs = pair()
    stream = CutStream(ours, Cut(Direction.UP, octets=octets) if octets else Cut(Direction.UP, frames=0))

    async def wait_for_data() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some(10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_data)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(wire.PREFACE + b"".join(SENT))
    got = b""
    while data := await theirs.receive_some(7):
        got += data

    assert got == (wire.PREFACE + b"".join(SENT))[:octets]
