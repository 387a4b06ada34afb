"""Which modules carry which guarantee, which tests look at them, and which mutants change nothing that can be seen."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness.errors import BenchFailed

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """Modules that hold one promise, and the tests of it."""

    name: str
    modules: tuple[str, ...]
    """Patterns of paths."""
    tests: tuple[str, ...]
    """Beside those that mirror a module: patterns of paths."""


GUARANTEES: Final = (
    Guarantee(
        name="frames, windows and credit",
        modules=("transport/protocol/*.py", "transport/credit.py"),
        tests=("tests/transport/protocol/test_*.py", "tests/transport/test_*.py"),
    ),
    Guarantee(
        name="keys, rows and filters",
        modules=("scanner/data/*.py",),
        tests=("tests/scanner/data/test_*.py", "tests/scanner/sources/test_*.py"),
    ),
    Guarantee(
        name="one state, continued",
        modules=(
            "scanner/server/scan/tokens.py",
            "scanner/server/scan/kv_scan.py",
            "scanner/server/scan/opener.py",
            "scanner/server/scan/read_sources.py",
            "scanner/server/scan/resumes.py",
            "scanner/server/tables/snapshots.py",
            "scanner/client/scan/push_receiver.py",
        ),
        tests=(
            "tests/scanner/server/scan/test_*.py",
            "tests/scanner/test_parking.py",
            "tests/scanner/test_resume*.py",
            "tests/scanner/test_scan_resume.py",
        ),
    ),
    Guarantee(
        name="states that are kept",
        modules=("scanner/server/retention/*.py", "scanner/server/tables/log_pins.py"),
        tests=(
            "tests/scanner/server/retention/test_*.py",
            "tests/scanner/server/services/test_leases.py",
            "tests/scanner/client/test_leases.py",
            "tests/scanner/test_lease*.py",
            "tests/scanner/server/scan/test_checkpoint_scans.py",
        ),
    ),
    Guarantee(
        name="sources",
        modules=("scanner/sources/*.py",),
        tests=(
            "tests/scanner/sources/test_*.py",
            "tests/scanner/server/scan/test_opener.py",
            "tests/scanner/test_scan_as_of.py",
        ),
    ),
    Guarantee(
        name="storage",
        modules=(
            "scanner/storage/lineage.py",
            *(
                f"scanner/storage/rocksdb/{name}.py"
                for name in (
                    "bucket", "bucket_state", "changelog", "checkpoints", "commits", "durable_end", "lifetime", "log",
                    "opening", "readers", "scan", "snapshot",
                )
            ),
        ),
        tests=("tests/scanner/storage/test_*.py", "tests/scanner/storage/rocksdb/test_*.py"),
    ),
)  # fmt: skip

_FALSE: Final = "-return False\n+return None"
EQUIVALENT: Final[dict[tuple[str, str], str]] = {
    ("transport/credit.py", _FALSE): "its caller asks `if`, where None is as false",
    ("transport/protocol/liveness.py", _FALSE): "its caller asks `if`, where None is as false",
    (
        "transport/protocol/stalls.py",
        "-next((wait for wait in _PRECEDENCE if waits >> wait & 1), _RUNNING) for waits in range(1 << len(REASONS))\n"
        "+next((wait for wait in _PRECEDENCE if waits >> wait & 1), _RUNNING) for waits in range(2 << len(REASONS))",
    ): "a table by sets of waits that is longer than there are sets",
    (
        "transport/protocol/reader.py",
        "-if target is not None and len(target) >= _DIRECT_BYTES_MIN:\n"
        "+if target is not None and (len(target) > _DIRECT_BYTES_MIN):",
    ): "the same octets of a message are copied once more",
    (
        "transport/protocol/reader.py",
        "-self._direct_bytes = 0  # octets of message memory offered by `buffers`\n"
        "+self._direct_bytes = 1  # octets of message memory offered by `buffers`",
    ): "`buffers` sets it before any octet comes",
    (
        "transport/protocol/messages.py",
        "-self._at = 0\n+self._at = 1",
    ): "where a message goes on is asked only once it has begun, and there it is set",
    (
        "transport/protocol/messages.py",
        "-self._size = 0\n+self._size = 1",
    ): "the size of a message is asked only once it has begun, and there it is set",
    (
        "scanner/sources/overlay.py",
        "-_ADD_BYTES_MAX: Final = 1024 * 1024\n+_ADD_BYTES_MAX: Final = 1024 * 1025",
    ): "how much is added at once: a thousandth more, of the same entries",
    (
        "scanner/storage/rocksdb/log_reader.py",
        "-np.empty(0, np.uint8),\n+np.empty(1, np.uint8),",
    ): "a buffer of which no change is a part",
    (
        "scanner/server/retention/lease_manager.py",
        "-self._changes += 1\n+self._changes += 2",
    ): "it is only asked whether the number is another one than was written",
    (
        "transport/protocol/inbound.py",
        '-increment = int.from_bytes(frame[9:13], "big") & WINDOW_BYTES_MAX\n'
        '+increment = int.from_bytes(frame[:13], "big") & WINDOW_BYTES_MAX',
    ): "the mask leaves the last 31 bits of however many octets",
    (
        "transport/protocol/inbound.py",
        '-increment = int.from_bytes(frame[9:13], "big") & WINDOW_BYTES_MAX\n'
        '+increment = int.from_bytes(frame[9:14], "big") & WINDOW_BYTES_MAX',
    ): "a WINDOW_UPDATE of another length than 13 octets is refused from its header",
    (
        "transport/protocol/inbound.py",
        '-elif int.from_bytes(frame[9:13], "big") & frames.STREAM_ID_MAX == stream_id:\n'
        '+elif int.from_bytes(frame[:13], "big") & frames.STREAM_ID_MAX == stream_id:',
    ): "the mask leaves the last 31 bits of however many octets",
    (
        "transport/protocol/inbound.py",
        '-last = int.from_bytes(frame[9:13], "big") & frames.STREAM_ID_MAX\n'
        '+last = int.from_bytes(frame[:13], "big") & frames.STREAM_ID_MAX',
    ): "the mask leaves the last 31 bits of however many octets",
    (
        "transport/protocol/reader.py",
        "-if length <= _BUFFER_BYTES_MIN or size > _BUFFER_BYTES_MIN or self._filled:\n"
        "+if (length < _BUFFER_BYTES_MIN) or size > _BUFFER_BYTES_MIN or self._filled:",
    ): "an empty buffer of the least size is replaced by another one, once in a hundred reads",
    (
        "transport/protocol/reader.py",
        "-continue\n+pass",
    ): "nothing is left of the frame then, or of the buffer, and what follows in the loop sees to either",
    (
        "transport/protocol/stalls.py",
        "-tuple(ours + theirs for ours, theirs in zip(self.nanoseconds, other.nanoseconds, strict=True))\n"
        "+tuple(ours + theirs for ours, theirs in zip(self.nanoseconds, other.nanoseconds, strict=False))",
    ): "both have a time for each reason",
    (
        "transport/protocol/calls.py",
        "-super().__init__(headers, body)\n+pass",
    ): "only tells the exception its arguments, for which nobody asks",
    (
        "transport/protocol/first_message.py",
        "-self.deadline = max(due, now + self._limit_s / 4)\n+self.deadline = max(due, now + self._limit_s / 5)",
    ): "how soon the same streams are looked at again; none ends before it is due",
    (
        "transport/protocol/reader.py",
        "-if turn.left <= 0:\n+if turn.left <= 1:",
    ): "a turn of 128 frames ends one earlier, and the next one takes it",
    (
        "transport/protocol/stalls.py",
        "-self._shut_ns += max(0, int(now * _NS) - since)\n+self._shut_ns += max(1, int(now * _NS) - since)",
    ): "a nanosecond of a time that is shown in microseconds",
    (
        "scanner/server/retention/log_retention.py",
        "-if storage.log_bytes > bytes_max:\n+if (storage.log_bytes >= bytes_max):",
    ): "what is no more than the size fits from its start on, and the search says so, too",
    (
        "scanner/storage/rocksdb/log.py",
        '-unflushed = database.log.property_int_value("rocksdb.cur-size-all-mem-tables") or 0\n'
        '+unflushed = database.log.property_int_value("rocksdb.cur-size-all-mem-tables") or 1',
    ): "one octet of an estimate in kilobytes",
    (
        "scanner/storage/rocksdb/changelog.py",
        "-_COMPRESSED_BYTES_MIN: Final = 128\n+_COMPRESSED_BYTES_MIN: Final = 129",
    ): "whether 128 octets are worth compressing; they read the same",
    (
        "scanner/storage/rocksdb/changelog.py",
        "-CHUNK_BYTES_MAX: Final = 256 * 1024\n+CHUNK_BYTES_MAX: Final = 257 * 1024",
    ): "where an entry is cut into chunks; it reads the same",
    (
        "scanner/client/scan/push_receiver.py",
        "-self._changes_end = 0\n+self._changes_end = 1",
    ): "set where the changes of a scan begin, and not looked at before",
    (
        "scanner/sources/sorted_runs.py",
        "-_TAKEN_BYTES = 1024 * 1024\n+_TAKEN_BYTES = 1024 * 1025",
    ): "how much is taken at once: a thousandth more, of the same entries",
    (
        "scanner/sources/lookup.py",
        "-_WALK_BYTES: Final = 1024 * 1024\n+_WALK_BYTES: Final = 1024 * 1025",
    ): "how much is read at once: a thousandth more, of the same changes",
    (
        "scanner/data/keys.py",
        "-_CELL_BYTES_MAX = 16\n+_CELL_BYTES_MAX = 17",
    ): "of a bound that is generous: an octet more of it for each key column",
    (
        "scanner/data/folding.py",
        "-self._parts, self._loose, self._pending_bytes = [], [], 0\n"
        "+self._parts, self._loose, self._pending_bytes = [], [], 1",
    ): "it is folded an octet sooner than when megabytes wait; the table is the same",
    (
        "scanner/data/comparisons.py",
        "-return _Place(high if value > 0 else None, exact=False)\n"
        "+return _Place(high if (value >= 0) else None, exact=False)",
    ): "a float that comes here is infinite",
    (
        "scanner/data/comparisons.py",
        "-nearest = math.inf if value > 0 else -math.inf\n+nearest = math.inf if (value >= 0) else -math.inf",
    ): "zero is no number that a float cannot hold",
}
"""By module and diff, of lines without their indentation: why nobody can see the change."""


def modules(only: Sequence[str] = ()) -> dict[str, Guarantee]:
    """The modules that are mutated, by their paths.

    Args:
        only: Texts, one of which a module's path must have; empty: all.

    Raises:
        BenchFailed: There is none.
    """
    found = {
        path.relative_to(ROOT).as_posix(): guarantee
        for guarantee in GUARANTEES
        for pattern in guarantee.modules
        for path in sorted(ROOT.glob(pattern))
        if path.stem != "__init__"
    }
    chosen = {path: each for path, each in found.items() if not only or any(text in path for text in only)}
    if not chosen:
        raise BenchFailed(f"no module has {' or '.join(only)} in its path; there are {', '.join(found)}")
    return chosen


def covering(path: str) -> tuple[list[str], list[str]]:
    """The tests of a module: those that mirror it, which go first, and their neighbours."""
    module = Path(path)
    folder = Path("tests") / module.parent
    mirrored = sorted(
        each.relative_to(ROOT).as_posix()
        for pattern in (f"test_{module.stem}.py", f"test_{module.stem}_*.py")
        for each in (ROOT / folder).glob(pattern)
    )
    # `import a.b.c`, `from a.b.c import`, `from a.b import c`.
    package = ".".join(module.parts[:-1])
    dotted = re.escape(f"{package}.{module.stem}")
    imports = re.compile(
        rf"^(?:from|import) {dotted}\b|^from {re.escape(package)} import .*\b{module.stem}\b", re.MULTILINE
    )
    files = _test_files(ROOT).items()
    importing = [name for name, text in files if package in text and imports.search(text)]
    group = [
        each.relative_to(ROOT).as_posix()
        for guarantee in GUARANTEES
        if any(module.match(pattern) for pattern in guarantee.modules)
        for pattern in guarantee.tests
        for each in sorted(ROOT.glob(pattern))
    ]
    neighbours = dict.fromkeys([*importing, *group])
    return mirrored, [each for each in neighbours if each not in mirrored]


@functools.cache
def _test_files(root: Path) -> dict[str, str]:
    """What is in them, by path."""
    return {
        each.relative_to(root).as_posix(): each.read_text()
        for each in sorted((root / "tests").rglob("test_*.py"))
    }
