"""When the names of transactions are forgotten, and how.

Invariants:

1. A name is forgotten only while nothing of it is staged or left to apply, and after it was not needed for its time.
2. The buckets forget it before its decision goes: what the decision says is never less than what they say.
3. A bucket that forgets a name that may be used again says so first: it does not know all names any more.
4. What a clock that was ahead has stamped is as old as this server's start, and not newer than now for ever.

This module knows no stages but their times, and decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scanner.storage.transactions import ALL_KNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scanner.server.config import ScannerConfig
    from scanner.server.tables.catalog import Catalog
    from scanner.server.transactions.names import TransactionName, TransactionTable

_ONCE: Final = "once:"


class Forgetting:
    """Tells how old names and stages are, and forgets the names whose time is over.

    Args:
        catalog: Table catalog.
        config: How long names are remembered.
        now_ms: Tells the time, in milliseconds since 1970 UTC.
    """

    def __init__(self, catalog: Catalog, config: ScannerConfig, now_ms: Callable[[], int]) -> None:
        self._catalog = catalog
        self._config = config
        self._now_ms = now_ms
        self._begun_ms = now_ms()
        self._to_come: set[int] = set()
        """Times that an earlier server, whose clock was ahead, has stamped stages and decisions with."""

    def note_stamps(self, stamps_ms: Iterable[int]) -> None:
        """Take the times that an earlier server has left."""
        now_ms = self._now_ms()
        self._to_come.update(stamp for stamp in stamps_ms if stamp > now_ms)

    def age_ms(self, stamp_ms: int) -> int:
        """How long ago something was used or staged; by a clock that was ahead: how long this server has run since."""
        now_ms = self._now_ms()
        return now_ms - (self._begun_ms if stamp_ms > now_ms and stamp_ms in self._to_come else stamp_ms)

    async def forget_unused(self, name: TransactionName) -> None:
        """Forget a name whose time is over. Its lock is held.

        Raises:
            ScannerError: Storage failed; the name is there still.

        Waits:
            For storage.
        """
        config = self._config
        if name.decision is None:
            ttl_s = config.transaction_name_ttl_s_min
        else:
            ttl_s = config.transaction_once_ttl_s if is_once(name.text) else config.transaction_name_ttl_s
        if self._is_over(name, ttl_s):
            await self._forget(name)

    async def make_room(self, table: TransactionTable) -> None:
        """Forget the oldest of the names that are used once, if its writer will not come again.

        Raises:
            ScannerError: Storage failed; the name is there still.

        Waits:
            For storage, and for what holds the name's lock.
        """
        ttl_s = self._config.transaction_name_ttl_s_min
        over = [name for name in table.names.values() if is_once(name.text) and self._is_over(name, ttl_s)]
        if over:
            oldest = max(over, key=lambda name: (self.age_ms(name.used_ms), name.text))
            async with oldest.lock:
                if self._is_over(oldest, ttl_s):
                    await self._forget(oldest)

    def _is_over(self, name: TransactionName, ttl_s: float) -> bool:
        """Whether a name is there still, and was not needed for so long."""
        there = name.table.names.get(name.text) is name
        return there and name.idle and self.age_ms(name.used_ms) >= 1000 * ttl_s

    async def _forget(self, name: TransactionName) -> None:
        table, text, used_ms = name.table, name.text, name.used_ms
        # The buckets first: what the decision says is never less than what they say. Without a decision they are not
        # asked to forget: in a restored directory they know more than it does.
        served = await table.served()
        for index in range(0 if name.decision is None else served.description.buckets):
            bucket = await self._catalog.bucket(served, index)
            if text in bucket.storage.applied_shares:
                if ALL_KNOWN in bucket.storage.applied_shares and not is_once(text):
                    await bucket.forget_transaction(ALL_KNOWN).wait_durable()
                await bucket.forget_transaction(text).wait_durable()
        await table.run(table.files.drop_decision, text)
        name.decision, name.completion, name.uncertain = None, None, False
        if name.used_ms == used_ms:  # Nobody waits for it.
            del table.names[text]


def is_once(name: str) -> bool:
    """Whether a name of a transaction is one that is used for one version."""
    return name.startswith(_ONCE)
