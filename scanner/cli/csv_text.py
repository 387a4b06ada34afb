"""CSV as text: decoded, checked and cut into blocks of whole rows, so that a parser meets nothing that it has to guess.

Invariants:

1. Every octet of the file is in the header or in exactly one block, or the reading fails.
2. A block is UTF-8, holds whole rows, and its quotes are those of RFC 4180: a quoted value begins behind a delimiter
   or a line break and ends in front of one; a quote in it is written twice.
3. At most one block, and a row of at most `ROW_BYTES_MAX`, is in memory.

This module knows no types.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast

import numpy as np

from scanner.cli.app import fail

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARROW_MAGIC: Final = b"ARROW1"
PARQUET_MAGIC: Final = b"PAR1"
_NO_TEXT: Final = re.compile(rb"(?P<Parquet>PAR1\x15)|(?P<Arrow>ARROW1\0)|\xff{4}..\0\0", re.DOTALL)
"""With what follows the magic numbers: the first column of a CSV may be called as they are."""
GZIP_BEGINS: Final = b"\x1f\x8b"
ZIP_BEGINS: Final = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
"""With files in it, without any, or in parts. Not every `PK`: so the first column of a CSV may be called."""
ROW_BYTES_MAX: Final = 64 * 1024 * 1024
"""As long as the longest message."""
_BLOCK_BYTES: Final = 1 << 20
_BYTE_ORDER_MARK: Final = "\ufeff"
"""The decoders of utf-8 and utf-16-le, among others, leave it in."""
_LIKELY: Final = (
    ("utf-32", re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff")),
    ("utf-16", re.compile(rb"\xff\xfe|\xfe\xff")),
    ("utf-32-le", re.compile(rb"[^\0]\0\0\0")),
    ("utf-32-be", re.compile(rb"\0\0\0[^\0]")),
    ("utf-16-le", re.compile(rb"[^\0]\0")),
    ("utf-16-be", re.compile(rb"\0[^\0]")),
)
"""How a text begins in each: with a byte order mark, or with a letter of ASCII. The first that fits is meant."""
_ALONE: Final = re.compile(rb"\r(?=[^\r\n])")
"""A carriage return with text behind it. Rows may end with several in front of a line feed."""
_ALONE_IN_FRONT: Final = re.compile(rb"(?:\A|(?<=\n))\r(?=[^\r\n])")
_TEXT_MAX: Final = 40
"""Characters of a value that a message shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvDialect:
    """How a CSV is written."""

    delimiter: str = ","
    """Between the values of a row; one ASCII character."""
    quote: str | None = '"'
    """Around values with delimiters or line breaks in them, one ASCII character; None: quotes are ordinary text."""
    encoding: str | None = None
    """A name that Python knows; None: UTF-8."""


class CsvBlock(NamedTuple):
    """Some rows of a CSV."""

    data: bytes
    """In UTF-8, with their line breaks."""
    first_line: int
    """Where it begins in the file, from 1."""


