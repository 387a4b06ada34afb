"""How many rows of a load have the primary key of an earlier one: counted with sixteen octets a row at most.

Keys of up to sixteen octets that are all of one length are kept as they are. Of others two hashes are kept, which two
different keys share with a chance of 2**-128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scanner.data.keys import KeyCodec
from scanner.data.octets import octets_of

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from scanner.data.table import TableDescription

_WORD_BYTES = 8
_HASHES = 2
_KEPT_BYTES_MAX = _HASHES * _WORD_BYTES


class RepeatedKeys:
    """Counts them.

    Args:
        table: Whose keys they are.
    """

    def __init__(self, table: TableDescription) -> None:
        self._table = table
        self._codec = KeyCodec(table)
        self._words: list[NDArray[np.uint64]] = []
        """What is kept of the keys of each batch: one word or two for each."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows of the table, whose keys are not null.

        Raises:
            SchemaMismatch: They do not fit the table.
            KeyInvalid: A key is too long.
        """
        keys = self._codec.encode_array(self._table.conform_keys(batch.select(list(self._table.primary_key))))
        if not len(keys):
            return
        fits = (self._codec.fixed_bytes or _KEPT_BYTES_MAX + 1) <= _KEPT_BYTES_MAX
        octets = octets_of(keys) if fits else None
        self._words.append(_hashed(keys.to_pylist()) if octets is None else _padded(octets))

    @property
    def count(self) -> int:
        """Rows whose key came before."""
        if not self._words:
            return 0
        first, *others = np.concatenate(self._words, axis=1)
        if not others:
            first.sort()
            return int(np.count_nonzero(first[1:] == first[:-1]))
        order = np.lexsort((others[0], first))
        first, second = first[order], others[0][order]
        return int(np.count_nonzero((first[1:] == first[:-1]) & (second[1:] == second[:-1])))


def _padded(keys: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Keys of one length as words, with zeros behind them."""
    count, width = keys.shape
    padded = np.zeros((count, -(-width // _WORD_BYTES) * _WORD_BYTES), np.uint8)
    padded[:, :width] = keys
    return np.ascontiguousarray(padded.view(np.uint64).T)


def _hashed(keys: list[bytes]) -> NDArray[Any]:
    hashes = np.empty((_HASHES, len(keys)), np.int64)
    hashes[0] = np.fromiter(map(hash, keys), np.int64, len(keys))
    hashes[1] = np.fromiter((hash(b"2" + key) for key in keys), np.int64, len(keys))
    return hashes.view(np.uint64)
