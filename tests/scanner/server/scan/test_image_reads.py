"""Scans whose bucket has an image: tokens and parked scans go on from it, or from what there is without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.images import write_image
from scanner.data.filters import Operator, Predicate
from scanner.errors import ColumnNotFound
from scanner.server.scan.read_sources import ReadSource
from tests.support.opening import QUERY, ROWS, Opening, opening, read, resume


async def give_image(at: Opening, path: Path) -> None:
    """Give the bucket an image as of now."""
    (await at.served()).image.replace(write_image(path, at.store, rows_max=40))


async def whole(at: Opening) -> tuple[list[int], int]:
    """Rows and digest of a scan as of now that is not cut."""
    opened = await at.opener.open(QUERY, "ann")
    ids = read(opened.scan.source)
    digest = opened.scan.source.digest
    opened.scan.close()
    return ids, digest


@pytest.mark.parametrize("taken", [1, 40, 57, ROWS - 1])
@pytest.mark.parametrize("begins", ["image", "rows"])
@pytest.mark.parametrize("writes", [False, True])
async def test_tokens_are_interchangeable(tmp_path: Path, taken: int, begins: str, writes: bool) -> None:
    """Made with an image and resumed without, and the other way: the same rows, digest and position."""
    async with opening() as at:
        expected = await whole(at)
        if begins == "image":
            await give_image(at, tmp_path / "image")
        first = await at.opener.open(QUERY, "ann")
        ids = read(first.scan.source, taken)
        token = first.token()
        first.scan.close()
        served = await at.served()
        if begins == "image":
            served.image.close()
        else:
            await give_image(at, tmp_path / "image")
        if writes:
            at.write(range(0, ROWS, 3))
            at.delete(1)
        second = await resume(at, token)
        assert second.log_offset == ROWS
        ids += read(second.scan.source)
        assert (ids, second.scan.source.digest) == expected
        assert (first.read_source is ReadSource.IMAGE) == (begins == "image")
        assert (second.read_source is ReadSource.IMAGE) == (begins == "rows")
        second.scan.close()
        served.image.close()


async def test_a_parked_scan_goes_on_from_what_there_is(tmp_path: Path) -> None:
    """Parked in the middle of a block, with the image then, without it, and with it and changes since."""
    async with opening() as at:
        expected = await whole(at)
        await give_image(at, tmp_path / "image")
        opened = await at.opener.open(QUERY, "ann")
        served = await at.served()
        sources, ids = [opened.read_source], read(opened.scan.source, 30)
        opened.scan.park()
        await opened.scan.unpark()
        ids += read(opened.scan.source, 30)
        sources.append(opened.read_source)
        opened.scan.park()
        image = served.image.current
        served.image.current = None
        at.write(range(0, ROWS, 7))
        await opened.scan.unpark()
        ids += read(opened.scan.source, 30)
        sources.append(opened.read_source)
        opened.scan.park()
        served.image.current = image
        await opened.scan.unpark()
        ids += read(opened.scan.source)
        sources.append(opened.read_source)

        assert sources == [ReadSource.IMAGE, ReadSource.IMAGE, ReadSource.AS_OF, ReadSource.IMAGE]
        assert (ids, opened.scan.source.digest) == expected
        opened.scan.close()
        served.image.close()


async def test_what_was_changed_since_shows(tmp_path: Path) -> None:
    """Scans of now, of offsets in between and before read the image with what differs; not the held state of before."""
    async with opening() as at:
        at.write(range(5))
        await give_image(at, tmp_path / "image")
        at.delete(3)
        at.write([ROWS + 5])
        end = at.storage.log_end
        expected: dict[int, tuple[list[int], int]] = {}
        served = await at.served()
        image = served.image.current
        for with_image in (False, True):
            served.image.current = image if with_image else None
            for log_offset in (ROWS, end - 2, end - 1, end):
                opened = await at.opener.open(QUERY, "ann", log_offset=log_offset)
                found = read(opened.scan.source), opened.scan.source.digest
                assert found == expected.setdefault(log_offset, found)
                assert (opened.read_source is ReadSource.IMAGE) == with_image
                opened.scan.close()
        served.image.close()


async def test_a_filter_on_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """With an image as without one: the error lists the columns that there are."""
    query = replace(QUERY, predicates=(Predicate("nothing", Operator.EQUAL, (1,)),))
    refusals = []
    async with opening() as at:
        for _ in range(2):
            with pytest.raises(ColumnNotFound, match="'nothing', which the table has not") as refused:
                await at.opener.open(query, "ann")
            refusals.append(refused.value.message)
            await give_image(at, tmp_path / "image")
        (await at.served()).image.close()
    assert refusals[0] == refusals[1]
