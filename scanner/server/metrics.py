"""A server's statistics as Prometheus metrics. The one module that maps the ones to the others.

Nothing is counted here: at each scrape the collector reads `Server.statistics()` and says it in Prometheus's words.
A counter is there from the start, 0, with every label that it may get: `rate()` misses the event that one appears with.
Names and labels are listed in docs/operating.md, which a test compares with what is collected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from scanner.errors import ERRORS
from scanner.extras import installed_version
from scanner.server.auth.audit import AuditEvent
from scanner.server.scan.read_sources import ReadSource
from scanner.server.scan.scan_log import CUT_OFF
from scanner.sources.interface import EndReason
from transport import REFUSAL_KINDS

if TYPE_CHECKING:
    from prometheus_client import Metric

    from scanner.server.counters import HistogramSnapshot
    from scanner.server.server import ScannerStatistics
    from transport import ServerStatistics as TransportStatistics

_SCAN_ENDS: Final = (
    *(each.name.lower() for each in EndReason),
    CUT_OFF,
    *(each.reason.lower() for each in ERRORS),
)
_IN_OTHER_COUNTERS: Final = (AuditEvent.AUTHENTICATION_FAILED, AuditEvent.CALL_DENIED)
_EVENTS: Final = tuple(each.value for each in AuditEvent if each not in _IN_OTHER_COUNTERS)


class ServerCollector(Collector):
    """Collects one server.

    Args:
        read: Asks for the server's statistics; called at each scrape.
    """

    def __init__(self, read: Callable[[], ScannerStatistics]) -> None:
        self._read = read
        # Not at a scrape: a server at work imports nothing.
        self._version = installed_version()

    def describe(self) -> list[Metric]:
        """Nothing beforehand: registering must not ask the server."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric, now."""
        build = GaugeMetricFamily("weir_build_info", "1, with the version.", labels=["version"])
        yield _with_samples(build, {self._version: 1})
        now = self._read()
        yield from _transport(now.transport)
        yield from _scans(now)
        yield from _kept(now)
        yield from _commits(now)
        yield from _disk(now)
        yield from _security(now)


def _transport(now: TransportStatistics) -> Iterator[Metric]:
    totals = now.totals
    yield _gauge("weir_connections", "Connections, now.", now.connections)
    yield _counter("weir_connections_accepted", "Connections since the start.", totals.connections)
    yield _gauge("weir_streams", "Calls that run, now.", now.streams)
    yield _counter("weir_streams_accepted", "Calls since the start.", totals.streams)
    yield _counter("weir_messages_sent", "Messages queued for clients.", totals.messages_sent)
    yield _counter("weir_messages_received", "Messages taken from clients.", totals.messages_received)
    yield _counter("weir_sent_bytes", "Octets written to sockets, TLS excluded.", totals.bytes_sent)
    yield _counter("weir_received_bytes", "Octets read from sockets, TLS excluded.", totals.bytes_received)
    yield _gauge("weir_unsent_bytes", "Octets that wait for windows and sockets, now.", now.unsent_bytes)
    yield _gauge("weir_buffered_bytes", "Octets received that no handler has taken, now.", now.buffered_bytes)
    yield _gauge("weir_credit_bytes", "Credit that scans have left, now, added up.", now.credit_bytes)
    stalled = GaugeMetricFamily(
        "weir_streams_stalled", "Calls by what holds them up, now.", labels=["reason"]
    )
    yield _with_samples(stalled, now.stalled)
    stalls = {reason.label: seconds for reason, seconds in totals.stalls}
    yield _labelled_counter(
        "weir_stream_seconds", "Time of all calls by what held them up; running included.", "reason", stalls
    )
    yield _labelled_counter(
        "weir_goaways",
        "GOAWAY frames by direction.",
        "direction",
        {"sent": totals.goaways_sent, "received": totals.goaways_received},
    )
    yield _labelled_counter(
        "weir_pings",
        "PING frames by direction; acknowledgements count as received only.",
        "direction",
        {"sent": totals.pings_sent, "received": totals.pings_received},
    )
    yield _labelled_counter(
        "weir_refused_connections",
        "Connections ended for a broken rule or budget, or turned away at connections_max, by kind.",
        "kind",
        totals.refusals,
        REFUSAL_KINDS,
    )


