"""Which member of a reader group gets which bucket. Pure.

Invariants, of what `assign` returns:

1. Total: every bucket has one owner, a member; without members nobody has any.
2. Balanced: two members differ by one bucket at most.
3. Sticky: no other balanced assignment leaves more buckets where they are.
4. Deterministic: the order of the arguments does not matter; and an assignment that is balanced stays as it is.

Sources: what Kafka's sticky assignor promises (KIP-54), for one topic, where minimal moves need no search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def assign(buckets: Iterable[int], members: Iterable[str], owners: Mapping[int, str]) -> dict[int, str]:
    """Share buckets out.

    Args:
        buckets: All of them.
        members: Names of the members that are alive.
        owners: Who had which bucket; names that are no members any more, and buckets that are none, count for nothing.

    Returns:
        The owner of each bucket; empty without members.
    """
    names, wanted = sorted(set(members)), sorted(set(buckets))
    if not names:
        return {}
    held: dict[str, list[int]] = {name: [] for name in names}
    for bucket in wanted:
        if (owner := owners.get(bucket)) in held:
            held[owner].append(bucket)
    share, extra = divmod(len(wanted), len(names))
    # Those who hold the most keep the most. Sorting is stable: among equals it is the first by name.
    by_held = sorted(names, key=lambda name: -len(held[name]))
    quota = {name: share + (place < extra) for place, name in enumerate(by_held)}
    target = {bucket: name for name in names for bucket in held[name][: quota[name]]}
    free = iter([bucket for bucket in wanted if bucket not in target])
    for name in names:
        for _ in range(quota[name] - len(held[name])):
            target[next(free)] = name
    return dict(sorted(target.items()))
