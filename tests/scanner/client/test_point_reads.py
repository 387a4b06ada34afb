"""Point reads by the clients against a real server: what they find is what scans show, however it is asked for."""

from __future__ import annotations

import datetime
import decimal
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio
import trio.testing

import scanner
import scanner.client.point_reads
import scanner.sync
from scanner.data.digest import checksum
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from scanner.wire.arrow_ipc import encode_stream
from tests.support.client import SCHEMA, open_client, open_table, rows
from tests.support.nightly import everyday
from tests.support.seals import unsealed
from tests.support.server import running_server

if TYPE_CHECKING:
    from scanner.client.table import Keys

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


async def test_rows_come_in_the_order_of_their_keys(tmp_path: Path) -> None:
    """Found rows, in the order asked for, twice where asked twice; the others are named as missing."""
    async with open_table(tmp_path, 50) as (table, server):
        result = await table.get([(7,), (99,), (3,), (7,), (-1,)])
        assert result.rows.equals(rows(50).take([7, 3, 7]).cast(result.rows.schema))
        assert result.found == (True, False, True, True, False)
        assert result.missing.column("k").to_pylist() == [99, -1]
        one = await table.get(pa.record_batch({"k": pa.array([4], pa.int8())}), columns=["number", "k"])
        assert one.rows.to_pydict() == {"number": [2.0], "k": [4]}
        none = await table.get([])
        assert (none.rows.num_rows, none.rows.schema.names) == (0, SCHEMA.names)
        assert (none.found, none.log_offsets, none.missing.num_rows) == ((), {}, 0)
        assert server.statistics().iterators_open == 0


async def test_what_is_given_nothing_lets_the_other_tasks_run(tmp_path: Path) -> None:
    """A loop over empty batches would hold up all else, and could not be cancelled."""
    nothing = rows(0)
    async with open_table(tmp_path, 1, buckets=1) as (table, _), table.open_writer() as writer:
        with trio.testing.assert_checkpoints():
            await table.write(nothing)
        with trio.testing.assert_checkpoints():
            await table.delete([])
        with trio.testing.assert_checkpoints():
            await table.get([])
        with trio.testing.assert_checkpoints():
            await writer.write(nothing)


async def test_a_get_as_of_an_offset_shows_that_state(tmp_path: Path) -> None:
    """What was replaced, deleted or added since is undone for the keys asked for, and the answer says of what it is."""
    async with open_table(tmp_path, 20, buckets=2) as (table, _):
        before = await table.get([(k,) for k in range(22)])
        await table.write(rows(3, first=5, width=40))
        await table.delete([(9,)])
        await table.write(rows(2, first=20))
        await table.write(rows(1, first=5, width=60))
        now = await table.get([(k,) for k in range(22)])
        again = await table.get(
            [(k,) for k in range(22)], as_of=before.log_offsets, histories=before.histories
        )
    assert again.rows.equals(before.rows)
    assert (again.log_offsets, again.histories) == (before.log_offsets, before.histories)
    assert (before.rows.num_rows, now.rows.num_rows) == (20, 21)
    assert now.rows.column("text").to_pylist()[5] == f"{5:060}"


async def test_states_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """An offset that is not there yet, one of another history, a bucket left out: errors, never other rows."""
    async with open_table(tmp_path, 100, buckets=2) as (table, _):
        await table.write(rows(100, width=30))
        ends = {each.bucket: each.end_offset for each in await table.offsets()}
        keys = [(k,) for k in range(100)]
        with pytest.raises(
            scanner.OffsetOutOfRange, match=r"bucket [0-9]+: the changelog .*there is no state as of"
        ):
            await table.get(keys, as_of={bucket: end + 1 for bucket, end in ends.items()})
        with pytest.raises(
            scanner.ArgumentInvalid, match="a key belongs to bucket 1, which is given no offset"
        ):
            await table.get(keys, as_of={0: 0})
        with pytest.raises(scanner.ArgumentInvalid, match=r"0\.\.1"):
            await table.get(keys, as_of={2: 0})
        with pytest.raises(scanner.ArgumentInvalid, match="histories goes with as_of"):
            await table.get(keys, histories={0: b"x" * 16})
        with pytest.raises(scanner.SnapshotLost):
            await table.get(keys, as_of=ends, histories=dict.fromkeys(ends, b"x" * 16))
        assert (await table.get(keys, as_of=0)).rows.num_rows == 0


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([("x",)], scanner.KeyInvalid),
        ([(None,)], scanner.KeyInvalid),
        ([(1, 2)], scanner.KeyInvalid),
        ([{"other": 1}], scanner.KeyInvalid),
        ([bytearray(b"7")], scanner.KeyInvalid),
        ([memoryview(b"7")], scanner.KeyInvalid),
        ([(1.5,)], scanner.KeyInvalid),
        ([(2**63,)], scanner.KeyInvalid),
        (pa.table({"k": ["1"]}), scanner.SchemaMismatch),
        (pa.table({"k": [1.0]}), scanner.SchemaMismatch),
        (pa.table({"k": [1], "x": [1]}), scanner.SchemaMismatch),
        (pa.table({"k": pa.array([1, None])}), scanner.KeyInvalid),
    ],
)
async def test_keys_are_exact_or_refused(
    tmp_path: Path, keys: Keys, error: type[scanner.ScannerError]
) -> None:
    """Nothing is rounded or parsed into a key that is there."""
    async with open_table(tmp_path, 5) as (table, _):
        with pytest.raises(error):
            await table.get(keys)


