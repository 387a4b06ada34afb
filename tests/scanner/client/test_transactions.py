"""What is believed of a server's answers about a transaction: those that are of what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from scanner.client.table import Table
from scanner.data.table import TableDescription
from scanner.errors import DataCorrupted, ServerUnavailable
from scanner.proto.weir.v1 import transactions_pb2 as pb
from scanner.wire import methods
from tests.support.hosts import connected_to, memory_host
from tests.support.push_messages import SCHEMA

if TYPE_CHECKING:
    from scanner.client.connection import Connection
    from transport import ServerStream

VERSION = pb.TransactionVersion(table="t", table_id=0, name="load", version=7)
OTHER = pb.TransactionVersion(table="t", table_id=0, name="load", version=6)
ROWS = pa.record_batch({"k": [1, 2]}, schema=SCHEMA)


def attempt_of_0(attempt: int) -> list[pb.PartAttempt]:
    """What was decided of the only part."""
    return [pb.PartAttempt(part=0, attempt=attempt)]


def table_of(connection: Connection) -> Table:
    """Of the host, which has one bucket."""
    return Table(connection, TableDescription("t", SCHEMA, ("k",), 1), 0)


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (pb.PublishResponse(version=VERSION, decided=True, attempts=attempt_of_0(1)), ""),
        (pb.PublishResponse(version=VERSION, attempts=attempt_of_0(2), overwrite=True), ""),
        (pb.PublishResponse(decided=True, attempts=attempt_of_0(1)), ""),  # Of an older server.
        (pb.PublishResponse(), "nobody knows whether it is; publish it again"),
        (pb.PublishResponse(version=OTHER, decided=True, attempts=attempt_of_0(1)), "the answer is of 6"),
        (pb.PublishResponse(version=VERSION, decided=True, attempts=attempt_of_0(2)), "it has decided"),
        (
            pb.PublishResponse(version=VERSION, decided=True, attempts=attempt_of_0(1), overwrite=True),
            r"the attempts \{0: 1\} of .* it has decided \{0: 1\} \(overwrite\)",
        ),
    ],
)
async def test_what_is_told_of_something_else_publishes_nothing(
    answer: pb.PublishResponse, refused: str
) -> None:
    """Of another version, of nothing, or of other attempts than this call has asked for; one before may have."""

    async def publish(stream: ServerStream) -> None:
        await stream.receive()
        await stream.send(answer.SerializeToString())

    async with memory_host({methods.PUBLISH: publish}) as host, connected_to(host) as connection:
        version = table_of(connection).transaction("load", 7)
        if refused:
            with pytest.raises(DataCorrupted, match=refused):
                await version.publish({0: 1})
        else:
            published = await version.publish({0: 1})
            assert (published.decided, published.attempts) == (
                answer.decided,
                {0: answer.attempts[0].attempt},
            )


async def test_scalars_of_pyarrow_are_the_numbers_that_they_stand_for() -> None:
    """Those of a column equal no number: what is staged at least was forgotten, and fewer rows were published."""
    asked: list[pb.PublishRequest] = []

    async def publish(stream: ServerStream) -> None:
        asked.append(pb.PublishRequest.FromString(await stream.receive()))
        stream.send_last(pb.PublishResponse(version=VERSION, attempts=attempt_of_0(1)).SerializeToString())

    async def stage(stream: ServerStream) -> None:
        while await stream.receive() is not None:
            pass
        stream.send_last(pb.StageResponse(rows=2).SerializeToString())

    handlers = {methods.PUBLISH: publish, methods.STAGE: stage}
    async with memory_host(handlers) as host, connected_to(host) as connection:
        zero, one, five = pa.array([0, 1, 5])
        version = table_of(connection).transaction("load", 7)
        await version.publish({zero: one}, rows={zero: five})
        await version.stage(ROWS, part=zero, attempt=one)
        async with version.part(zero, one) as writer:
            await writer.upsert(ROWS)
        await version.publish({0: 1})
    assert [each.attempts[0].rows_min for each in asked] == [5, 4]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (pb.StageResponse(rows=1).SerializeToString(), DataCorrupted, "2 rows were sent, .* has staged 1"),
        (b"\xff", DataCorrupted, "the answer to a stage cannot be read"),
        (None, ServerUnavailable, "before it said that it is durable"),
    ],
)
async def test_what_is_not_said_to_be_durable_is_not_staged(
    answer: bytes | None, kind: type[Exception], words: str
) -> None:
    """Fewer rows than were sent, nothing that can be read, or nothing."""

    async def stage(stream: ServerStream) -> None:
        while await stream.receive() is not None:
            pass
        if answer is not None:
            await stream.send(answer)

    async with memory_host({methods.STAGE: stage}) as host, connected_to(host) as connection:
        with pytest.raises(kind, match=words):
            async with table_of(connection).transaction("load", 7).part(0, 0) as writer:
                await writer.upsert(ROWS)
