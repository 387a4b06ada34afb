"""What every store makes of commits of some hundred mutations, which RocksDB's bucket works out as columns."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from scanner.storage.memory.store import MemoryStore
from tests.support.storage_tables import ITEMS, changes_of, contents, puts, replayed

if TYPE_CHECKING:
    from scanner.storage.interface import Mutation, Store


def _requests(rng: random.Random, *, distinct: bool) -> list[list[Mutation]]:
    """Three requests of puts and deletes, of keys that come once in the commit or several times."""
    numbers = rng.sample(range(500), 300) if distinct else rng.choices(range(500), k=300)
    texts = (None, "", "a", "\0" * 40, "é" * 300)
    mutations = [
        each._replace(row=None) if rng.random() < 0.3 else each
        for each in puts((number, rng.choice(texts)) for number in numbers)
    ]
    return [mutations[:100], mutations[100:150], mutations[150:]]


@pytest.mark.parametrize("distinct", [True, False], ids=["keys once", "keys several times"])
def test_large_commits_are_those_of_the_plain_store(store: Store, *, distinct: bool) -> None:
    """Rows, changes and offsets after each, over rows that were there before and rows that were not."""
    rng, bucket = random.Random(7), store.bucket("items", 0)
    plain = MemoryStore()
    plain.create_table(ITEMS)
    expected = plain.bucket("items", 0)
    for _ in range(3):
        requests = _requests(rng, distinct=distinct)
        assert bucket.commit(requests) == expected.commit(requests)
    assert changes_of(bucket) == changes_of(expected)
    assert contents(bucket) == contents(expected) == replayed(bucket)
