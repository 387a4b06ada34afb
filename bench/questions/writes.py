"""What does a write cost at the disk, and what does a scan wait for beside it?

Ways to write the same rows, in turn, round by round, each in a fresh directory, a request a commit with one sync:

    puts        rocksdict's own WriteBatch, rows alone, sorted by key as weir's: no changelog, no before-images. What
                the engine can do
    files       the same rows of all requests, sorted by key, as one file of RocksDB's that is ingested: no log either
    records     the same, with before-images read and a record for each change: what weir did up to format 1
    weir        a bucket of weir: before-images, entries, lineage
    overwrites  the same bucket of weir, every row again with other values
    load        `weir load` of a Parquet file of more such rows into a table of four buckets of a server, both processes
                and their start included
    load 64     the same into a table of 64 buckets

What inserts leave on the disk, rows and log, once all of it is in RocksDB's files, is divided by the octets of the
values: of the cells as Arrow has them, without offsets and null bits. That is done with the rows above, with TPC-H's
lineitem, and with a key and 64 octets of random hexadecimal digits or of anything. Then one large commit, and scans
that are opened beside it: the share of the commit for which an open has to wait.

What was expected: of 8192 inserts half of what puts take goes into the memtable and the sync, and reading what is not
there costs as much again; entries spare one put of two. Random octets cannot take less than two octets each: rows and
log both hold them, since each outlives the other, and no coding makes them shorter.

What was found by profile: keys looked up and rows inserted in random order were 70 % of a commit. In key order both
take a quarter to a half of that, and a filter in the memtable answers for keys that are not there. Of what was left,
and of a load even more, most was Python objects for each row; a request is columns now until RocksDB takes its rows.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import rocksdict
import trio

from bench.harness.bars import Bar, at_least, at_most, write_json
from bench.harness.cli_load import timed_load
from bench.harness.sheet import Sheet
from bench.harness.spread import ratio
from bench.peers.rows import PRIMARY_KEY, SCHEMA
from bench.tpch.data import PRIMARY_KEYS, generate, read_rows, table_schema
from scanner.data.table import TableDescription
from scanner.server.config import ScannerConfig
from scanner.server.tables.bucket import ServedBucket
from scanner.storage.interface import Mutation, Mutations
from scanner.storage.rocksdb.store import RocksStore
from scanner.tasks import in_thread

if TYPE_CHECKING:
    from rich.console import Console

TABLE = TableDescription("items", SCHEMA, PRIMARY_KEY, 1)
BLOBS = TableDescription(
    TABLE.name, pa.schema([pa.field("id", pa.int64(), nullable=False), ("octets", pa.binary())]), ("id",), 1
)
LINEITEM_ROWS_OF_SCALE = 6_000_000
MANY_BUCKETS = 64
LOAD_MANY = f"load {MANY_BUCKETS}"
WAYS = ("puts", "files", "records", "weir", "overwrites", "load", LOAD_MANY)
INSERTS_OVER_RECORDS_MIN = 1.3
INSERTS_OVER_PUTS_MIN = 0.5
OVERWRITES_OVER_PUTS_MIN = 0.35
LOAD_OVER_PUTS_MIN = 0.25
DISK_OVER_VALUES_MAX = {"names": 1.8, "lineitem": 1.8, "digits": 1.8, "octets": 2.2}
"""Of random octets: twice each, and a tenth of a row for its key, which RocksDB keeps beside it."""
_PAUSE_S = 0.002
_BLOB_BYTES = 64
_DISK_REQUEST_ROWS = 8192
WAIT_SHARE_MAX = 0.5

Requests = Sequence[Mutations]
Objects = Sequence[Sequence[Mutation]]
"""The same as Python objects, which is what rocksdict takes."""


@dataclass(frozen=True, slots=True)
class Rate:
    """One way's rows a second, of each round."""

    by_clock: list[float]
    by_cpu: list[float]


