"""Messages are cut out of a stream's octets, wherever the octets are cut, and copied once at most."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import wire
from transport.errors import MessageRefused, StatusCode
from transport.protocol.messages import MessageAssembler, message_prefix

ALLOCATE_MIN, TRUSTED = 50, 100


def assembler(made: list[bytearray] | None = None, *, trusted: int = TRUSTED) -> MessageAssembler:
    def allocate(size: int) -> bytearray:
        buffer = bytearray(size)
        if made is not None:
            made.append(buffer)
        return buffer

    found: deque[Any] = deque()
    return MessageAssembler(10_000, allocate, ALLOCATE_MIN, trusted, found)


@given(
    st.lists(
        st.binary(max_size=60) | st.integers(90, 4_000).map(lambda n: bytes(range(250)) * (n // 250 + 1))
    ),
    st.lists(st.integers(1, 700), min_size=1),
)
def test_any_cut_gives_the_same_messages(payloads: list[bytes], sizes: list[int]) -> None:
    """Messages of every size come out whole, in order, in allocated memory if they are long."""
    octets = b"".join(map(wire.message, payloads))
    made: list[bytearray] = []
    subject = assembler(made)
    at = turn = 0
    while at < len(octets):
        part = octets[at : at + sizes[turn % len(sizes)]]
        subject.feed_untrusted(memoryview(part))
        at, turn = at + len(part), turn + 1
    assert list(map(bytes, subject.messages)) == payloads
    assert subject.partial_bytes == 0
    long = [message for message in subject.messages if len(message) >= ALLOCATE_MIN]
    assert len(long) == len(made)
    assert all(one is other for one, other in zip(long, made, strict=True))


@pytest.mark.parametrize("size", [ALLOCATE_MIN - 1, ALLOCATE_MIN + 1])
def test_memory_of_another_size_is_an_error(size: int) -> None:
    """A reader would fill too little of it for ever, and too much of it would be more than the message."""
    subject = MessageAssembler(10_000, lambda _: bytearray(size), ALLOCATE_MIN, TRUSTED, deque())
    with pytest.raises(ValueError, match=f"made {size} octets of memory for a message of {ALLOCATE_MIN}"):
        subject.feed_untrusted(memoryview(message_prefix(ALLOCATE_MIN)))


@given(st.integers(1, 3_000), st.integers(1, 900), st.booleans())
def test_octets_written_into_the_target_are_counted(size: int, step: int, trusted: bool) -> None:
    """A socket that fills `target` by itself gets the same message."""
    payload = bytes(at % 256 for at in range(size))
    subject = assembler(trusted=10_000 if trusted else TRUSTED)
    subject.feed_untrusted(memoryview(message_prefix(size)))
    at = 0
    while (target := subject.target) is not None:
        take = min(step, len(target))
        target[:take] = payload[at : at + take]
        assert subject.partial_bytes == at + 5
        subject.filled_untrusted(take)
        at += take
    assert at == size
    assert bytes(subject.messages[0]) == payload


def test_memory_follows_evidence() -> None:
    """A long message takes a sixteenth of its memory until that sixteenth has come."""
    made: list[bytearray] = []
    subject = assembler(made)
    subject.feed_untrusted(memoryview(message_prefix(9_600)))
    assert subject.target is not None
    assert len(subject.target) == 600
    subject.feed_untrusted(memoryview(bytes(599)))
    assert made == []
    subject.feed_untrusted(memoryview(bytes(1)))
    assert [len(buffer) for buffer in made] == [9_600]


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        (b"\0\0\0\x27\x11", StatusCode.RESOURCE_EXHAUSTED),
        (b"\0\xff\xff\xff\xff", StatusCode.RESOURCE_EXHAUSTED),
        (b"\1\0\0\0\0", StatusCode.UNIMPLEMENTED),
        (b"\2\0\0\0\0", StatusCode.INTERNAL),
    ],
)
def test_messages_that_are_refused(prefix: bytes, status: StatusCode) -> None:
    """Too long, compressed, or neither flag: refused from the prefix, without memory, whole or cut."""
    for cut in range(5):
        made: list[bytearray] = []
        subject = assembler(made)
        with pytest.raises(MessageRefused) as caught:
            for part in (prefix[:cut], prefix[cut:]):
                subject.feed_untrusted(memoryview(part))
        assert caught.value.status is status
        assert made == []


def test_longest_message_is_taken() -> None:
    """The limit itself is not over the limit."""
    subject = assembler()
    subject.feed_untrusted(memoryview(wire.message(bytes(10_000))))
    assert len(subject.messages[0]) == 10_000


@pytest.mark.parametrize("taken", [0, 5, 50, 705])
def test_limit_that_comes_later(taken: int) -> None:
    """A call's own limit holds for a message that is yet to come, for one on its way, and for one that waits."""
    subject, octets = assembler(trusted=1_000), wire.message(bytes(700))
    subject.feed_untrusted(memoryview(octets[:taken]))
    subject.limit_untrusted(700)
    with pytest.raises(MessageRefused, match="700 octets is over the limit of 699") as caught:
        subject.limit_untrusted(699)
        subject.feed_untrusted(memoryview(octets))
    assert caught.value.status is StatusCode.RESOURCE_EXHAUSTED
