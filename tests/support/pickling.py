"""What Spark does to objects on their way to its Python workers."""

import pickle
from typing import TypeVar

from pyspark import cloudpickle

T = TypeVar("T")


def pickled(value: object) -> bytes:
    """The bytes that Spark sends."""
    sent: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return sent


def sent_to_worker(value: T) -> T:
    """The object as a worker gets it."""
    received: T = pickle.loads(pickled(value))
    return received
