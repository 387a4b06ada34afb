"""What a scan need not read: buckets and keys in which no row can match its conditions. Pure.

Only scans of a state are pruned. A scan of changes reads every bucket, since it also tells how far each has come.

The server evaluates the conditions all the same, so what is left may be too much, and is never too little.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from scanner.data.key_conditions import key_conditions
from scanner.data.key_ranges import NO_KEYS, intersection, is_empty
from scanner.data.keys import KeyRange, bucket_of, successor

if TYPE_CHECKING:
    from scanner.client.scan.plan import ScanPlan


def ranges_to_read(plan: ScanPlan) -> dict[int, KeyRange]:
    """By bucket that has to be read, ascending, the range of its keys that has to be.

    Where no row can match, that is an empty range of one bucket: so the server is asked whether the table is there and
    may be read.

    Args:
        plan: Of a scan.
    """
    everything = dict.fromkeys(plan.buckets, plan.key_range)
    if plan.source.has_changes or not plan.predicates:
        return everything
    found = key_conditions(plan.predicates, plan.table)
    if found.keys is not None:
        ranges = _ranges_of(found.keys, plan.table.buckets)
    elif found.bounds is not None:
        ranges = dict.fromkeys(plan.buckets, found.bounds)
    else:
        ranges = {}
    read = {
        bucket: intersection(key_range, ranges[bucket])
        for bucket, key_range in everything.items()
        if bucket in ranges
    }
    read = {bucket: key_range for bucket, key_range in read.items() if not is_empty(key_range)}
    return read or {plan.buckets[0]: NO_KEYS}


def _ranges_of(keys: tuple[bytes, ...], buckets: int) -> dict[int, KeyRange]:
    """By bucket that some of the keys belong to, from the first of them to the last."""
    by_bucket = defaultdict[int, list[bytes]](list)
    for key in keys:
        by_bucket[bucket_of(key, buckets)].append(key)
    return {bucket: KeyRange(own[0], successor(own[-1])) for bucket, own in by_bucket.items()}