@dataclass(frozen=True, slots=True)
class Wait:
    """Scans opened beside one large commit."""

    rows: int
    commit_s: float
    longest_open_s: float
    opens: int


def _batch(ids: Sequence[int], word: str) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(ids, pa.int64()),
            pa.array([f"{word}-{each}-of-a-name-of-usual-length-and-more" for each in ids]),
            pa.array([each / 4 for each in ids]),
            pa.array([each % 1000 for each in ids], pa.int32()),
        ],
        schema=TABLE.schema,
    )


def _batches(ids: Sequence[int], word: str, rows: int) -> list[pa.RecordBatch]:
    return [_batch(ids[start : start + rows], word) for start in range(0, len(ids), rows)]


def _requests(store: RocksStore, batches: Sequence[pa.RecordBatch]) -> Requests:
    keys, rows = store.key_codec(TABLE.name), store.row_codec(TABLE.name)
    return [Mutations(keys.encode_array(batch), rows.encode_array(batch)) for batch in batches]


def _timed(write: Callable[[Any], object], requests: Requests | Objects) -> tuple[float, float]:
    """Rows a second, by the clock and by CPU."""
    rows = sum(map(len, requests))
    cpu, started = time.process_time(), time.perf_counter()
    for request in requests:
        write(request)
    return rows / (time.perf_counter() - started), rows / (time.process_time() - cpu)


def _raw(directory: Path) -> tuple[rocksdict.Rdict, Any, Any]:
    families = {name: rocksdict.Options(raw_mode=True) for name in ("kv", "log")}
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    raw = rocksdict.Rdict(str(directory), options, families)
    return raw, raw.get_column_family_handle("kv"), raw.get_column_family_handle("log")


def _put(raw: rocksdict.Rdict, kv: Any, request: Sequence[Mutation]) -> None:
    batch = rocksdict.WriteBatch(raw_mode=True)
    for key, row in sorted(request):
        batch.put(key, row, kv)
    raw.write(batch)
    raw.flush_wal(sync=True)


def _ingest(raw: rocksdict.Rdict, file: Path, rows: Sequence[Mutation]) -> None:
    writer = rocksdict.SstFileWriter(options=rocksdict.Options(raw_mode=True))
    writer.open(str(file))
    for key, row in sorted(rows):
        writer[key] = row
    writer.finish()
    raw.get_column_family("kv").ingest_external_file([str(file)])


def _put_records(
    raw: rocksdict.Rdict, kv: Any, log: Any, offset: list[int], request: Sequence[Mutation]
) -> None:
    keys: Any = [key for key, _ in request]
    before: Any = raw.get_column_family("kv").get(keys)
    batch = rocksdict.WriteBatch(raw_mode=True)
    for (key, row), was in zip(request, before, strict=True):
        assert was is None
        assert row is not None
        batch.put(offset[0].to_bytes(8, "big"), b"\x01" + bytes(8) + row, log)
        offset[0] += 1
        batch.put(key, row, kv)
    raw.write(batch)
    raw.flush_wal(sync=True)


@dataclass(frozen=True, slots=True)
class Disk:
    """Octets in RocksDB's table files for an octet of the values, once they are inserted."""

    rows: float
    log: float

    @property
    def together(self) -> float:
        """Of rows and log."""
        return round(self.rows + self.log, 2)


def _disks(scratch: Path, rows: int) -> dict[str, Disk]:
    """What inserts of each kind of values leave on the disk."""
    generate(scratch, max(0.01, rows / LINEITEM_ROWS_OF_SCALE), ["lineitem"])
    lineitem = TableDescription(
        TABLE.name, table_schema(scratch, "lineitem"), tuple(PRIMARY_KEYS["lineitem"]), 1
    )
    items = [
        lineitem.conform(batch)
        for table in read_rows(scratch, "lineitem", _DISK_REQUEST_ROWS)
        for batch in table.to_batches()
    ]
    named = _batches(_shuffled(rows), "first", _DISK_REQUEST_ROWS)
    octets = random.Random(2).randbytes(_BLOB_BYTES * rows)
    return {
        "names": _disk(scratch / "names", TABLE, named),
        "lineitem": _disk(scratch / "items", lineitem, items),
        "digits": _disk(scratch / "digits", BLOBS, _blobs(rows, octets.hex().encode())),
        "octets": _disk(scratch / "octets", BLOBS, _blobs(rows, octets)),
    }


