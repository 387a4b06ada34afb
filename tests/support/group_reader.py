"""A reader of a group as a process of its own, which tells what it got and what it stored.

Run as `python -m tests.support.group_reader`, with the endpoint, a name of the reader, and the group. A line of JSON
for each batch and each position, with the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import scanner.sync


def main(endpoint: str, name: str, group: str) -> None:
    """Read until it is killed."""
    with scanner.sync.connect(endpoint, retries=1000) as client:
        scan = client.table("items").new_scan().with_source("log").in_group(group, member=name)
        with scan.execute() as batches:
            _say(kind="joined")
            for batch in batches:
                bucket, epoch = batches.bucket, batches.epoch
                assert bucket is not None
                offsets = batch["_log_offset"].to_pylist()
                _say(kind="delivered", bucket=bucket, epoch=epoch, start=offsets[0], end=offsets[-1] + 1)
                began_at, position = time.monotonic(), batches.positions.get(bucket)
                place = {"began_at": began_at, "bucket": bucket, "epoch": epoch, "position": position}
                if position is not None:
                    _say(kind="stored", accepted=None, **place)
                lost = batches.commit()
                if position is not None:
                    _say(kind="stored", accepted=bucket not in lost, **place)


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps({"at": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
