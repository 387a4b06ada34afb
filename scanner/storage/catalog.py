"""The catalog file of a data directory: which tables there are, and every schema each of them had.

One JSON file, `catalog.json`, with its format version and its CRC-32C. It is replaced as a whole
(`scanner.storage.files`), and that is the moment at which a table exists or is gone.

This module knows no RocksDB and no open bucket.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from scanner.digest import checksum
from scanner.errors import DataCorrupted, ScannerError, StoreFailed
from scanner.storage.files import disk_errors, replace_file
from scanner.table import TableDescription

CATALOG_FORMAT = 1
"""Version of the file; a newer one is refused, an older one would be read."""
CATALOG_NAME = "catalog.json"


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One table of the catalog."""

    table_id: int
    """Never used again, not even after the table was dropped; names its directory."""
    description: TableDescription
    """With the current schema."""
    older_schemas: tuple[pa.Schema, ...] = ()
    """By schema id, from 0. The current schema's id is their count."""

    @property
    def schema_id(self) -> int:
        """Number of the current schema."""
        return len(self.older_schemas)

    def with_column(self, column: pa.Field) -> TableEntry:
        """This table with one more column, the last one."""
        description = self.description
        schema = description.schema.append(column)
        return replace(
            self,
            description=replace(description, schema=schema),
            older_schemas=(*self.older_schemas, description.schema),
        )


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """All tables of a store."""

    next_table_id: int = 0
    """Id of the next table to be created."""
    tables: dict[str, TableEntry] = field(default_factory=dict)
    """By name."""

    def with_table(self, entry: TableEntry) -> Catalog:
        """This catalog with a table added or replaced."""
        following = max(self.next_table_id, entry.table_id + 1)
        return Catalog(next_table_id=following, tables={**self.tables, entry.description.name: entry})

    def without_table(self, name: str) -> Catalog:
        """This catalog with a table dropped."""
        return replace(self, tables={key: entry for key, entry in self.tables.items() if key != name})


def load_catalog(directory: Path) -> Catalog | None:
    """Read the catalog of a data directory; None if it has none.

    Raises:
        DataCorrupted: the file is damaged.
        StoreFailed: it cannot be read, or a newer version wrote it.
    """
    path = directory / CATALOG_NAME
    with disk_errors(path):
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise DataCorrupted(f"{path} is damaged: {error}") from error
    try:
        document = json.loads(text)
        if document["format"] != CATALOG_FORMAT:
            raise StoreFailed(
                f"{path} has format {document['format']}; this version reads {CATALOG_FORMAT}: use a newer weir"
            )
        if checksum(_canonical(document["catalog"])) != document["crc32c"]:
            raise DataCorrupted(f"{path} is damaged: its checksum is wrong; restore it from a copy")
        return _catalog_of(document["catalog"])
    except ScannerError:
        raise
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataCorrupted(
            f"{path} is damaged ({type(error).__name__}: {error}); restore it from a copy"
        ) from error


def save_catalog(directory: Path, catalog: Catalog) -> None:
    """Replace the catalog of a data directory; durable when this returns.

    Raises:
        StoreFailed: the disk refused; the old one is still there.
    """
    path = directory / CATALOG_NAME
    content = _document_of(catalog)
    document = {"format": CATALOG_FORMAT, "crc32c": checksum(_canonical(content)), "catalog": content}
    replace_file(path, json.dumps(document, indent=1).encode())


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _document_of(catalog: Catalog) -> dict[str, Any]:
    return {
        "next_table_id": catalog.next_table_id,
        "tables": [
            {
                "table_id": entry.table_id,
                "name": entry.description.name,
                "primary_key": list(entry.description.primary_key),
                "buckets": entry.description.buckets,
                "schemas": [_text_of(schema) for schema in (*entry.older_schemas, entry.description.schema)],
            }
            for entry in catalog.tables.values()
        ],
    }


def _catalog_of(content: dict[str, Any]) -> Catalog:
    entries = [
        TableEntry(
            table_id=table["table_id"],
            description=TableDescription(
                name=table["name"],
                schema=_schema_of(table["schemas"][-1]),
                primary_key=tuple(table["primary_key"]),
                buckets=table["buckets"],
            ),
            older_schemas=tuple(_schema_of(text) for text in table["schemas"][:-1]),
        )
        for table in content["tables"]
    ]
    tables = {entry.description.name: entry for entry in entries}
    return Catalog(next_table_id=content["next_table_id"], tables=tables)


def _text_of(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
