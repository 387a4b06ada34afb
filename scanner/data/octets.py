"""Binary arrays whose values are all of one length, as a matrix of octets for numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def octets_of(values: pa.BinaryArray) -> NDArray[np.uint8] | None:
    """The values, one below the other, without a copy; None: they are of several lengths.

    Args:
        values: Without nulls.
    """
    count = len(values)
    if not count:
        return np.empty((0, 0), np.uint8)
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + count + 1]
    width = int(bounds[1] - bounds[0])
    if not (np.diff(bounds) == width).all():
        return None
    if not width:
        return np.empty((count, 0), np.uint8)
    return np.frombuffer(data, np.uint8, count * width, int(bounds[0])).reshape(count, width)