async def test_many_keys_are_asked_for_in_parts_of_one_state(tmp_path: Path) -> None:
    """Keys and rows beyond what one call takes come all the same, each bucket as of one offset while it is written."""
    config = ScannerConfig(get_keys_max=100, get_bytes_max=20_000)
    async with open_table(tmp_path, 1000, width=1000, config=config) as (table, _):
        written = trio.Event()

        async def write_on() -> None:
            for turn in range(8):
                await table.write(rows(1000, width=1001 + turn))
                written.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            await written.wait()
            result = await table.get([(k,) for k in range(1100)])
            nursery.cancel_scope.cancel()
        scanned = await table.new_scan().as_of(result.log_offsets, result.histories).to_arrow()
    assert result.found == (True,) * 1000 + (False,) * 100
    assert result.rows.equals(scanned.sort_by("k").combine_chunks())


PAIRS = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("amount", pa.decimal128(20, 3), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("value", pa.string()),
    ]
)
"""A table with a key of three columns."""


def pair(number: int, value: str | None) -> dict[str, object]:
    """The row of a number; names share beginnings, amounts and times are far apart."""
    return {
        "name": ["", "a", "a\0", "ab", "\u00e9"][number % 5],
        "amount": decimal.Decimal(number * 10**12 - 7).scaleb(-3),
        "at": datetime.datetime(1900 + number, 1, 1, tzinfo=datetime.UTC),
        "value": value,
    }


@pytest.mark.parametrize("kind", ["rocks", "memory"])
@pytest.mark.parametrize("seed", range(everyday(2, nightly=20)))
async def test_a_get_is_the_scan_of_the_same_state(tmp_path: Path, kind: str, seed: int) -> None:
    """Random writes, keys, columns and offsets: a get has the rows that a scan has of these keys, and all of them."""
    rng = random.Random(seed)
    buckets = rng.choice([1, 3])
    store = MemoryStore() if kind == "memory" else tmp_path
    async with open_client(store) as (client, server):
        table = await client.create_table("pairs", PAIRS, ["name", "amount", "at"], buckets)
        states: list[dict[int, int]] = [dict.fromkeys(range(buckets), 0)]
        schema = PAIRS
        for turn in range(14):
            if turn == 7:
                schema = PAIRS.append(pa.field("later", pa.int32()))
                await table.add_column(schema.field("later"))
            some = [rng.randrange(40) for _ in range(rng.randrange(1, 30))]
            new = [
                {**pair(number, rng.choice([None, "x" * rng.randrange(2000)])), "later": turn}
                for number in some
            ]
            await table.write(pa.Table.from_pylist(new, schema))
            gone = pa.Table.from_pylist([pair(rng.randrange(40), None) for _ in range(3)], PAIRS)
            await table.delete(gone.drop(["value"]))
            states.append({each.bucket: each.end_offset for each in await table.offsets()})
        for _ in range(25):
            asked = [pair(rng.randrange(45), None) for _ in range(rng.randrange(1, 60))]
            columns = rng.choice([(), ("value", "name", "amount", "at"), ("at", "later", "amount", "name")])
            keys = pa.Table.from_pylist(asked, PAIRS).drop(["value"])
            as_of = rng.choice([None, *states])
            result = await table.get(keys, columns=columns, as_of=as_of)
            whole = {bucket: result.log_offsets.get(bucket, 0) for bucket in range(buckets)}
            scan = table.new_scan().as_of(whole)
            scanned = (await (scan.select(*columns) if columns else scan).to_arrow()).to_pylist()
            by_key = {(row["name"], row["amount"], row["at"]): row for row in scanned}
            wanted = [(row["name"], row["amount"], row["at"]) for row in asked]
            assert result.rows.to_pylist() == [by_key[key] for key in wanted if key in by_key]
            assert result.found == tuple(key in by_key for key in wanted)
            assert result.missing.num_rows == result.found.count(False)
            if as_of is not None:
                assert all(as_of[bucket] == offset for bucket, offset in result.log_offsets.items())
        assert server.statistics().iterators_open == 0