def _scans(now: ScannerStatistics) -> Iterator[Metric]:
    activity = now.activity
    yield _gauge("weir_scans", "Push scans, now.", now.push_scans_open)
    yield _counter("weir_scans_opened", "Push scans opened; again after a cut.", activity.scans_opened)
    yield _labelled_counter(
        "weir_scans_ended", "Push scans ended, by reason.", "reason", activity.scans_ended, _SCAN_ENDS
    )
    yield _counter("weir_scan_rows", "Rows that push scans have sent; again after a cut.", activity.scan_rows)
    yield _gauge(
        "weir_overrun_bytes_max", "Furthest that a push scan went past its credit.", now.overrun_bytes
    )
    yield _gauge("weir_parked_scans", "Push scans that are parked, now.", now.scans_parked)
    yield _counter("weir_scans_parked", "Times that a push scan was parked.", activity.scans_parked)
    yield _counter(
        "weir_seeks", "Times that a scan or a page was placed on a key to read on.", activity.seeks
    )
    yield _labelled_counter(
        "weir_scans_resumed",
        "Scans and pages continued, or opened as of an offset, by what they were read from.",
        "read_source",
        activity.scans_resumed,
        ReadSource,
    )
    yield _labelled_counter(
        "weir_scans_read",
        "Scans and pages opened, by what they were read from.",
        "read_source",
        activity.scans_read,
        ReadSource,
    )
    yield _labelled_counter(
        "weir_scan_payload_bytes",
        "Arrow payload of push scans of rows: encoded for them, or sent as it lies in an image.",
        "made",
        {"encoded": activity.payload_bytes_encoded, "image": activity.payload_bytes_reused},
    )
    yield _labelled_counter(
        "weir_image_blocks",
        "Blocks of images that ended scans have read, found in memory, or skipped: no row passes the filter.",
        "what",
        {
            "read": activity.image_blocks_read,
            "cached": activity.image_blocks_cached,
            "skipped": activity.image_blocks_skipped,
        },
    )
    yield _gauge("weir_images", "Images of buckets that are open, now.", now.images)
    yield _gauge("weir_image_disk_bytes", "What all images take on the disk.", now.image_disk_bytes)
    yield _gauge(
        "weir_image_memory_bytes", "What they take in memory, about, unread.", now.image_memory_bytes
    )
    yield _gauge(
        "weir_image_cache_bytes", "Blocks of images that are kept in memory, now.", now.image_cache_bytes
    )
    yield _gauge("weir_sessions", "Sessions of the pull model, now.", now.sessions_open)
    yield _counter(
        "weir_sessions_opened", "Sessions opened that have more than one page.", activity.sessions_opened
    )
    yield _gauge("weir_page_snapshots", "Scans by token between two pages, now.", now.page_snapshots_kept)
    yield _gauge(
        "weir_snapshots",
        "RocksDB snapshots that are open, now: held by scans, sessions and pages, or lingering.",
        now.snapshots_open,
    )


def _kept(now: ScannerStatistics) -> Iterator[Metric]:
    activity = now.activity
    yield _gauge("weir_leases", "Leases, now.", now.leases)
    yield _gauge("weir_group_members", "Members of reader groups, now.", now.group_members)
    yield _counter(
        "weir_group_assignments",
        "Times that a bucket was given to a member of a reader group.",
        activity.group_assignments,
    )
    yield _counter(
        "weir_group_refusals",
        "Scans and positions of reader groups refused, because their bucket had another reader.",
        activity.group_refusals,
    )
    yield _counter("weir_checkpoints_made", "Checkpoints of buckets.", activity.checkpoints_made)
    yield _counter(
        "weir_log_changes_dropped", "Changes that retention cut off the logs.", activity.log_changes_dropped
    )
    yield _counter(
        "weir_log_blocks_decoded",
        "Blocks of changelogs that were read and decoded; tails with the same columns and filter share them.",
        activity.log_blocks_decoded,
    )
    yield _gauge(
        "weir_log_changes_lost", "Acknowledged changes that were gone at an open, ever.", now.log_changes_lost
    )


def _commits(now: ScannerStatistics) -> Iterator[Metric]:
    activity = now.activity
    yield _gauge(
        "weir_transaction_stage_bytes",
        "Stages of transactions, on the disk or being written, now.",
        now.transaction_stage_bytes,
    )
    yield _gauge(
        "weir_transactions_unapplied",
        "Versions that are decided and not applied in every bucket, now.",
        now.transactions_unapplied,
    )
    yield _gauge("weir_write_queue_bytes", "Writes decoded and not yet durable, now.", now.write_queue_bytes)
    yield _histogram("weir_commit_seconds", "Time of a group commit, its fsync included.", activity.commits)
    yield _counter(
        "weir_commit_writes",
        "Writes committed, of each bucket; several share a commit.",
        activity.commit_writes,
    )
    yield _counter("weir_commit_rows", "Rows and deletes in them.", activity.commit_rows)
    yield _counter(
        "weir_duplicate_writes",
        "Writes that came again after they were committed, and changed nothing; of each bucket.",
        activity.duplicate_writes,
    )
    yield _counter("weir_commits_failed", "Group commits that failed.", activity.commits_failed)


def _disk(now: ScannerStatistics) -> Iterator[Metric]:
    yield _gauge(
        "weir_disk_read_only",
        "1 while writes, if only large ones, are refused because the disk is full or a bucket has failed.",
        now.disk_read_only,
    )
    yield _gauge(
        "weir_disk_free_bytes",
        "Free bytes of the data directory's disk, at the last look.",
        now.disk_free_bytes,
    )
    yield _gauge("weir_buckets_failed", "Buckets that take no writes since one failed.", now.buckets_failed)


def _security(now: ScannerStatistics) -> Iterator[Metric]:
    events = dict(now.activity.audited)
    failed, denied = (events.pop(each.value, 0) for each in _IN_OTHER_COUNTERS)
    yield _counter("weir_auth_failures", "Calls whose caller could not be authenticated.", failed)
    yield _counter("weir_denied_calls", "Calls that their principal may not make.", denied)
    yield _labelled_counter("weir_audit_events", "Other events of the audit trail.", "event", events, _EVENTS)
    yield _gauge(
        "weir_certificate_expiry_timestamp_seconds",
        "When the server's certificate expires, seconds since 1970.",
        now.certificate_expires_at,
    )


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """None: there is no value, and so no sample; 0 would be one."""
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _labelled_counter(
    name: str, text: str, label: str, values: Mapping[str, float], known: Iterable[str] = ()
) -> Metric:
    """With what `values` has, and 0 for what else it may get."""
    return _with_samples(
        CounterMetricFamily(name, text, labels=[label]), {**dict.fromkeys(known, 0), **values}
    )


def _with_samples(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _histogram(name: str, text: str, snapshot: HistogramSnapshot) -> Metric:
    bounds = [*(str(bound) for bound in snapshot.bounds), "+Inf"]
    cumulative = itertools.accumulate(snapshot.counts)
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets=list(zip(bounds, cumulative, strict=True)), sum_value=snapshot.total)
    return family
