"""The credit of a push scan: how much of it each bucket begins with, and how far it may grow.

By itself (`AUTO`) a scan begins with little, so that a consumer that does not keep up holds little, and grows where the
line is long and the consumer waits (`transport.ReceiveCredit`). Memory is bounded three times over:

    a scan     begins with 8 MiB, or 4 MiB for each bucket that it reads at a time if that is more; 32 MiB at most
    a scan     grows to 64 MiB: as much as a connection lets come in a round trip, so that more would not be quicker
    a client   lets all of its scans together grow by 256 MiB beyond what they begin with
"""

from __future__ import annotations

from typing import Final

from transport import CreditPool, ReceiveCredit

AUTO: Final = "auto"
"""Credit that sizes itself."""
_MIB: Final = 1 << 20
START_BYTES: Final = 8 * _MIB
"""What a scan of few buckets begins with: at 1 ms that is 8 GB/s. It is also what waits for a consumer that lags."""
START_BYTES_PER_BUCKET: Final = 4 * _MIB
"""Two blocks of an image of a table of up to four buckets, or more: they go out whole while others are on their way."""
START_BYTES_MAX: Final = 32 * _MIB
"""What a scan of many buckets begins with."""
SCAN_BYTES_MAX: Final = 64 * _MIB
"""What the credit of one scan grows to."""


class ScanCredit:
    """The credit of one scan, shared out evenly among the buckets that it reads at a time.

    Args:
        credit_bytes: Octets over all buckets, which do not change; None: it sizes itself.
        parallel: Buckets that are read at a time, >= 1.
        client: What the scans of the client may grow by together.
    """

    def __init__(self, credit_bytes: int | None, parallel: int, client: CreditPool) -> None:
        self._pool: CreditPool | None = None
        if credit_bytes is None:
            credit_bytes = min(START_BYTES_MAX, max(START_BYTES, parallel * START_BYTES_PER_BUCKET))
            self._pool = CreditPool(SCAN_BYTES_MAX - credit_bytes, client)
        self.bucket_bytes = max(1, credit_bytes // parallel)
        """What a bucket begins with."""

    def of_bucket(self) -> ReceiveCredit:
        """The ledger of a bucket whose scan begins; to be closed when all of it is consumed and another begins."""
        return ReceiveCredit(self.bucket_bytes, self._pool)

    def close(self) -> None:
        """Give back what the scan has grown by, when it is left; no ledger of it is used after that."""
        if self._pool is not None:
            self._pool.close()
