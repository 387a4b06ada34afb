"""Primary keys as people write them on the command line."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING

import pyarrow as pa

from scanner.cli.cells import BINARY_PREFIX
from scanner.data.keys import key_cells
from scanner.data.literals import Temporal, decimal_literal
from scanner.errors import ArgumentInvalid, KeyInvalid

if TYPE_CHECKING:
    from scanner.data.table import TableDescription


def parse_keys(table: TableDescription, keys: tuple[str, ...]) -> pa.RecordBatch:
    """Read keys as written on the command line, one CSV record each.

    Raises:
        KeyInvalid: A key is no CSV record, has too few or too many values, or one that is not of its column's type.
    """
    rows = [_key_record(key) for key in keys]
    for row in rows:
        if len(row) != len(table.primary_key):
            wanted = ",".join(table.primary_key)
            raise KeyInvalid(f"key {','.join(row)!r} does not have the form {wanted}")
    columns = [
        key_cells([_key_value(text, field) for text in texts], field)
        for field, texts in zip(table.key_schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(table.primary_key))


def _key_record(key: str) -> list[str]:
    """The values of one key. Read with others, a quote that it does not close would take in the next key."""
    try:
        if key.endswith(("\n", "\r")):  # Outside of quotes: taken for the end of a line, and left out.
            raise csv.Error("it ends with a line break")
        return next(csv.reader([key], strict=True), [])
    except csv.Error as error:
        raise KeyInvalid(
            f"key {key!r} is no CSV record: {str(error).partition(' - ')[0]}; put a value with a quote or a line break"
            " in it in double quotes, and write a quote in it twice"
        ) from error


def _key_value(text: str, field: pa.Field) -> object:
    """What a word on the command line says in a key column: what it says in a CSV, and text may be octets as well."""
    types, kind = pa.types, field.type
    try:
        if types.is_boolean(kind):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if "_" in text and (types.is_integer(kind) or types.is_floating(kind)):
            raise ValueError  # Python would read 1_000.
        if types.is_integer(kind):
            return int(text)
        if types.is_floating(kind):
            return _float_value(text, kind)
        if types.is_decimal(kind):
            return decimal_literal(text)
        if types.is_date(kind) or types.is_timestamp(kind):
            return Temporal(text)
        if types.is_binary(kind) and text.startswith(BINARY_PREFIX):
            return bytes.fromhex(text.removeprefix(BINARY_PREFIX))
    except (ValueError, KeyError, ArgumentInvalid) as error:
        raise KeyInvalid(f"{text!r} is no {kind}, which key column {field.name!r} is") from error
    return text.encode() if types.is_binary(kind) else text


def _float_value(text: str, kind: pa.DataType) -> float:
    """The number of a type of floats that is nearest to the text; a whole number is it, or how a CSV shows it.

    Raises:
        ValueError: It is no number, or there is none so large or so exact.
    """
    nearest = pa.scalar(text.strip()).cast(kind)  # As in a CSV: once, and not by way of a float64.
    value: float = nearest.as_py()
    is_number = any(character.isdigit() for character in text)
    if is_number and math.isinf(value):
        raise ValueError(text)
    # A CSV shows the float32 355591072 as 355591070: no other is nearer.
    shown = nearest.cast(pa.string()).as_py()
    if text.strip().lstrip("+-").isdigit() and int(text) != value and text != shown:
        raise ValueError(text)
    return value
