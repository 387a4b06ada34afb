"""The metrics: what a scraper reads of a real server, over HTTP, and that the documentation lists them all."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from scanner.errors import ArgumentInvalid
from scanner.server import metrics_http
from scanner.server.metrics_http import serve_metrics
from scanner.server.scan.read_sources import ReadSource
from scanner.server.scan.scan_log import CUT_OFF
from scanner.sources.interface import EndReason
from scanner.storage.memory.store import MemoryStore
from tests.support.scans import (
    create_table,
    description,
    filled_store,
    open_scan,
    sample,
    serving,
    write,
    write_request,
)

if TYPE_CHECKING:
    from scanner.server.server import Server

pytestmark = pytest.mark.socket

ROWS = 3000
PAGE = Path(__file__).resolve().parents[3] / "docs" / "operating.md"
Samples = dict[tuple[str, str], float]


async def request(port: int, text: str) -> str:
    """Send a request; returns all of the answer."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(text.encode())
        answer = b""
        async for part in stream:
            answer += part
    return answer.decode()


async def scrape(server: Server) -> Samples:
    """Every sample by name and label."""
    async with serve_metrics(server.statistics) as port:
        head, _, body = (await request(port, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")).partition(
            "\r\n\r\n"
        )
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}" in head
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


async def test_scans_and_commits_are_counted() -> None:
    """Scans by how they ended, commits with their times, streams by what holds them up."""
    async with serving(MemoryStore()) as (server, client):
        await create_table(client, description())
        await write(client, write_request(sample(range(ROWS))), write_request(sample(range(10))))
        async with open_scan(client, window_only=True) as scan:
            await scan.receive_all()
        async with open_scan(client, credit=3000) as scan:
            await scan.receive_credit(3000)
            during = await scrape(server)
        while server.statistics().push_scans_open:
            await trio.lowlevel.checkpoint()
        after = await scrape(server)

    assert during["weir_scans", ""] == during["weir_snapshots", ""] == 1
    assert during["weir_streams_stalled", "credit"] == 1
    assert during["weir_stream_seconds_total", "credit"] > 0
    assert after["weir_scans_opened_total", ""] == 2
    assert after["weir_scans_ended_total", "exhausted"] == 1
    assert after["weir_scans_ended_total", "cut_off"] == 1
    assert 0 < scan.rows < ROWS
    assert during["weir_scan_rows_total", ""] == after["weir_scan_rows_total", ""] == ROWS + scan.rows
    assert after["weir_commit_writes_total", ""] == 2
    assert after["weir_commit_rows_total", ""] == ROWS + 10
    assert after["weir_commit_seconds_count", ""] == after["weir_commit_seconds_bucket", "+Inf"] >= 1
    assert after["weir_snapshots", ""] == 1  # it lingers for a resume of the scan that was cut off
    for name, value in during.items():
        if name[0].endswith("_total"):
            assert after[name] >= value, name


async def test_counters_are_there_before_their_first_event() -> None:
    """With every label that they may get: `rate()` misses what one appears with."""
    async with serving(MemoryStore()) as (server, client):
        before = await scrape(server)
        await create_table(client, description())
        async with open_scan(client, window_only=True) as scan:
            await scan.receive_all()
        after = await scrape(server)
    counters = {name for name in after if name[0].endswith("_total")}
    assert counters == {name for name in before if name[0].endswith("_total")}
    labels: dict[str, set[str]] = {
        "weir_scans_ended_total": {"exhausted", "cut_off", "data_corrupted", "internal"},
        "weir_scans_read_total": {*ReadSource},
        "weir_scans_resumed_total": {*ReadSource},
        "weir_audit_events_total": {"table_created", "drain_begun"},
        "weir_refused_connections_total": {"ping", "protocol_error", "connections"},
    }
    for name, values in labels.items():
        assert {before[name, value] for value in values} == {0}
    assert after["weir_scans_ended_total", "exhausted"] == after["weir_scans_read_total", "now"] == 1


async def test_free_room_that_is_not_known_is_not_told() -> None:
    """Before the first look at the disk, or where there is none, nothing is told: 0 bytes would be a full disk."""
    async with serving(MemoryStore()) as (server, _):
        assert ("weir_disk_free_bytes", "") not in await scrape(server)


async def collected() -> str:
    """What a scraper of a server is told."""
    async with serving(filled_store(1)) as (server, _), serve_metrics(server.statistics) as port:
        return (await request(port, "GET /metrics HTTP/1.0\r\n\r\n")).partition("\r\n\r\n")[2]


