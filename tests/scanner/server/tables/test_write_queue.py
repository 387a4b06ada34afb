"""Which writes share a commit, and what becomes of those that never get one."""

from __future__ import annotations

import pytest

from scanner.errors import StoreClosed
from scanner.server.tables.write_queue import PendingWrite, Settled, TransactionShare, WriteQueue
from scanner.storage.interface import Mutation
from scanner.storage.writers import WRITERS_MAX, RequestNumber


def write(rows: int = 1, number: tuple[bytes, int] | None = None, *, pieces: bool = False) -> PendingWrite:
    """A write of so many rows."""
    return PendingWrite(
        [Mutation(b"k%d" % row, b"v") for row in range(rows)],
        Settled(),
        transaction=TransactionShare("t", 1) if pieces else None,
        number=None if number is None else RequestNumber(*number, 0),
        pieces=(piece for piece in ((),)) if pieces else None,
    )


@pytest.mark.parametrize(
    ("writes", "commits"),
    [
        ([write(2), write(2), write(2)], [2, 1]),
        ([write(9), write(1)], [1, 1]),
        ([write(), write(pieces=True), write(pieces=True), write(), write()], [1, 1, 1, 2]),
        ([write(number=(b"a", 1)), write(number=(b"a", 2)), write(number=(b"b", 1))], [3]),
        ([write(number=(b"a", 2)), write(number=(b"a", 2)), write(number=(b"a", 1)), write()], [1, 1, 2]),
        ([write(0, (b"%d" % index, 1)) for index in range(WRITERS_MAX + 1)], [WRITERS_MAX, 1]),
    ],
    ids=["rows", "one too large", "pieces are alone", "requests go up", "duplicates come later", "writers"],
)
async def test_what_shares_a_commit(writes: list[PendingWrite], commits: list[int]) -> None:
    """As many as fit, in their order; what has to be recognised waits until those before it are durable."""
    queue = WriteQueue(100, commit_rows_max=4)
    for each in writes:
        queue.append(each)
    taken = list[list[PendingWrite]]()
    while queue:
        taken.append(queue.take())
        assert queue.taken is taken[-1]
    assert [len(each) for each in taken] == commits
    assert [each for commit in taken for each in commit] == writes
    assert queue.unsettled
    queue.taken = []
    assert not queue.unsettled


async def test_those_that_wait_fail_together() -> None:
    """Each is settled with the error, and nothing waits any more; what was taken is not touched."""
    queue = WriteQueue(100, commit_rows_max=1)
    writes = [write(), write(), write()]
    for each in writes:
        queue.append(each)
    (first,) = queue.take()
    queue.fail_waiting(StoreClosed("gone"))
    assert not queue
    assert queue.unsettled
    assert not first.settled.is_set()
    for each in writes[1:]:
        with pytest.raises(StoreClosed, match="gone"):
            await each.wait_durable()
