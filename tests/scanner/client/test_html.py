"""What notebooks show of a table and of a scan's statistics."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

import scanner.sync
from scanner.client.html import html_table
from tests.support.client import open_table
from tests.support.server import running_server

HOSTILE = "<script>alert(1)</script>&\"' $x$"


class Reader(HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """One more."""
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        """One more."""
        self.texts.append(data)


def test_names_and_values_are_text_and_nothing_else() -> None:
    """Whatever a name or a value looks like, it is shown as it is, and neither run nor set as a formula."""
    page = html_table(HOSTILE, [HOSTILE], [[HOSTILE], [None], [1_234], [True]])
    read = Reader(page)
    assert set(read.elements) == {"table", "caption", "thead", "tr", "th", "tbody", "td"}
    assert read.texts == [HOSTILE, HOSTILE, HOSTILE, "1,234", "True"]
    assert "$" not in page


async def test_a_table_shows_columns_key_and_buckets(tmp_path: Path) -> None:
    """Each column with its type, whether it may be null, and its place in the key."""
    async with open_table(tmp_path, 0) as (table, _):
        assert Reader(table._repr_html_()).texts == [
            "items: 3 buckets",
            *("column", "type", "may be", "key"),
            *("k", "int64", "not null", "1"),
            *("text", "string", "null"),
            *("number", "double", "null"),
        ]


@pytest.mark.socket
@pytest.mark.rocks
def test_statistics_show_sums_and_buckets(tmp_path: Path) -> None:
    """The blocking client shows the same, of a table whose columns have hostile names as well."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field(HOSTILE, pa.string())])
    with running_server(tmp_path) as server, scanner.sync.connect(server.endpoint) as client:
        table = client.create_table("items", schema, ["id"], buckets=1)
        table.write(pa.table({"id": [1, 2], HOSTILE: ["a", HOSTILE]}, schema=schema))
        assert HOSTILE in Reader(table._repr_html_()).texts
        with table.new_scan().with_source("log").start_at(0).execute() as tail:
            next(tail)
            assert "not ended" in Reader(tail.statistics()._repr_html_()).texts
        with table.new_scan().execute() as batches:
            assert sum(batch.num_rows for batch in batches) == 2
    caption, *cells = Reader(batches.statistics()._repr_html_()).texts
    digest = batches.statistics().digest
    assert caption.startswith("2 rows, ")
    assert caption.endswith(f"1 requests, 0 resumes, digest {digest:08x}")
    assert cells[:5] == ["bucket", "rows", "log offset", "digest", "end"]
    (bucket,) = batches.statistics().buckets
    assert cells[5:] == ["0", "2", "2", f"{bucket.digest:08x}", "EXHAUSTED"]