async def test_a_lost_log_is_said_and_not_replaced(tmp_path: Path) -> None:
    """When retention has cut the changes since an offset, a get as of it fails, and says what can still be read."""
    config = ScannerConfig(log_retention_bytes=1, retention_interval_s=0.01, snapshot_linger_s=0)
    async with open_table(tmp_path, 10, buckets=1, config=config) as (table, _):
        while (await table.offsets())[0].start_offset == 0:
            await table.write(rows(10, width=50))
        oldest = (await table.offsets())[0].start_offset
        with pytest.raises(scanner.SnapshotLost, match="bucket 0: the log starts at") as caught:
            await table.get([(1,)], as_of=oldest - 1)
        assert (caught.value.oldest_offset or 0) >= oldest
        assert (await table.get([(1,)])).rows.num_rows == 1


async def test_a_table_that_was_replaced_is_not_mixed_with_the_one_before(tmp_path: Path) -> None:
    """Between two parts of one get the table is dropped and created anew: an error, not rows of both."""
    async with open_client(tmp_path, ScannerConfig(get_keys_max=10)) as (client, _):
        table = await client.create_table("items", SCHEMA, ["k"], 2)
        await table.write(rows(100))
        connection = table._connection
        calls = 0
        call = connection.call

        async def counted(path: str, *arguments: object, **options: object) -> object:
            nonlocal calls
            calls += path == methods.GET
            if calls == 12:
                calls += 1
                await client.drop_table("items")
                again = await client.create_table("items", SCHEMA, ["k"], 2)
                await again.write(rows(100, width=5))
            return await call(path, *arguments, **options)  # type: ignore[arg-type]

        connection.call = counted  # type: ignore[method-assign]
        with pytest.raises((scanner.TableNotFound, scanner.SnapshotLost)):
            await table.get([(k,) for k in range(100)])


async def test_a_table_is_dropped_while_it_is_read(tmp_path: Path) -> None:
    """Point reads that run when their table goes end with TABLE_NOT_FOUND or whole, and leave nothing open."""
    async with open_client(tmp_path) as (client, server):
        table = await client.create_table("items", SCHEMA, ["k"], 4)
        await table.write(rows(5000))
        outcomes: list[object] = []

        async def read() -> None:
            try:
                while True:
                    result = await table.get([(k,) for k in range(5000)])
                    assert result.rows.num_rows == 5000
            except scanner.TableNotFound as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(read)
            await table.get([(1,)])
            await client.drop_table("items")
        assert len(outcomes) == 4
        assert server.statistics().iterators_open == 0


def test_the_blocking_client_gets_the_same(tmp_path: Path) -> None:
    """`scanner.sync` has the same call with the same arguments."""
    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("items", SCHEMA, ["k"])
        table.write(rows(10))
        before = table.get([(3,), (30,)])
        table.delete([(3,)])
        assert before.rows.to_pydict() == {"k": [3], "text": [f"{3:020}"], "number": [1.5]}
        assert table.get([(3,)]).found == (False,)
        again = table.get([{"k": 3}], columns=["text"], as_of=before.log_offsets, histories=before.histories)
        assert again.rows.to_pydict() == {"text": [f"{3:020}"]}


