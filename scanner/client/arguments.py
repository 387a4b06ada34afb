"""What callers pass: each argument is of its type and in its range, or refused at the call by one line.

What does not say what it means is never guessed: a bool is no number, text is no list, and a number is no name.
"""

from __future__ import annotations

import datetime
import decimal
import numbers
import operator
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from scanner.errors import ArgumentInvalid, BucketNotFound

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1


def whole(value: int, what: str, low: int, high: int) -> int:
    """A whole number in [low, high].

    Raises:
        ArgumentInvalid: It is none.
    """
    number = whole_number(value)
    if number is None or not low <= number <= high:
        raise ArgumentInvalid(f"{what} must be a whole number, {low}..{high}, not {value!r}")
    return number


def bucket_number(table: str, bucket: int) -> int:
    """The number of a bucket, as it can be told to a server; whether the table has it the server says.

    Raises:
        BucketNotFound: No table has such a bucket.
    """
    number = whole_number(bucket)
    if number is None or not 0 <= number <= UINT32_MAX:
        raise BucketNotFound(f"table {table!r} has no bucket {bucket!r}")
    return number


def whole_number(value: Any) -> int | None:
    """A whole number, of numpy or of Python, as Python's; None: it is none."""
    try:
        return None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        return None


def is_number(value: object) -> bool:
    """Whether something is a number, of numpy or of Python; not so a decimal NaN, which raises where it is compared."""
    if isinstance(value, decimal.Decimal):
        return not value.is_nan()
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.timedelta64)


def flag(what: str, value: bool | None) -> bool:
    """Whether something is wanted. Text is refused: Python takes `"false"` for true.

    Raises:
        ArgumentInvalid: It is neither a bool, of numpy or of Python, nor a whole number or None.
    """
    if not isinstance(value, bool | np.bool_ | numbers.Integral | None):
        raise ArgumentInvalid(f"{what} is True or False, not {value!r}")
    return bool(value)


def is_time(value: object) -> bool:
    """Whether something is a moment. pandas' NaT is a `datetime`, but none, and equals nothing."""
    return isinstance(value, datetime.datetime) and bool(value == value)


def microseconds(time: datetime.datetime) -> int:
    """A time as it is on the wire, since 1970 UTC; without a zone it is one of UTC.

    Of one between two microseconds, as pandas has, it is the later: no commit at the earlier one is at or after it.

    Raises:
        ArgumentInvalid: It is no `datetime`.
    """
    if not is_time(time):
        raise ArgumentInvalid(f"a time is a datetime, not {time!r}")
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
    return -((EPOCH - zoned) // datetime.timedelta(microseconds=1))


def require_text(what: str, text: str) -> str:
    """A name that can be sent.

    Raises:
        ArgumentInvalid: It is no Unicode text, such as octets on a command line that are no UTF-8.
    """
    try:
        if isinstance(text, str):
            text.encode()
            return text
    except UnicodeEncodeError as error:
        raise ArgumentInvalid(f"{what}, {text!r}, is no Unicode text") from error
    raise ArgumentInvalid(f"{what} is text, not {text!r}")


TEXT_OR_OCTETS: Final = (str, bytes, bytearray, memoryview)
"""What Python iterates by its characters or octets, and nobody means as a list of these."""


def require_kind(what: str, value: object, kind: type) -> None:
    """Check that an argument is of the type that can be used.

    Raises:
        ArgumentInvalid: It is of another one.
    """
    if not isinstance(value, kind):
        raise ArgumentInvalid(f"{what} must be of type {kind.__name__}, not {value!r}")


def offsets_given(value: int | Mapping[int, int], buckets: int, what: str) -> int | dict[int, int]:
    """One offset of all buckets, or one of each that is named, as an argument, `what`, gives them.

    Raises:
        ArgumentInvalid: One is negative or no whole number, or of a bucket that a table of so many does not have.
    """
    if not isinstance(value, Mapping):
        return whole(value, what, 0, UINT64_MAX)
    return {
        whole(bucket, f"the bucket in {what}", 0, buckets - 1): whole(
            each, f"{what} of bucket {bucket}", 0, UINT64_MAX
        )
        for bucket, each in value.items()
    }


def offsets_by_bucket(value: int | Mapping[int, int], buckets: int, what: str) -> dict[int, int]:
    """As `offsets_given`, with one offset of all buckets said of each."""
    offsets = offsets_given(value, buckets, what)
    return offsets if isinstance(offsets, dict) else dict.fromkeys(range(buckets), offsets)


def histories_by_bucket(histories: Mapping[int, bytes] | None, buckets: int) -> dict[int, bytes]:
    """The histories of buckets that an argument names, of a table of so many.

    Raises:
        ArgumentInvalid: It is no mapping to octets, or names a bucket that there is not.
    """
    if histories is None:
        return {}
    if not isinstance(histories, Mapping):
        raise ArgumentInvalid(f"histories is a dict from bucket to its history, not {histories!r}")
    for bucket, history in histories.items():
        if not isinstance(history, bytes):
            raise ArgumentInvalid(f"the history of bucket {bucket} is bytes, not {history!r}")
    return {
        whole(bucket, "the bucket in histories", 0, buckets - 1): history
        for bucket, history in histories.items()
    }
