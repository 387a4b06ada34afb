"""Scans as of an offset that the client names: time travel within the changelog."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scanner.errors import ArgumentInvalid, OffsetOutOfRange
from tests.support.scans import failure, filled_store, mutations, open_scan, sample, serving, stored_digest

pytestmark = pytest.mark.socket

ROWS = 600


async def test_as_of_an_offset() -> None:
    """The bucket of an earlier offset comes, with that offset in the start; one of the future is out of range."""
    store = filled_store(ROWS)
    store.bucket("items", 0).commit([mutations(store, "items", sample(range(1, ROWS + 50, 2)))])
    async with serving(store) as (_, client):
        async with open_scan(client, as_of=ROWS, window_only=True) as past:
            await past.receive_all()
        async with open_scan(client, as_of=0, window_only=True) as empty:
            await empty.receive_all()
        async with open_scan(client, as_of=10**9) as future:
            error = await failure(future.receive_all)

    assert past.log_offset == ROWS
    assert past.table().equals(pa.Table.from_batches([sample(range(ROWS))]))
    assert past.end is not None
    assert past.end.digest == stored_digest(store, range(ROWS))
    assert (empty.rows, empty.log_offset) == (0, 0)
    assert isinstance(error, OffsetOutOfRange)
    assert "[0, " in error.message


async def test_as_of_beside_a_token() -> None:
    """It may be repeated, and nothing else may be asked for."""
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client, credit=3000) as scan:
            while not scan.batches:
                await scan.receive()
        async with open_scan(client, resume_token=scan.tokens[0], as_of=ROWS, credit=1 << 40) as rest:
            await rest.receive_all()
        errors = []
        for as_of in (5, 0):
            async with open_scan(client, resume_token=scan.tokens[0], as_of=as_of, credit=1 << 40) as other:
                errors.append(await failure(other.receive_all))

    assert rest.end is not None
    assert [type(error) for error in errors] == [ArgumentInvalid] * 2
