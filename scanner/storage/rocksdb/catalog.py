"""Which tables a data directory has, and every schema each of them had: in one catalog, and in each table's directory.

`catalog.json` is replaced as a whole (`scanner.storage.rocksdb.files`), and that is the moment at which a table exists
or is gone. `table.json` in a table's directory repeats its entry, so that a directory says by itself what it holds: a
catalog that was lost can be made anew, and a directory that the catalog does not name can be named by people.

This module knows no RocksDB and no open bucket.
"""

from __future__ import annotations

import base64
import json
import secrets
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from scanner.data.table import TableDescription
from scanner.errors import DataCorrupted, ScannerError
from scanner.storage.rocksdb.files import read_sealed, write_sealed

CATALOG_NAME: Final = "catalog.json"
TABLE_NAME: Final = "table.json"
TABLE_ID_END: Final = 1 << 32
"""Above every table id; resume tokens have 32 bits for it."""


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One table of the catalog."""

    table_id: int
    """Never used again, not even after the table was dropped; names its directory."""
    description: TableDescription
    """With the current schema."""
    older_schemas: tuple[pa.Schema, ...] = ()
    """By schema id, from 0. The current schema's id is their count."""
    unique_id: str = field(default_factory=lambda: secrets.token_hex(16))
    """Random; tells the table from those of other data directories that have the same id."""

    @property
    def schema_id(self) -> int:
        """Number of the current schema."""
        return len(self.older_schemas)

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """All that the table had, the current one last."""
        return (*self.older_schemas, self.description.schema)

    def bucket_identity(self, index: int) -> bytes:
        """What the database of a bucket says of itself: it is of no other table, and of no other bucket of this one."""
        return f"bucket {index} of table {self.unique_id}".encode()

    def with_column(self, column: pa.Field) -> TableEntry:
        """This table with one more column, the last one.

        Raises:
            SchemaMismatch, ArgumentInvalid: As `TableDescription.with_column`.
        """
        return replace(self, description=self.description.with_column(column), older_schemas=self.schemas)

    def extends(self, older: TableEntry) -> bool:
        """Whether this is another entry's table with columns added since."""
        count = len(older.schemas)
        return (
            len(self.schemas) > count
            and self.schemas[:count] == older.schemas
            and self == replace(older, description=self.description, older_schemas=self.older_schemas)
            and self.description == replace(older.description, schema=self.description.schema)
        )


@dataclass(frozen=True, kw_only=True)
class CatalogFile:
    """All tables of a store, as its catalog file lists them."""

    next_table_id: int = 0
    """Above every id that this catalog knows of. Others may have been given since a copy of it was made."""
    tables: dict[str, TableEntry] = field(default_factory=dict)
    """By name."""

    def with_table(self, entry: TableEntry) -> CatalogFile:
        """This catalog with a table added or replaced."""
        following = max(self.next_table_id, entry.table_id + 1)
        return CatalogFile(next_table_id=following, tables={**self.tables, entry.description.name: entry})

    def without_table(self, name: str) -> CatalogFile:
        """This catalog with a table dropped."""
        return replace(self, tables={key: entry for key, entry in self.tables.items() if key != name})


class CatalogReader:
    """Reads the catalog of a data directory, which a server may replace; it is parsed only where it has changed.

    Args:
        directory: The data directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._text: bytes | None = None
        self._catalog: CatalogFile | None = None

    def read(self) -> CatalogFile | None:
        """The catalog as it is now; None if there is none.

        Raises:
            DataCorrupted: the file is damaged.
            StoreFailed: it cannot be read, or a newer version wrote it.
        """
        path = self.directory / CATALOG_NAME
        try:
            text = read_sealed(path)
            if text != self._text:
                self._catalog = None if text is None else _catalog_of(json.loads(text))
                self._text = text
        except DataCorrupted as error:
            raise DataCorrupted(f"{error.message}; {_rebuild(self.directory)}") from error
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            message = f"{path} is damaged ({type(error).__name__}); {_rebuild(self.directory)}"
            raise DataCorrupted(message) from error
        return self._catalog


def load_catalog(directory: Path) -> CatalogFile | None:
    """Read the catalog of a data directory once; see `CatalogReader`."""
    return CatalogReader(directory).read()


def save_catalog(directory: Path, catalog: CatalogFile) -> None:
    """Replace the catalog of a data directory; durable when this returns.

    Raises:
        StoreFailed: the disk refused; the old one is still there, unless only the last sync failed.
    """
    content = {
        "next_table_id": catalog.next_table_id,
        "tables": [_document_of(entry) for entry in catalog.tables.values()],
    }
    write_sealed(directory / CATALOG_NAME, _text(content))


def missing_catalog(directory: Path) -> DataCorrupted:
    """The error of a data directory that has lost its catalog."""
    return DataCorrupted(f"{directory / CATALOG_NAME} is gone; {_rebuild(directory)}")


def load_table_entry(directory: Path) -> TableEntry | None:
    """Read what a table's directory says of itself; None if it says nothing.

    Raises:
        DataCorrupted: the file is damaged.
        StoreFailed: it cannot be read, or a newer version wrote it.
    """
    path = directory / TABLE_NAME
    text = read_sealed(path)
    if text is None:
        return None
    try:
        return _entry_of(json.loads(text))
    except ScannerError:
        raise
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataCorrupted(f"{path} is damaged ({type(error).__name__})") from error


def save_table_entry(directory: Path, entry: TableEntry) -> None:
    """Let a table's directory say what it holds; durable when this returns.

    Raises:
        StoreFailed: the disk refused; what it said before is still there, unless only the last sync failed.
    """
    write_sealed(directory / TABLE_NAME, _text(_document_of(entry)))


def _rebuild(directory: Path) -> str:
    return (
        f"make it anew from the tables' own directories with: weir adopt --data {shlex.quote(str(directory))} --rebuild"
        " (or restore it from a copy: a table that the copy does not name stays where it is, and is reported)"
    )


def _text(content: Any) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"


def _document_of(entry: TableEntry) -> dict[str, Any]:
    return {
        "table_id": entry.table_id,
        "unique_id": entry.unique_id,
        "name": entry.description.name,
        "primary_key": list(entry.description.primary_key),
        "buckets": entry.description.buckets,
        "schemas": [base64.b64encode(schema.serialize()).decode() for schema in entry.schemas],
    }


def _catalog_of(content: dict[str, Any]) -> CatalogFile:
    entries = [_entry_of(table) for table in content["tables"]]
    return CatalogFile(
        next_table_id=content["next_table_id"],
        tables={entry.description.name: entry for entry in entries},
    )


def _entry_of(table: dict[str, Any]) -> TableEntry:
    *older, current = [pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) for text in table["schemas"]]
    return TableEntry(
        table_id=table["table_id"],
        unique_id=table["unique_id"],
        description=TableDescription(
            name=table["name"],
            schema=current,
            primary_key=tuple(table["primary_key"]),
            buckets=table["buckets"],
        ),
        older_schemas=tuple(older),
    )