class CsvText:
    """A CSV file, plain, gzipped or alone in a zip; may be read any number of times.

    Args:
        path: The file.
        dialect: How it is written.

    Raises:
        Failure: It cannot be read, or has no header.
    """

    def __init__(self, path: Path, dialect: CsvDialect) -> None:
        self.path = path
        self.dialect = dialect
        self._likely: str | None = None
        """The encoding of UTF-16 or UTF-32, other than the one that was said, as which the file begins."""
        # Not left to the end of the generator, where Python lets no Ctrl-C through.
        with closing(self._decoded(None)) as pieces:
            block = next(self._blocks(pieces), None)
        if block is None:
            fail(f"{path} is empty")
        self.names, self._header_bytes, self._header_lines = self._read_header(block)

    def blocks(self, on_read: Callable[[int], None] | None = None) -> Iterator[CsvBlock]:
        """The rows behind the header.

        Args:
            on_read: Told after each step how many octets of the file, packed as it is, were read.

        Raises:
            Failure: The file is no CSV of this dialect and encoding; the message has the line.
        """
        start, lines = self._header_bytes, self._header_lines
        for block in self._blocks(self._decoded(on_read)):
            self._require_line_breaks(block)
            yield CsvBlock(block.data[start:], block.first_line + lines)
            start = lines = 0

    def records(self, block: CsvBlock) -> Iterator[tuple[int, int, list[str]]]:
        """The rows of a block one by one: the line on which each begins, and the octets up to its end. Slow."""
        taken = 0

        def lines() -> Iterator[str]:
            nonlocal taken
            for line in io.StringIO(block.data.decode(), newline=""):
                taken += len(line.encode())
                yield line

        limit = csv.field_size_limit(ROW_BYTES_MAX)
        try:
            reader = self._reader(lines())
            line = block.first_line
            for values in reader:
                if values:
                    yield line, taken, values
                line = block.first_line + reader.line_num
        finally:
            csv.field_size_limit(limit)

    def _reader(self, lines: Iterator[str]) -> Any:
        delimiter, quote = self.dialect.delimiter, self.dialect.quote
        if quote is None:
            return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
        return csv.reader(lines, delimiter=delimiter, quotechar=quote, strict=True)

    def _read_header(self, block: CsvBlock) -> tuple[list[str], int, int]:
        for _, taken, names in self.records(block):
            if any("\0" in name for name in names):
                encoding = self._likely or "NAME, if it has another one"
                advice = f"rename it, or read the file with --encoding {encoding}"
                fail(f"{self.path} has a NUL in the name of a column; {advice}")
            require_names_apart(self.path, names)
            return names, taken, _line_breaks(block.data[:taken])
        fail(f"{self.path} is empty")

    def _blocks(self, pieces: Iterator[bytes]) -> Iterator[CsvBlock]:
        """Cut the text behind the last row that is complete, over and over."""
        line, pending, length, quoted = 1, [], 0, False
        first = True
        for piece in pieces:
            if first:
                first = False
                self._newline = b"\r" if b"\n" not in piece and b"\r" in piece else b"\n"
            end, quoted = self._last_row_end(piece, quoted)
            if not end:
                pending.append(piece)
                length += len(piece)
                if length > ROW_BYTES_MAX:
                    self._require_quotes(CsvBlock(b"".join(pending), line))
                    fail(f"{self.path}: the row on line {line} is longer than {ROW_BYTES_MAX >> 20} MiB")
                continue
            block = CsvBlock(b"".join([*pending, piece[:end]]), line)
            self._require_quotes(block)
            yield block
            line += _line_breaks(block.data)
            pending, length = [piece[end:]], len(piece) - end
        rest = CsvBlock(b"".join(pending), line)
        if rest.data:
            self._require_quotes(rest)
            yield rest

    def _last_row_end(self, piece: bytes, quoted: bool) -> tuple[int, bool]:
        """Where the last line break outside of quotes ends, 0 for none, and whether a quote is open at the end."""
        quote, newline = self.dialect.quote, self._newline
        if quote is None or (quote.encode() not in piece and not quoted):
            return piece.rfind(newline) + 1, False
        octets = np.frombuffer(piece, np.uint8)
        quotes = np.flatnonzero(octets == ord(quote))
        breaks = np.flatnonzero(octets == newline[0])
        outside = breaks[(np.searchsorted(quotes, breaks) + quoted) % 2 == 0]
        end = int(outside[-1]) + 1 if outside.size else 0
        return end, bool((quotes.size + quoted) % 2)

    def _require_line_breaks(self, block: CsvBlock) -> None:
        """Refuse a carriage return that is a part of a value without quotes, where rows end with line feeds.

        Some programs leave it there, as Python before 3.13, and every parser ends a row at it. Of several columns that
        makes rows that are too short, but at the beginning of a line an empty one, which counts for nothing.
        """
        data = block.data
        if self._newline != b"\n" or data.count(b"\r") == data.count(b"\r\n"):
            return
        pattern = _ALONE if len(self.names) == 1 else _ALONE_IN_FRONT
        alone = np.array([match.start() for match in pattern.finditer(data)], np.int64)
        if self.dialect.quote is not None:
            quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(self.dialect.quote))
            alone = alone[np.searchsorted(quotes, alone) % 2 == 0]
        if alone.size:
            line = block.first_line + _line_breaks(data[: alone[0]])
            fail(
                f"{self.path}: line {line} has a carriage return in it; if it is part of a value, write the value in"
                " quotes, and if not, end every row with a line feed"
            )

    def _require_quotes(self, block: CsvBlock) -> None:
        """Invariant 2.

        Raises:
            Failure: It does not hold.
        """
        quote = self.dialect.quote
        if quote is None or quote.encode() not in block.data:
            return
        octets = np.frombuffer(block.data, np.uint8)
        quotes = np.flatnonzero(octets == ord(quote))
        around = np.zeros(256, bool)
        around[[ord(self.dialect.delimiter), ord("\n"), ord("\r"), ord(quote)]] = True
        opening, closing = quotes[0::2], quotes[1::2]
        before = around[octets[np.maximum(opening - 1, 0)]] | (opening == 0)
        behind = around[octets[np.minimum(closing + 1, octets.size - 1)]] | (closing == octets.size - 1)
        bad = [*opening[~before][:1], *closing[~behind][:1]]
        if bad:
            self._refuse_quote(block, int(min(bad)), quotes)
        if quotes.size % 2:
            line = block.first_line + _line_breaks(block.data[: int(quotes[-1])])
            fail(f"{self.path}: the quote on line {line} is never closed; {self._quote_hint(block)}")

    def _refuse_quote(self, block: CsvBlock, position: int, quotes: NDArray[Any]) -> NoReturn:
        index = int(np.searchsorted(quotes, position))
        line = block.first_line + _line_breaks(block.data[:position])
        if index % 2 == 0:
            fail(
                f"{self.path}: there is a quote within an unquoted value on line {line}; {self._quote_hint(block)}"
            )
        # Quotes that are written twice neither open nor close: the value began where no quote stands in front.
        while index >= 2 and quotes[index - 1] == quotes[index - 2] + 1:
            index -= 2
        opened = block.first_line + _line_breaks(block.data[: int(quotes[index - 1])])
        begins = "" if opened == line else f", which begins on line {opened},"
        fail(
            f"{self.path}: the quoted value{begins} is followed by more text on line {line}; {self._quote_hint(block)}"
        )

    def _quote_hint(self, block: CsvBlock) -> str:
        quote = self.dialect.quote
        hint = f"write a quote in a value twice ({quote}{quote}), "
        if f"\\{quote}".encode() in block.data:
            return f'{hint}not behind a backslash; Spark does so with option("escape", \'"\')'
        return f"{hint}or say --quote none if quotes are ordinary text"

    def _decoded(self, on_read: Callable[[int], None] | None) -> Generator[bytes, None, None]:
        """The file's text as UTF-8, without a byte order mark, in pieces that end between characters."""
        name = self.dialect.encoding or "utf-8"
        decoder = codecs.getincrementaldecoder(name)("strict")
        breaks = 0
        begun = False
        with self._bytes(on_read) as file:
            while True:
                data = file.read(_BLOCK_BYTES)
                if not begun:
                    self._refuse_other(data)
                    likely = next((each for each, begins in _LIKELY if begins.match(data)), None)
                    self._likely = None if likely == self.dialect.encoding else likely
                try:
                    text = decoder.decode(data, final=not data)
                    piece = text.encode() if begun else text.removeprefix(_BYTE_ORDER_MARK).encode()
                    begun = begun or bool(text)
                except UnicodeEncodeError as error:
                    fail(f"{self.path} has text that is no Unicode: {error.reason}")
                except UnicodeError as error:
                    # Where there is no byte order mark no octet is at fault, though Python 3.13 names the first ones.
                    if not isinstance(error, UnicodeDecodeError) or error.reason.endswith("start with BOM"):
                        other = self._likely or "utf-8"
                        fail(f"{self.path} cannot be read as {name}: {error}; say another, such as {other}")
                    line = 1 + breaks + _line_breaks(error.object[: error.start])
                    self._refuse_text(line, error.object[error.start])
                if piece:
                    yield piece
                    breaks += _line_breaks(piece)
                if not data:
                    return

    def _refuse_other(self, begins: bytes) -> None:
        found = _NO_TEXT.match(begins)
        if found is None:
            return
        kind = found.lastgroup
        if kind is None:
            fail(f"{self.path} has a stream of Arrow in it, not CSV; write it as Parquet")
        fail(f"{self.path} has {kind} in it, not CSV; unpack it, and name it .{kind.lower()}")

    def _refuse_text(self, line: int, octet: int) -> NoReturn:
        if self.dialect.encoding is not None:
            fail(f"{self.path} is not {self.dialect.encoding}: octet 0x{octet:02X} on line {line}")
        fail(
            f"{self.path} is not UTF-8: octet 0x{octet:02X} on line {line}; name its encoding, for example"
            f" --encoding {self._likely or 'cp1252'}"
        )

    @contextmanager
    def _bytes(self, on_read: Callable[[int], None] | None) -> Iterator[IO[bytes]]:
        try:
            with ExitStack() as stack:
                raw = stack.enter_context(_Watched(self.path, on_read))
                magic = raw.read(4)
                raw.seek(0)
                buffered = io.BufferedReader(raw, _BLOCK_BYTES)
                if magic.startswith(GZIP_BEGINS):
                    yield cast("IO[bytes]", stack.enter_context(gzip.open(buffered)))
                elif magic.startswith(ZIP_BEGINS):
                    yield stack.enter_context(self._member(stack.enter_context(zipfile.ZipFile(buffered))))
                else:
                    yield buffered
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
            # RuntimeError: zipfile's, of members that are encrypted or packed in a way that it does not know.
            fail(f"{self.path} cannot be read: {' '.join(str(error).split()) or type(error).__name__}")

    def _member(self, archive: zipfile.ZipFile) -> IO[bytes]:
        members = _members(archive)
        if len(members) != 1:
            held = ", ".join(archive.namelist()[:5]) or "nothing"
            fail(f"{self.path} must have exactly one .csv in it, but it has {len(members)}; it holds {held}")
        return archive.open(members[0])