def kinds_of(body: str) -> dict[str, str]:
    """The kind of every metric, the process's own included, by name."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", body, re.MULTILINE))


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
async def test_files_for_operators_name_metrics_that_exist(name: str) -> None:
    """An alert on a metric that is gone would never fire."""
    text = (PAGE.with_suffix("") / name).read_text(encoding="utf-8")
    asked = set(re.findall(r"\b((?:weir|process)_\w+)", text))
    there = {
        *kinds_of(await collected()),
        "weir_commit_seconds_bucket",
        "weir_certificate_expiry_timestamp_seconds",
    }
    assert asked
    assert asked <= there
    if name.endswith(".json"):
        assert json.loads(text)["panels"]


async def test_a_panel_draws_few_lines() -> None:
    """Counters that have all their labels from the start are drawn where something happens, and not as lines at 0."""
    samples = Counter(re.findall(r"^(weir_\w+)", await collected(), re.MULTILINE))
    assert samples["weir_refused_connections_total"] > 10
    text = (PAGE.with_suffix("") / "dashboard.json").read_text(encoding="utf-8")
    drawn = re.findall(r'"expr": "rate\((weir_\w+_total)\[5m\]\)"', text)
    assert drawn
    assert max(samples[name] for name in drawn) < 10


async def test_every_metric_is_documented() -> None:
    """The table of docs/operating.md has every metric that is collected, with its label, and no other."""
    body = await collected()
    rows = re.findall(r"^\| `(weir_\w+)(?:\{(\w+)\})?` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    kinds = {name: kind for name, kind in kinds_of(body).items() if name.startswith("weir_")}
    assert {name: kind for name, _, kind in rows} == kinds
    labels = dict(re.findall(r"^(weir_\w+?)(?:_bucket)?\{(\w+)=", body, re.MULTILINE))
    assert labels.pop("weir_commit_seconds") == "le"
    assert labels.items() <= {name: label for name, label, _ in rows}.items()
    assert len(labels) > 5


def test_every_end_of_a_scan_is_documented() -> None:
    """Who adds up `weir_scans_ended_total` by the reasons of docs/operating.md misses none."""
    told = re.findall(r"^\| `weir_scans_ended_total\{reason\}` .*$", PAGE.read_text(), re.MULTILINE)[0]
    named = set(re.findall(r"`(\w+)`", told))
    assert {*(reason.name.lower() for reason in EndReason), CUT_OFF} <= named


async def test_other_requests_are_refused() -> None:
    """There is one thing to read here, and no other method to read it with."""
    async with serving(filled_store(1)) as (server, _), serve_metrics(server.statistics) as port:
        assert (await request(port, "GET / HTTP/1.1\r\n\r\n")).startswith("HTTP/1.1 404 ")
        assert (await request(port, "POST /metrics HTTP/1.1\r\n\r\n")).startswith("HTTP/1.1 405 ")
        head = await request(port, "HEAD /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 ")
        assert head.endswith("\r\n\r\n")


async def test_a_request_without_an_end_is_dropped() -> None:
    """A request that is too long gets no answer, and the next one does."""
    async with serving(filled_store(1)) as (server, _), serve_metrics(server.statistics) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\n" + b"x" * 20_000)
            with suppress(trio.BrokenResourceError):  # octets that nobody read make the close a reset
                assert await stream.receive_some() == b""
        assert "200 OK" in await request(port, "GET /metrics HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("silent", "answered"), [(20, True), (metrics_http._CONNECTIONS_MAX, False)], ids=["some", "too many"]
)
async def test_connections_that_say_nothing(
    monkeypatch: pytest.MonkeyPatch, silent: int, answered: bool
) -> None:
    """They have their time, and others are answered meanwhile; one connection too many is closed, and does not wait."""
    monkeypatch.setattr(metrics_http, "_REQUEST_TIMEOUT_S", 60.0)
    async with (
        serving(filled_store(1)) as (server, _),
        serve_metrics(server.statistics) as port,
        AsyncExitStack() as stack,
    ):
        first, *_ = [
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            for _ in range(silent)
        ]
        if answered:
            assert "200 OK" in await request(port, "GET /metrics HTTP/1.1\r\n\r\n")
        else:
            assert await request(port, "") == ""
        await first.send_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await first.receive_some()).startswith(b"HTTP/1.1 200 OK")


async def test_a_port_in_use_is_one_line() -> None:
    """An address that cannot be listened on is an argument error that names it."""
    async with serving(filled_store(1)) as (server, _), serve_metrics(server.statistics) as port:
        with pytest.raises(ArgumentInvalid, match=f"cannot serve metrics on 127.0.0.1:{port}"):
            async with serve_metrics(server.statistics, port=port):
                pass
        with pytest.raises(ArgumentInvalid, match=r"cannot serve metrics on a\.\.b:0"):
            async with serve_metrics(server.statistics, host="a..b"):
                pass


async def test_a_name_with_two_addresses_gets_one_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one, of which nobody is told, is closed; a port that is named is listened on at both."""
    opened: list[trio.SocketListener] = []
    open_at = trio.open_tcp_listeners

    async def open_at_both(port: int, *, host: str) -> list[trio.SocketListener]:
        opened[:] = [*await open_at(port, host=host), *await open_at(port, host="127.0.0.2")]
        return list(opened)

    monkeypatch.setattr(trio, "open_tcp_listeners", open_at_both)
    async with serving(filled_store(1)) as (server, _):
        async with serve_metrics(server.statistics) as port:
            assert [each.socket.fileno() >= 0 for each in opened] == [True, False]
        async with serve_metrics(server.statistics, port=port):
            assert [each.socket.fileno() >= 0 for each in opened] == [True, True]
