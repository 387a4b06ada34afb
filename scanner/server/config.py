"""Every limit of the server, in one frozen record that is made once and passed down.

Relations between limits are checked where it is made, so a server with limits that contradict each
other does not start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Final

KIB = 1024
MIB = 1024 * KIB

IMAGES: Final = ("auto", "off")
"""What `images` may be."""
_MAY_BE_ZERO = frozenset({"snapshot_linger_s", "checkpoint_interval_s", "image_cache_bytes_max"})
_WRITE_DECODED_BYTES_MAX = 512 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannerConfig:
    """Limits and intervals of one server.

    Raises:
        ValueError: A limit is out of its range, or two of them contradict each other; the message
            names them.
    """

    block_rows_max: int = 24_576
    """Rows read and decoded in one go, above 0. It bounds the time for which one scan holds the
    event loop (a few milliseconds) and, with `block_bytes_max`, the memory of a scan."""

    block_bytes_max: int = 2 * MIB
    """Stored bytes read and decoded in one go, above 0; one row larger than that is still read. Push scans that read
    at the same time read less in one go each, down to 704 KiB."""

    batch_bytes: int = 2 * MIB
    """Arrow payload of one batch of a push scan, in bytes, where the client does not say."""

    batch_bytes_max: int = 8 * MIB
    """The largest payload a client may ask for; more is clamped. One row may be larger."""

    batch_rows_max: int = 65_536
    """Rows of one batch, also where the client does not say; more is clamped."""

    heartbeat_interval_s: float = 5.0
    """The longest silence on a push scan, 0.001 to 3600 s, as far as the peer's window lets anything out."""

    tail_heartbeat_interval_s: float = 30.0
    """The longest silence on a scan of a changelog, 0.001 to 3600 s, not below `heartbeat_interval_s`: that is kept to
    only while the scan moves, and at its start, so that an idle tail costs next to nothing."""

    scans_max: int = 1024
    """Push scans open at once on this server, parked ones included; the next is refused with TOO_MANY_SCANS. So are
    pages of `ScanPage`, counted apart, of which as many may be in the making, and calls of `FetchLog`."""

    park_after_s: float = 5.0
    """Time after which a scan that can send nothing, for lack of credit or of HTTP/2 window, gives up its iterator and
    snapshot until it can go on, above 0 s. Shorter: files are pinned for less time; longer: less is read twice."""

    snapshot_linger_s: float = 10.0
    """How long the snapshot of a scan that was cut off stays open for its resume, 0 (not at all) to 3600 s."""

    snapshots_max: int = 2048
    """RocksDB snapshots open at once on this server; one more is refused with TOO_MANY_SCANS. Scans as of the same
    offset share one, and those that linger make room first."""

    overlay_bytes_max: int = 64 * MIB
    """Memory for the changes that one scan as of a past offset has to undo, above 0; more of them go to temporary
    files. Such a scan takes at most this and its blocks; those of a bucket as of the same offset share this, but for
    the first of them."""

    overlay_spill_bytes_max: int = 8 * 1024 * MIB
    """Size of these temporary files, for one scan, above 0; a scan that needs more fails with SNAPSHOT_LOST."""

    log_pinned_bytes_max: int = 4 * 1024 * MIB
    """Changelog of one bucket that the scans and leases of one principal may keep from retention, stored bytes, above
    0. Past it the one that keeps the most is ended: a scan with SLOW_CONSUMER."""

    log_retention_s: float = 7 * 86_400.0
    """Changes older than this leave the changelog, above 0, unless a scan or a lease needs them."""

    log_retention_bytes: int = 1024 * MIB
    """Changelog of one bucket beyond which its oldest changes leave it, stored bytes, above 0, unless needed."""

    log_ring_bytes: int = 4 * MIB
    """Memory for the newest changes of a bucket, which tails with the same columns and filter share, above 0. A tail
    that has fallen further behind reads for itself."""

    log_rings_bytes: int = 256 * MIB
    """The same of all buckets, columns and filters together, above 0. The largest make room."""

    fetch_bytes_max: int = 16 * MIB
    """Arrow payload of one answer to `FetchLog`, in bytes, also where the client does not say; more is clamped. One row
    may be larger."""

    fetch_bucket_bytes: int = MIB
    """The same of one bucket, where the client does not say."""

    fetch_wait_max_s: float = 30.0
    """The longest time for which `FetchLog` waits for changes, above 0; more is clamped."""

    retention_interval_s: float = 60.0
    """How often changelogs are looked at, above 0."""

    checkpoint_interval_s: float = 600.0
    """How often a checkpoint is made of each bucket in use that was written since its last one; 0: on demand only."""

    checkpoints_kept: int = 2
    """Checkpoints of a bucket that are kept, the newest, above 0; those that a lease keeps stay beside them."""

    images: str = "auto"
    """`auto`: images are made by themselves for buckets that whole scans read again and again, and made anew when much
    was changed. `off`: on demand alone."""

    image_bytes_min: int = 8 * MIB
    """Stored bytes that one scan has to read of a bucket before an image of it is made by itself, above 0. Less is read
    in a tenth of a second from the row store."""

    image_changes_share: float = 0.01
    """Changes since, by rows of the image, from which on one that is used is made anew by itself, above 0. From 0.02 on
    scans read the row store; an update is two changes."""

    image_interval_s: float = 10.0
    """How often it is looked for images to be made by themselves, above 0."""

    image_disk_bytes_max: int = 256 * 1024 * MIB
    """Disk that all images may take together, above 0. For one that would be more, those go that no scan has read
    for an hour; if that is not enough it is refused with DISK_FULL. One also takes half of the free disk at most."""

    image_cache_bytes_max: int = 256 * MIB
    """Memory for blocks of images that scans read again and again, of all images together; 0: none are kept."""

    image_delta_bytes_max: int = 64 * MIB
    """Memory for what was changed since the image of one bucket, which its scans lay over it, above 0; an image that
    would need more is removed."""

    image_delta_interval_s: float = 1.0
    """How often what was changed since images in use is read in the background, above 0."""

    image_core_share: float = 0.2
    """Share of one core, about, that making an image takes, above 0, at most 1; half of it while something is
    written. Reading what was changed since takes as much."""

    disk_check_interval_s: float = 1.0
    """How often the disk is looked at, above 0: for room, and for buckets that failed and may take writes again."""

    bucket_idle_close_s: float = 300.0
    """Time without a scan, a write or a checkpoint after which a bucket closes its files, above 0; its next
    user waits some milliseconds until they are open."""

    buckets_open_max: int = 2048
    """Buckets whose files are open at once, above 0; one has nine or more. One more closes the least
    recently used one; where all are in use it is refused with TOO_MANY_FILES. `weir serve` lowers it to what its limit
    of descriptors allows."""

    tables_max: int = 10_000
    """Tables of this server, above 0; the next is refused with TOO_MANY_TABLES."""

    buckets_max: int = 50_000
    """Buckets of all its tables, above 0; a table that would make them more is refused with TOO_MANY_TABLES."""

    lease_ttl_s: float = 600.0
    """Time to live of a lease, where the client does not say, above 0."""

    lease_ttl_max_s: float = 86_400.0
    """The longest that a client may ask for; more is an ARGUMENT_INVALID."""

    lease_sweep_interval_s: float = 10.0
    """How often expired leases are looked for, above 0. One that has expired is gone for its holder at once; what it
    kept is free after a sweep."""

    leases_max: int = 1000
    """Leases at once on this server; the next is refused with TOO_MANY_SCANS."""

    leases_per_principal_max: int = 250
    """Leases of one principal at once, as far as `leases_max` allows; the next is refused with TOO_MANY_SCANS."""

    lease_buckets_max: int = 10_000
    """Buckets that all leases of this server keep, added up; more is refused with TOO_MANY_SCANS."""

    lease_buckets_per_principal_max: int = 5000
    """Buckets that the leases of one principal keep, added up; more is refused with TOO_MANY_SCANS."""

    groups_per_table_max: int = 100
    """Reader groups of one table, above 0; the next is refused with TOO_MANY_GROUPS. One stays until it is deleted."""

    group_members_max: int = 256
    """Members of one reader group at once, above 0; the next is refused with TOO_MANY_SCANS."""

    group_session_timeout_s: float = 30.0
    """Time without a word after which a member of a reader group is taken for dead, above 0, and its buckets are given
    to others. One whose connection ends is taken out at once."""

    group_handover_s: float = 10.0
    """Time that a member has to commit what it was given of a bucket that is to move to another one, above 0; then it
    moves all the same."""

    transaction_stage_bytes_max: int = 64 * 1024 * MIB
    """Stages of all transactions of this server on the disk, above 0; more is refused with STAGES_FULL."""

    transaction_stage_ttl_s: float = 86_400.0
    """How long the stages of a version that was not decided are kept after the last of them, above 0."""

    transaction_name_ttl_s: float = 30 * 86_400.0
    """How long a transaction name that stages and publishes nothing is remembered, above 0. Afterwards a version that
    was published under it would be taken for a new one."""

    transaction_once_ttl_s: float = 3600.0
    """The same of a name that begins with `once:`, above 0: of a writer that draws one for each of its transactions."""

    transaction_name_ttl_s_min: float = 60.0
    """No transaction name is forgotten sooner after its last use, above 0: in this time a writer asks again whose
    answer was lost. Then those go of which nothing is staged or decided, and, where a table has
    `transaction_names_max`, those that begin with `once:`, as many as others need the room."""

    transaction_names_max: int = 1000
    """Transaction names of one table that are remembered, above 0; the next is refused with TOO_MANY_TRANSACTIONS."""

    transaction_parts_max: int = 100_000
    """Parts of one version, above 0; more are an ARGUMENT_INVALID."""

    transaction_sweep_interval_s: float = 60.0
    """How often stages and names that have expired are looked for, above 0."""

    transaction_piece_bytes: int = 8 * MIB
    """Rows of a transaction that a bucket applies in one go, stored bytes, above 0. A larger share is applied in
    pieces, while scans of the bucket wait to be opened."""

    transaction_buckets_max: int = 4
    """Buckets that apply shares at once on this server, above 0: each holds a piece in memory."""

    filter_predicates_max: int = 64
    """Predicates in one filter; more is an ARGUMENT_INVALID."""

    filter_literals_max: int = 10_000
    """Literals in one filter; more is an ARGUMENT_INVALID."""

    session_ttl_s: float = 600.0
    """Idle time after which a session is reclaimed, above 0."""

    session_sweep_interval_s: float = 5.0
    """How often idle sessions are looked for; a session lives at most one sweep longer than its TTL."""

    sessions_per_bucket_max: int = 8
    """Sessions open at once on one bucket; the next is refused with TOO_MANY_SCANS."""

    sessions_max: int = 200
    """Sessions open at once on this server; the next is refused with TOO_MANY_SCANS."""

    session_page_bytes_max: int = 10_000_000
    """The largest page of a pull model, in bytes of Arrow payload; more is clamped. One row may be larger.
    A session keeps its last page for a repetition, so sessions hold up to sessions_max times this."""

    session_page_time_max_s: float = 10.0
    """Time after which a page is sent as it is, so that a filter that drops everything does not outlast the
    patience of clients and proxies; it may have no rows and still not be the last."""

    sessions_expired_max: int = 10_000
    """Ids of reclaimed sessions that are remembered, to tell "expired" from "unknown"; the oldest go first."""

    page_snapshot_ttl_s: float = 600.0
    """Time without a page after which the snapshot that a `token` scan left between two pages is reclaimed, above 0."""

    page_snapshots_per_bucket_max: int = 8
    """`token` scans between two pages on one bucket; the next is refused with TOO_MANY_SCANS."""

    page_snapshots_max: int = 200
    """`token` scans between two pages on this server; the next is refused with TOO_MANY_SCANS."""

    write_requests_in_flight_max: int = 8
    """Requests of one Write stream that may be decoded and wait for their response; one more is being decoded."""

    write_slice_rows_max: int = 8192
    """Rows of a write encoded in one go, of more than 64 columns fewer; it bounds the time for which one write holds
    the event loop."""

    write_queue_requests_max: int = 256
    """Writes that may wait for the commit of one bucket; further ones wait to get in, give or take one a stream."""

    write_queue_bytes_max: int = 128 * MIB
    """Memory of the writes of this server that are decoded and not yet durable, over all buckets and streams; further
    ones wait, those of one table at half of it. A commit takes two to three times what it writes, for the changelog and
    RocksDB's own copies."""

    commit_rows_max: int = 65_536
    """Rows after which no further queued write joins a group commit; a single larger write is one commit."""

    write_rows_max: int = 1_000_000
    """Rows in one WriteRequest; more is an ARGUMENT_INVALID. weir's own client sends up to 65 536, and 8 MiB, where a
    table has many buckets, and does not ask what a server takes: one that takes less refuses them."""

    write_decoded_bytes_max: int = 128 * MIB
    """What one WriteRequest may take in memory once it is decompressed and every value is spelled out, whatever it
    took on the wire; more is an ARGUMENT_INVALID. At most 512 MiB: keys and rows are columns of 32-bit offsets."""

    row_bytes_max: int = 60 * MIB
    """One stored row, its key included; more is a SCHEMA_MISMATCH. A scan sends a row in one message, which clients
    take up to their `message_bytes_max`, 64 MiB."""

    unary_request_bytes_max: int = 4 * MIB
    """Longest request of a call that takes one, longest opening of a scan, and longest request of a group's member,
    above 0; CreateTable and AddColumn take 8 MiB more for the schema, and a scan that goes on what its resume token
    takes. A longer one is an ARGUMENT_INVALID, at which clients ask for fewer keys where it is a GetRequest. gRPC's
    servers take as much by default."""

    get_keys_max: int = 8192
    """Keys in one GetRequest; more is an ARGUMENT_INVALID, at which clients ask in parts."""

    get_bytes_max: int = 2 * MIB
    """Keys of one GetRequest, decoded, and rows of its answer, in bytes; more is an ARGUMENT_INVALID, at which clients
    ask in parts. A single row may be larger. gRPC libraries take answers of 4 MiB unless configured otherwise."""

    gets_max: int = 256
    """`Get` calls that run at once on this server, above 0; the next is refused with TOO_MANY_SCANS."""

    def __post_init__(self) -> None:
        if self.images not in IMAGES:
            raise ValueError(f"images must be one of {', '.join(IMAGES)}, but is {self.images!r}")
        for field in fields(self):
            if field.name == "images":
                continue
            value, is_count = getattr(self, field.name), isinstance(field.default, int)
            if isinstance(value, bool) or not isinstance(value, Integral if is_count else Real):
                raise ValueError(
                    f"{field.name} must be a {'whole ' if is_count else ''}number, not {value!r}"
                )
            if math.isnan(value):
                raise ValueError(f"{field.name} must be a number")
            if value < 0 or (value == 0 and field.name not in _MAY_BE_ZERO):
                least = "at least" if field.name in _MAY_BE_ZERO else "above"
                raise ValueError(f"{field.name} must be {least} 0, but is {value}")
        if math.isinf(self.lease_ttl_s):
            raise ValueError("lease_ttl_s must be finite: a lease without an end could never be reclaimed")
        if self.image_core_share > 1:
            raise ValueError(f"image_core_share must be at most 1, but is {self.image_core_share}")
        if not 0 <= self.snapshot_linger_s <= 3600:
            raise ValueError(f"snapshot_linger_s must be from 0 to 3600, but is {self.snapshot_linger_s}")
        for name in ("heartbeat_interval_s", "tail_heartbeat_interval_s"):
            if not 0.001 <= getattr(self, name) <= 3600:
                raise ValueError(f"{name} must be from 0.001 to 3600, but is {getattr(self, name)}")
        # What the client gets by default has to be something that it may ask for.
        self._check_order("batch_bytes", "batch_bytes_max")
        # A session takes a slot of its bucket and one of the server: the first cap could never be reached.
        self._check_order("sessions_per_bucket_max", "sessions_max")
        # A lease that asks for nothing gets what it may ask for.
        self._check_order("lease_ttl_s", "lease_ttl_max_s")
        # A name that is used once is forgotten early only where others need the room.
        self._check_order("transaction_name_ttl_s_min", "transaction_once_ttl_s")
        # A session found idle a whole TTL late would make the TTL meaningless.
        self._check_order("session_sweep_interval_s", "session_ttl_s")
        # What holds for sessions holds for what `token` scans leave: the same sweep finds it.
        self._check_order("page_snapshots_per_bucket_max", "page_snapshots_max")
        self._check_order("session_sweep_interval_s", "page_snapshot_ttl_s")
        # A write that is allowed has to fit beside nothing else, or it would never have its turn.
        self._check_order("write_decoded_bytes_max", "write_queue_bytes_max")
        if self.write_decoded_bytes_max > _WRITE_DECODED_BYTES_MAX:
            raise ValueError(
                f"write_decoded_bytes_max must be at most {_WRITE_DECODED_BYTES_MAX}, but is"
                f" {self.write_decoded_bytes_max}"
            )
        # What the client gets by default has to fit into an answer.
        self._check_order("fetch_bucket_bytes", "fetch_bytes_max")
        # A row comes in one write.
        self._check_order("row_bytes_max", "write_decoded_bytes_max")
        # One block has to fit into what the pages and batches are cut from.
        self._check_order("block_rows_max", "batch_rows_max")

    @property
    def idle_interval_s(self) -> float:
        """The longest silence of a tail that waits for a commit, seconds."""
        return max(self.tail_heartbeat_interval_s, self.heartbeat_interval_s)

    def _check_order(self, smaller: str, larger: str) -> None:
        if getattr(self, smaller) > getattr(self, larger):
            raise ValueError(
                f"{smaller} ({getattr(self, smaller)}) must be no more than {larger} ({getattr(self, larger)})"
            )