async def test_a_damaged_answer_is_no_answer(tmp_path: Path) -> None:
    """Answers of another length, with other octets, of other columns, buckets or another state are DATA_CORRUPTED."""
    async with open_table(tmp_path, 10, buckets=1) as (table, _):
        connection, call = table._connection, table._connection.call
        request = pb.GetRequest(table="items", keys=encode_stream(pa.record_batch({"k": [1, 2]})))
        answer = pb.GetResponse.FromString(bytes(await call(methods.GET, request.SerializeToString())))

        async def answered(*_: object, **__: object) -> bytes:
            return answer.SerializeToString()

        connection.call = answered  # type: ignore[method-assign]
        good = await table.get([(1,), (2,)])
        assert good.rows.num_rows == 2
        with pytest.raises(scanner.DataCorrupted, match="the answer to 1 keys is of 2"):
            await table.get([(1,)])
        answer.found[1] = False
        with pytest.raises(scanner.DataCorrupted, match="with 2 rows for 1 of them"):
            await table.get([(1,), (2,)])
        answer.found[1] = True
        with pytest.raises(scanner.DataCorrupted, match="columns"):
            await table.get([(1,), (2,)], columns=["k"])
        for others in ([(2,), (1,)], [(1,), (3,)]):
            with pytest.raises(scanner.DataCorrupted, match="have other keys than were asked for"):
                await table.get(others)
        with pytest.raises(scanner.DataCorrupted, match="was read as of"):
            await table.get([(1,), (2,)], as_of=3)
        state = answer.states.pop()
        answer.states.add(bucket=0, log_offset=state.log_offset)
        with pytest.raises(scanner.DataCorrupted, match="of another history than was asked for"):
            await table.get([(1,), (2,)], as_of=good.log_offsets, histories={0: bytes(16)})
        answer.states.pop()
        for states in ([], [pb.BucketState(bucket=1)], [state, state]):
            answer.states.extend(states)
            with pytest.raises(scanner.DataCorrupted, match=r"the keys belong to the buckets \[0\], and"):
                await table.get([(1,), (2,)])
            del answer.states[:]
        answer.states.append(state)
        plain, options = answer.arrow_stream, pa.ipc.IpcWriteOptions(compression="zstd")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, good.rows.schema, options=options) as writer:
            writer.write_table(pa.concat_tables([good.rows] * 1000).combine_chunks())
        # The first is a thousandth of what it becomes; of the second only a half would be read.
        for stream, why in (sink.getvalue().to_pybytes(), "compressed"), (2 * plain, "follow its end"):
            answer.arrow_stream, answer.crc32c = stream, checksum(stream)
            with pytest.raises(scanner.DataCorrupted, match=why):
                await table.get([(1,), (2,)])
        answer.arrow_stream, answer.crc32c = plain, checksum(plain) ^ 1
        with pytest.raises(scanner.DataCorrupted, match="checksum"):
            await table.get([(1,), (2,)])


async def test_the_parts_of_a_read_are_of_one_table_and_one_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else rows of two states would be mixed: a copy may be restored between two requests, or a table made anew."""
    monkeypatch.setattr(scanner.client.point_reads, "REQUEST_ROWS_MAX", 1)
    async with open_table(tmp_path, 10, buckets=1) as (table, _):
        connection, call = table._connection, table._connection.call
        answers: list[pb.GetResponse] = []

        async def answered(*words: Any, **options: Any) -> bytes:
            answer = pb.GetResponse.FromString(unsealed(await call(*words, **options)))
            if answers:
                change(answer)
            answers.append(answer)
            return answer.SerializeToString()

        def of_another_history(answer: pb.GetResponse) -> None:
            answer.states[0].history = bytes(range(16))

        def of_another_table(answer: pb.GetResponse) -> None:
            answer.table_id += 1

        monkeypatch.setattr(connection, "call", answered)
        for each, kind, why in (
            (of_another_history, scanner.DataCorrupted, "of another history than was asked for"),
            (of_another_table, scanner.TableNotFound, "was dropped and created anew"),
        ):
            change = each
            answers.clear()
            with pytest.raises(kind, match=why):
                await table.get([(1,), (2,)])
            assert len(answers) == 2


async def test_reads_are_made_again_when_they_fail_for_a_while(tmp_path: Path) -> None:
    """A call that changes nothing is made again, and the answer is the same; any other is made once."""
    async with open_table(tmp_path, 100) as (table, _):
        connection, call, offsets = table._connection, table._connection.call, await table.offsets()
        failures = [scanner.TooManyScans("full"), scanner.Draining("later")]

        async def failing(*arguments: object, **options: object) -> object:
            if failures:
                raise failures.pop()
            return await call(*arguments, **options)  # type: ignore[arg-type]

        connection.call = failing  # type: ignore[method-assign]

        async def rows() -> object:
            return (await table.get([(k,) for k in range(100)])).rows.num_rows

        for read, answer in (
            (rows, 100),
            (table.offsets, offsets),
            (table.groups, []),
            (table.transactions, []),
        ):
            failures.append(scanner.ServerUnavailable("cut"))
            assert await read() == answer
            assert not failures
        failures.append(scanner.ServerUnavailable("cut"))
        with pytest.raises(scanner.ServerUnavailable, match=r"^cut$"):
            await table.delete_group("readers")
        connection.has_answered = False  # As before the first call of a client.
        failures.append(scanner.ServerUnavailable("away"))
        with pytest.raises(scanner.ServerUnavailable, match=r"^away$"):
            await table.offsets()
