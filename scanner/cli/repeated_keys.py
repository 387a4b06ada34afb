"""How many rows of a load have the primary key of an earlier one: counted without keeping the keys.

Sixteen octets a row are kept: two hashes of its key, which two different keys share with a chance of 2**-128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scanner.data.keys import KeyCodec

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from scanner.data.table import TableDescription


class RepeatedKeys:
    """Counts them.

    Args:
        table: Whose keys they are.
    """

    def __init__(self, table: TableDescription) -> None:
        self._table = table
        self._codec = KeyCodec(table)
        self._hashes: list[NDArray[Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows of the table, whose keys are not null.

        Raises:
            SchemaMismatch: They do not fit the table.
            KeyInvalid: A key is too long.
        """
        keys = self._codec.encode_batch(self._table.conform_keys(batch.select(list(self._table.primary_key))))
        hashes = np.empty((2, len(keys)), np.int64)
        hashes[0] = np.fromiter(map(hash, keys), np.int64, len(keys))
        hashes[1] = np.fromiter((hash(b"2" + key) for key in keys), np.int64, len(keys))
        self._hashes.append(hashes)

    @property
    def count(self) -> int:
        """Rows whose key came before."""
        if not self._hashes:
            return 0
        first, second = np.concatenate(self._hashes, axis=1)
        order = np.lexsort((second, first))
        first, second = first[order], second[order]
        return int(np.count_nonzero((first[1:] == first[:-1]) & (second[1:] == second[:-1])))