def _blobs(rows: int, octets: bytes) -> list[pa.RecordBatch]:
    cells = [octets[_BLOB_BYTES * row : _BLOB_BYTES * (row + 1)] for row in range(rows)]
    batch = pa.record_batch([pa.array(_shuffled(rows)), pa.array(cells, pa.binary())], schema=BLOBS.schema)
    return [batch.slice(start, _DISK_REQUEST_ROWS) for start in range(0, rows, _DISK_REQUEST_ROWS)]


def _disk(directory: Path, table: TableDescription, batches: Sequence[pa.RecordBatch]) -> Disk:
    with RocksStore.open(directory) as store:
        store.create_table(table)
        bucket, keys, rows = (
            store.bucket(table.name, 0),
            store.key_codec(table.name),
            store.row_codec(table.name),
        )
        for batch in batches:
            bucket.commit([Mutations(keys.encode_array(batch), rows.encode_array(batch))])
        bucket.flush()
        values, log = sum(map(_values_bytes, batches)), bucket.log_bytes
    stored = sum(each.stat().st_size for each in directory.rglob("*.sst"))
    return Disk(round((stored - log) / values, 2), round(log / values, 2))


def _values_bytes(batch: pa.RecordBatch) -> int:
    return sum(
        len(column) * column.type.bit_width // 8
        if pa.types.is_primitive(column.type) or pa.types.is_decimal(column.type)
        else pc.sum(pc.binary_length(column)).as_py()
        for column in batch.columns
    )


def _round(scratch: Path, requests: Requests, others: Requests) -> dict[str, tuple[float, float]]:
    found = {}
    objects = list(map(list, requests))
    raw, kv, _ = _raw(scratch / "puts")
    found["puts"] = _timed(partial(_put, raw, kv), objects)
    raw.close()
    raw, _, _ = _raw(scratch / "files")
    everything = [mutation for request in objects for mutation in request]
    found["files"] = _timed(partial(_ingest, raw, scratch / "rows.sst"), [everything])
    raw.close()
    raw, kv, log = _raw(scratch / "records")
    found["records"] = _timed(partial(_put_records, raw, kv, log, [0]), objects)
    raw.close()
    with RocksStore.open(scratch / "weir") as store:
        store.create_table(TABLE)
        bucket = store.bucket(TABLE.name, 0)
        found["weir"] = _timed(lambda request: bucket.commit([request]), requests)
        found["overwrites"] = _timed(lambda request: bucket.commit([request]), others)
    return found


async def _wait_beside(store: RocksStore, mutations: Mutations) -> Wait:
    """Open scans one after the other while one commit of these is under way."""
    async with trio.open_nursery() as nursery:
        bucket = ServedBucket(store.bucket(TABLE.name, 0), ScannerConfig(), nursery, in_thread)
        started = trio.current_time()
        write = bucket.submit(mutations)
        longest, opens = 0.0, 0
        while not write.settled.is_set():
            # The pause counts: rocksdict holds the interpreter while it writes a batch, and then nothing else runs.
            asked = trio.current_time()
            await trio.sleep(_PAUSE_S)
            async with bucket.between_commits():
                bucket.snapshots.current().release(linger=False)
            longest, opens = max(longest, trio.current_time() - asked - _PAUSE_S), opens + 1
        return Wait(len(mutations), trio.current_time() - started, longest, opens)


