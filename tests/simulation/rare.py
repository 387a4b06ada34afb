"""Seeds in which something rare happens, mostly a race of two tasks, and what that is.

`python -m tools.find_rare` finds others where the turns of the product have changed.
"""

from __future__ import annotations

from typing import Final

from tests.support.happenings import CALLED, Happening

RARE: Final[dict[int, dict[str, Happening]]] = {
    14: {
        "a closed bucket is opened while its table is dropped": Happening(
            "scanner.server.tables.bucket:ServedBucket.wake", "TableNotFound"
        ),
        "a version is to be decided while its table is dropped": Happening(
            "scanner.server.transactions.registry:Transactions._require_next", "TableNotFound"
        ),
        "somebody goes while a group is looked up": Happening(
            "scanner.server.groups.registry:ReaderGroups.join", "Cancelled"
        ),
    },
    18: {
        "a group is joined while its table is dropped": Happening(
            "scanner.server.groups.registry:ReaderGroups.join", "TableNotFound"
        ),
    },
    25: {
        "the table of a group is dropped while a member listens": Happening(
            "scanner.server.services.groups:GroupService._send_all", "TableNotFound"
        ),
        "somebody goes while a changelog is cut": Happening(
            "scanner.server.services.log_compaction:CompactionService.compact", "Cancelled"
        ),
    },
    41: {
        "the server ends while a write waits for the disk": Happening(
            "scanner.server.tables.write_queue:PendingWrite.wait_durable", "StoreClosed"
        ),
        "a connection is given up while its end is sent": Happening(
            "transport.byte_streams:StreamBytes.send_end", "Cancelled"
        ),
    },
    56: {
        "the call that opens a session is reset": Happening(
            "scanner.server.services.sessions:SessionService._open", "StreamReset"
        ),
    },
    67: {
        "the server ends while a version is applied": Happening(
            "scanner.server.transactions.completion:Applier._apply_share", "Cancelled"
        ),
        "a version of the server before is left over": Happening(
            "scanner.server.tables.version_gate:VersionGate.left_over", CALLED
        ),
    },
    88: {
        "the server ends while an image is begun": Happening(
            "scanner.server.images:ImageKeeper._make", "Cancelled"
        ),
        "the server ends while the changes behind an image are read": Happening(
            "scanner.server.image_deltas:DeltaKeeper._extend", "Cancelled"
        ),
    },
    94: {
        "an image is made by the server itself": Happening(
            "scanner.server.images:ImageKeeper._write", CALLED
        ),
    },
    108: {
        "a scan is reset behind its end": Happening(
            "scanner.server.scan.push:PushScan.wait_half_closed", "StreamReset"
        ),
        "a stage is given up while it is finished": Happening(
            "scanner.server.transactions.stage_writer:StageWriter.finish", "Cancelled"
        ),
    },
    110: {
        "a checkpoint is asked for, and the disk refuses": Happening(
            "scanner.server.services.checkpoints:CheckpointService._make", "StoreFailed"
        ),
    },
    130: {
        "a scan is given up while its end is sent": Happening(
            "scanner.server.scan.push:PushScan._send_end", "Cancelled"
        ),
    },
    136: {
        "a connection is lost while rows are staged": Happening(
            "scanner.server.services.transactions:TransactionService._receive_rows", "ConnectionLost"
        ),
    },
    154: {
        "there is no place for another scan by token": Happening(
            "scanner.server.services.pages:PageService._begin_token", "TooManyScans"
        ),
    },
    166: {
        "a scan is reset before anything of it was sent": Happening(
            "scanner.server.scan.push:PushScan._send_first", "StreamReset"
        ),
    },
    176: {
        "a page is asked for of a session that is gone": Happening(
            "scanner.server.pull.sessions:SessionRegistry.claim", "SessionUnknown"
        ),
        "somebody goes while a page of a session is made": Happening(
            "scanner.server.services.sessions:SessionService._make_page", "Cancelled"
        ),
    },
    179: {
        "somebody goes while the first stage waits for what the table knows": Happening(
            "scanner.server.transactions.registry:Transactions.open_stage", "Cancelled"
        ),
    },
    186: {
        "a session must be opened anew, and its state is gone": Happening(
            "scanner.server.services.sessions:SessionService._continue", "SnapshotLost"
        ),
        "a session ends while one of its pages is made": Happening(
            "scanner.server.pull.sessions:SessionRegistry.terminate", CALLED
        ),
    },
    196: {
        "a connection is lost while a batch is sent": Happening(
            "scanner.server.scan.push:PushScan._send_one", "ConnectionLost"
        ),
        "somebody goes while a fetch is read": Happening(
            "scanner.server.pull.fetch:Fetch._read", "Cancelled"
        ),
        "an image is opened whose end is damaged": Happening(
            "scanner.storage.images.reader:Image._open", "ImageDamaged"
        ),
    },
    198: {
        "a scan is given up while it waits for its turn": Happening(
            "scanner.server.fairness:StepTurns.take", "Cancelled"
        ),
    },
    200: {
        "a stage is reset while its rows come": Happening(
            "scanner.server.services.transactions:TransactionService._receive_rows", "StreamReset"
        ),
        "a changelog is to be read from before its beginning": Happening(
            "scanner.server.log.opener:LogOpener.open", "OffsetOutOfRange"
        ),
    },
    213: {
        "a lease is found at a start, and holds again": Happening(
            "scanner.server.retention.lease_targets:StateFinder.hold_again", CALLED
        ),
    },
    214: {
        "rows are looked up while their table is dropped": Happening(
            "scanner.server.services.point_reads:GetService._answer", "TableNotFound"
        ),
    },
    242: {
        "rows are staged while their table is dropped": Happening(
            "scanner.server.services.transactions:TransactionService._append", "TableNotFound"
        ),
        "a write waits for the disk while its table is dropped": Happening(
            "scanner.server.tables.write_queue:PendingWrite.wait_durable", "TableNotFound"
        ),
    },
    257: {
        "the server ends while an idle bucket is closed": Happening(
            "scanner.server.disk:DiskWatch.close_idle", "Cancelled"
        ),
    },
    347: {
        "a group's position is to be stored, and the disk refuses": Happening(
            "scanner.server.groups.coordinator:ReaderGroup.commit", "StoreFailed"
        ),
    },
    387: {
        "a changelog is to be cut while its table is dropped": Happening(
            "scanner.server.retention.log_retention:Retention.cut", "TableNotFound"
        ),
    },
    400: {
        "the server ends while a bucket is given to a member": Happening(
            "scanner.server.groups.coordinator:ReaderGroup._give", "Cancelled"
        ),
    },
}
"""By seed, what it is for: none of it is in the seeds that are run in a row."""
