"""The line that a scan leaves in the log, and what is not in it."""

from __future__ import annotations

import logging

import pytest
import trio

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.kv_scan import KvScan
from scanner.wire.statuses import from_call_failed
from tests.support.scans import filled_store, open_scan, serving
from transport import CallFailed

pytestmark = pytest.mark.socket

ROWS = 3000


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """The fields of each line."""
    records = [each.getMessage() for each in caplog.records if each.name == "weir.scans"]
    assert all(each.startswith("scan ended ") for each in records)
    return [dict(field.split("=", 1) for field in each.split()[2:]) for each in records]


async def test_each_scan_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Reason, table, sizes, times and whose; a scan that came to its end, one that was left, one of a dropped table."""
    caplog.set_level(logging.INFO, "weir.scans")
    async with serving(filled_store(ROWS)) as (server, client):
        async with open_scan(client, window_only=True) as scan:
            await scan.receive_all()
        async with open_scan(client, credit=1000) as left:
            await left.receive()
        while server.statistics().push_scans_open:
            await trio.lowlevel.checkpoint()
        async with open_scan(client) as dropped:
            await dropped.receive()
            await client.call("/weir.v1.Tables/DropTable", pb.ScanQuery(table="items").SerializeToString())
            with pytest.raises(CallFailed) as failure:
                await dropped.receive_all()
        assert from_call_failed(failure.value).reason == "TABLE_NOT_FOUND"
        ended = server.statistics().activity.scans_ended
    first, second, third = lines(caplog)
    assert (first["reason"], first["table"], first["bucket"]) == ("exhausted", "items", "0")
    assert (first["rows"], first["bytes"], first["source"]) == (
        str(ROWS),
        str(scan.received_bytes),
        "LIVE_KV",
    )
    assert first["principal"] == "anonymous"
    assert first["stalls"].startswith("running:")
    as_json = next(each.args for each in caplog.records if each.name == "weir.scans")
    assert isinstance(as_json, dict)
    assert [type(as_json[name]) for name in ("rows", "bytes", "seconds")] == [int, int, float]
    assert (second["reason"], third["reason"]) == ("cut_off", "table_not_found")
    assert ended == {"exhausted": 1, "cut_off": 1, "table_not_found": 1}


async def test_what_nobody_has_foreseen_is_no_cut(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that the server could not go on with is counted, and logged, by what its client is told."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(KvScan, "step", fail)
    caplog.set_level(logging.INFO, "weir.scans")
    async with serving(filled_store(1)) as (server, client):
        async with open_scan(client, window_only=True) as scan:
            with pytest.raises(CallFailed) as failure:
                await scan.receive_all()
        assert from_call_failed(failure.value).reason == "INTERNAL"
        assert server.statistics().activity.scans_ended == {"internal": 1}
    assert [each["reason"] for each in lines(caplog)] == ["internal"]


async def test_nothing_of_the_data_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Neither columns and literals of a query nor its stream id, which could replace the scan, come into the log."""
    caplog.set_level(logging.DEBUG)
    predicate = pb.Predicate(
        column="name", operator=pb.Predicate.OPERATOR_EQUAL, literals=[pb.Literal(text="very-secret")]
    )
    query = pb.ScanQuery(table="items", columns=["price"], filter=[predicate])
    async with serving(filled_store(10)) as (_, client):
        async with open_scan(client, query=query, window_only=True, stream_id=b"private-stream") as scan:
            await scan.receive_all()
    assert len(lines(caplog)) == 1
    assert not [word for word in ("very-secret", "price", "private-stream") if word in caplog.text]
