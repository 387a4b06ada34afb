"""Arguments of a wrong type are refused at the call, by one line, before anything is sent or done."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Awaitable, Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import scanner
from scanner import KeyRange, LeaseTarget, col
from scanner.client.arguments import flag, is_number, is_time, whole
from scanner.client.scan.group_scan import GroupBatches
from scanner.client.table import Table
from scanner.data.table import TableDescription

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("s", pa.string())])
ROWS = pa.table({"k": [1], "s": ["a"]})


class Unreached:
    """A connection that nobody gets as far as."""

    def __getattr__(self, name: str) -> NoReturn:
        pytest.fail(f"the connection was asked for {name}")


def wrong(value: object) -> Any:
    """A value of a type that is none of the argument's, on purpose."""
    return value


CLIENT = wrong(scanner.Client(wrong(Unreached()), "nowhere"))
TABLE = wrong(Table(wrong(Unreached()), TableDescription("t", SCHEMA, ("k",), 2), 7))
SCAN = TABLE.new_scan()
LOG = SCAN.with_source("log")


def group_reader() -> GroupBatches:
    """A reader of a group, in trio's loop."""
    return GroupBatches(LOG.in_group("g").plan, wrong(Unreached()))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: CLIENT.table(None), "the name of a table is text, not None"),
        (lambda: CLIENT.table(b"t"), "the name of a table is text, not b't'"),
        (lambda: CLIENT.table("a\udc80"), "is no Unicode text"),
        (lambda: CLIENT.create_table(None, SCHEMA, "k"), "the name of a table is text"),
        (
            lambda: CLIENT.create_table("t", {"k": "int64"}, "k"),
            "the schema of a table must be of type Schema",
        ),
        (lambda: CLIENT.create_table("t", SCHEMA, None), "the primary key must be of type Iterable"),
        (lambda: CLIENT.create_table("t", SCHEMA, {"s", "k"}), "the primary key has an order"),
        (lambda: CLIENT.create_table("t", SCHEMA, [0]), "the name of a key column is text"),
        (lambda: CLIENT.create_table("t", SCHEMA, "k", "4"), "the number of buckets must be a whole number"),
        (lambda: CLIENT.create_table("t", SCHEMA, "k", True), "the number of buckets must be a whole number"),
        (lambda: CLIENT.create_table("t", SCHEMA, "k", exist_ok="no"), "exist_ok is True or False"),
        (lambda: CLIENT.drop_table(7, table_id=1), "the name of a table is text"),
        (lambda: CLIENT.drop_table("t", table_id="1"), "table id must be a whole number"),
        (lambda: CLIENT.list_snapshots(7), "the name of a table is text"),
        (lambda: CLIENT.checkpoint(b"t"), "the name of a table is text"),
        (lambda: CLIENT.list_checkpoints(None), "the name of a table is text"),
        (lambda: CLIENT.compact_log("t", before=pd.NaT), "a time is a datetime, not NaT"),
        (lambda: CLIENT.image_states(None), "the name of a table is text"),
        (lambda: CLIENT.list_leases(7), "the name of a table is text"),
        (lambda: CLIENT.acquire_lease("t", ttl_s="10"), "not '10'; renew it from time to time"),
        (lambda: CLIENT.acquire_lease("t", ttl_s=True), "not True; renew it"),
        (lambda: CLIENT.acquire_lease("t", ttl_s=np.timedelta64(10, "s")), "not np.*10.*; renew it"),
        (lambda: CLIENT.acquire_lease("t", ttl_s=Decimal("NaN")), r"not Decimal\('NaN'\); renew it"),
        (lambda: CLIENT.acquire_lease("t", lease_id=7), "the id of a lease is text"),
        (lambda: CLIENT.acquire_lease("t", lease_id="l", id_age_s="5"), "s old, not '5'"),
        (lambda: CLIENT.acquire_lease("t", partial="no"), "partial is True or False"),
        (lambda: CLIENT.acquire_lease(7), "must be of type LeaseTarget, not 7"),
        (lambda: CLIENT.acquire_lease(LeaseTarget("t", state=wrong(7))), "unknown state 7"),
        (lambda: CLIENT.acquire_lease(LeaseTarget(wrong(b"t"))), "the name of a table is text, not b't'"),
        (lambda: CLIENT.leases.renew("l", "10"), "not '10'; renew it"),
        (lambda: CLIENT.leases.release("l", None, ()), "the name of a table is text"),
        (lambda: CLIENT.leases.drop("l", 7), "the name of a principal is text, not 7"),
        (lambda: CLIENT.drain("5"), "a drain takes"),
        (lambda: CLIENT.scan("t"), "a plan must be of type ScanPlan, not 't'"),
        (lambda: TABLE.add_column("colour"), "a column must be of type Field"),
        (lambda: TABLE.write(ROWS, "print"), "on_acknowledged is a function, not 'print'"),
        (lambda: TABLE.delete(7), "what keys are in, if it is no Arrow, must be of type Iterable"),
        (lambda: TABLE.get([(1,)], columns="s"), "columns is a list of names, not 's'"),
        (lambda: TABLE.get([(1,)], columns=[["s"]]), "the name of a column is text"),
        (lambda: TABLE.offsets(at=pd.NaT), "a time is a datetime, not NaT"),
        (lambda: TABLE.split(0, splits="2"), "splits must be a whole number"),
        (lambda: TABLE.split(0, target_bytes=True), "target_bytes must be a whole number"),
        (lambda: TABLE.measure_log(7), "positions must be of type Mapping"),
        (lambda: TABLE.measure_log({0: 0, "1": 0}), "table 't' has no bucket '1'"),
        (lambda: TABLE.group(7), "the name of the reader group is text"),
        (lambda: TABLE.delete_group(b"g"), "the name of the reader group is text"),
        (lambda: TABLE.transaction(b"n", 1), "the name of a transaction is text"),
        (lambda: TABLE.transaction("n", 1).publish([0]), "attempts must be of type Mapping"),
        (lambda: TABLE.transaction("n", 1).publish({0: 0, "1": 0}), "part is a whole number.*, not '1'"),
        (lambda: TABLE.transaction("n", 1).publish({}, rows=5), "rows must be of type Mapping"),
        (lambda: TABLE.transaction("n", 1).publish({}, overwrite="no"), "overwrite is True or False"),
        (lambda: SCAN.select(["k", "s"]), r"select\('a', 'b'\)"),
        (lambda: SCAN.with_lease(None), "a lease or its id, not None"),
        (lambda: SCAN.with_lease(SimpleNamespace(id=7)), "the id of the lease is text"),
        (lambda: SCAN.within(KeyRange(b"", wrong("z"))), "a range that a split gave"),
        (lambda: SCAN.where(col("s").startswith("a\udc80")), "is no Unicode text"),
        (lambda: SCAN.where(col("k").isin(wrong(7))), "isin takes a list of values, not 7"),
        # Numbers to Python, one for each octet.
        (lambda: SCAN.where(col("k").isin(bytearray(b"7"))), "isin takes a list of values, not bytearray"),
        (lambda: SCAN.where(col("k").isin(memoryview(b"7"))), "isin takes a list of values, not <memory"),
        (lambda: SCAN.key_prefix(bytearray(b"7")), "a tuple or a dict of key values, not bytearray"),
        (lambda: scanner.parse_where(wrong(b"k > 1")), "a condition is text here"),
        (lambda: LOG.start_at(pd.NaT), "start_at takes"),
        (lambda: group_reader().commit(wrong([3])), "positions must be of type Mapping"),
        (lambda: group_reader().commit({wrong("0"): 3}), "the bucket in positions must be a whole number"),
        (
            lambda: group_reader().commit({2: 3}),
            r"the bucket in positions must be a whole number, 0\.\.1, not 2",
        ),
        (lambda: group_reader().commit({0: wrong("3")}), "positions of bucket 0 must be a whole number"),
        (lambda: group_reader().commit({0: -1}), "positions of bucket 0 must be a whole number"),
        (lambda: LOG.in_group(7), "the name of the reader group is text"),
        (lambda: LOG.in_group("g", auto_commit="no"), "auto_commit is True or False"),
    ],
)
async def test_refused(call: Callable[[], object], words: str) -> None:
    """The error is ours, has the argument's name and the value, and the connection is not touched."""
    with pytest.raises(scanner.ScannerError, match=words) as caught:
        result = call()
        if isinstance(result, Awaitable):
            await result
    assert caught.value.reason in ("ARGUMENT_INVALID", "BUCKET_NOT_FOUND", "SCHEMA_MISMATCH")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"endpoint": None}, "an endpoint must be of type str"),
        ({"endpoint": b"127.0.0.1"}, "an endpoint must be of type str"),
        ({"endpoint": "127.0.0.1\0.example.com:1"}, "is not HOST:PORT"),
        ({"retries": "3"}, "retries must be a whole number"),
        ({"config": {}}, "config must be of type TransportConfig"),
        (
            {"ssl_context": True},
            "ssl_context is an ssl.SSLContext, .* or a function that returns one at once, not bool",
        ),
        ({"ssl_context": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "that of a server .* makes a client's"),
        ({"rng": 7}, "rng must be of type Random"),
        ({"token": "t", "insecure_token": "no"}, "insecure_token is True or False"),
    ],
)
async def test_refused_before_it_connects(arguments: dict[str, Any], words: str) -> None:
    """What a connection cannot be made with is told before anything is dialled, and not when it is first needed."""
    with pytest.raises(scanner.ArgumentInvalid, match=words):
        async with scanner.connect(**{"endpoint": "127.0.0.1:1", **arguments}):
            pass


def test_numbers_of_numpy_are_numbers() -> None:
    """What means the number that it says is taken: numpy's, and decimals; a bool is none, nor is text."""
    threes: list[Any] = [3, np.int8(3), np.uint64(3)]
    flags: list[Any] = [True, np.False_, 1, None]
    assert [whole(each, "it", 0, 9) for each in threes] == [3, 3, 3]
    assert all(map(is_number, (3, 0.5, np.float32(0.5), np.int64(3), Decimal("0.5"))))
    assert not any(map(is_number, (True, np.True_, "3", None, Decimal("NaN"), Decimal("sNaN"))))
    assert LOG.start_at(np.int64(3)).stop_at(np.int64(5)).plan.log_stop_of(0) == 5
    assert [flag("it", each) for each in flags] == [True, False, True, False]
    assert all(map(is_time, (datetime.datetime(2026, 1, 1), pd.Timestamp("2026-01-01"))))
    assert not any(map(is_time, (pd.NaT, datetime.date(2026, 1, 1), np.datetime64("2026-01-01"))))
