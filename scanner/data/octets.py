"""The octets of binary arrays, as numpy and joins take them: without a copy, and without an object for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def bounds_of(values: pa.BinaryArray) -> NDArray[np.int32]:
    """Where each value begins in the array's buffer, and where the last one ends; one more than there are values."""
    offsets = values.buffers()[1]
    if offsets is None or not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]


def lengths_of(values: pa.BinaryArray) -> NDArray[np.int32]:
    """Octets of each value of an array without nulls: for few values far quicker than Arrow's own function."""
    bounds = bounds_of(values)
    return bounds[1:] - bounds[:-1]


def joined(values: pa.BinaryArray) -> memoryview:
    """The values, one after the other.

    Args:
        values: Without nulls.
    """
    bounds = bounds_of(values)
    return memoryview(values.buffers()[2] or b"")[bounds[0] : bounds[-1]]


def octets_of(values: pa.BinaryArray) -> NDArray[np.uint8] | None:
    """The values, one below the other; None: they are of several lengths.

    Args:
        values: Without nulls.
    """
    lengths = lengths_of(values)
    if not len(lengths):
        return np.empty((0, 0), np.uint8)
    if not (lengths == lengths[0]).all():
        return None
    return np.frombuffer(joined(values), np.uint8).reshape(len(lengths), int(lengths[0]))