def run(
    output: Path | None, console: Console, *, rounds: int, requests: int, rows: int, large: int, load: int
) -> list[Bar]:
    """Measure, write the JSON, and print."""
    rates = {way: Rate([], []) for way in WAYS}
    with tempfile.TemporaryDirectory() as directory, RocksStore.open(Path(directory) / "codecs") as codecs:
        codecs.create_table(TABLE)
        file = Path(directory) / f"{TABLE.name}.parquet"
        pq.write_table(pa.Table.from_batches([_batch(_shuffled(load), "first")]), file)
        inserts = _requests(codecs, _batches(_shuffled(requests * rows), "first", rows))
        others = _requests(codecs, _batches(_shuffled(requests * rows), "other", rows))
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}")
            scratch = Path(directory) / str(number)
            found = _round(scratch, inserts, others)
            found["load"] = timed_load(scratch / "load", file, load)
            found[LOAD_MANY] = timed_load(scratch / LOAD_MANY, file, load, MANY_BUCKETS)
            for way, (by_clock, by_cpu) in found.items():
                rates[way].by_clock.append(round(by_clock))
                rates[way].by_cpu.append(round(by_cpu))
        disks = _disks(Path(directory) / "disk", requests * rows)
        (mutations,) = _requests(codecs, [_batch(range(large), "large")])
        wait = trio.run(_wait_beside, codecs, mutations)
    share = wait.longest_open_s / wait.commit_s
    judged = write_json(output, _bars(rates, share, disks), rates=rates, disk=disks, wait=wait)
    console.print(_table(rates).rich())
    console.print(
        f"a commit of {wait.rows} rows took {wait.commit_s:.2f} s; of {wait.opens} scans opened beside it the longest"
        f" waited {wait.longest_open_s:.2f} s, {share:.0%} of it"
    )
    for kind, disk in disks.items():
        console.print(f"an octet of {kind} takes {disk.rows} octets as rows and {disk.log} in the log")
    return judged


def _shuffled(count: int) -> list[int]:
    ids = list(range(count))
    random.Random(1).shuffle(ids)
    return ids


def _ratio(rates: dict[str, Rate], way: str, other: str, *, cpu: bool = False) -> float:
    return ratio(*(rates[each].by_cpu if cpu else rates[each].by_clock for each in (way, other)))


def _bars(rates: dict[str, Rate], share: float, disks: dict[str, Disk]) -> list[Bar]:
    records = _ratio(rates, "weir", "records", cpu=True)
    return [
        at_least("inserts over a record per change, by CPU", records, INSERTS_OVER_RECORDS_MIN),
        at_least("inserts over puts, by CPU", _ratio(rates, "weir", "puts", cpu=True), INSERTS_OVER_PUTS_MIN),
        at_least(
            "overwrites over puts, by CPU",
            _ratio(rates, "overwrites", "puts", cpu=True),
            OVERWRITES_OVER_PUTS_MIN,
        ),
        at_least("weir load over puts, by CPU", _ratio(rates, "load", "puts", cpu=True), LOAD_OVER_PUTS_MIN),
        *(
            at_most(f"octets on the disk for an inserted octet of {kind}", disks[kind].together, bound)
            for kind, bound in DISK_OVER_VALUES_MAX.items()
        ),
        at_most("longest wait of a scan beside a commit, of the commit", share, WAIT_SHARE_MAX),
    ]


def _table(rates: dict[str, Rate]) -> Sheet:
    rows = [
        (
            way,
            f"{statistics.median(rate.by_clock):,.0f}",
            f"{_ratio(rates, way, 'puts'):.2f}",
            f"{statistics.median(rate.by_cpu):,.0f}",
            f"{_ratio(rates, way, 'puts', cpu=True):.2f}",
        )
        for way, rate in rates.items()
    ]
    return Sheet("rows a second, medians", ("", "by clock", "over puts", "by CPU", "over puts"), rows)