class _Watched(io.FileIO):
    """A file that tells how far it was read."""

    def __init__(self, path: Path, on_read: Callable[[int], None] | None) -> None:
        super().__init__(path)
        self._on_read = on_read

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        if self._on_read is not None:
            self._on_read(self.tell())
        return count


def delimiter_by_name(path: Path) -> str:
    """What separates the values of a CSV of which that is not said: tabs in a .tsv, also one in a zip; else a comma."""
    names = [path.name]
    if path.is_file():  # To open a pipe would wait for a writer.
        # What is wrong with the file is said where it is read.
        with suppress(OSError, zipfile.BadZipFile, NotImplementedError), zipfile.ZipFile(path) as archive:
            names += _members(archive)
    return "\t" if any(".tsv" in map(str.lower, PurePath(name).suffixes) for name in names) else ","


def _members(archive: zipfile.ZipFile) -> list[str]:
    """The CSVs in a zip."""
    return [
        name
        for name in archive.namelist()
        if not name.endswith("/")
        and not name.startswith("__MACOSX/")
        and name.lower().endswith((".csv", ".tsv"))
    ]


def require_names_apart(path: Path, names: Sequence[str]) -> None:
    """Check that each column of a file has a name of its own.

    Raises:
        Failure: Two have the same one.
    """
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        fail(f"{path} has two columns {repeated[0]!r}; rename one of them")


def shortened(value: object) -> str:
    """A value as a message shows it."""
    text = str(value)
    return repr(text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 3] + "...")


def _line_breaks(data: bytes) -> int:
    return data.count(b"\n") or data.count(b"\r")
