"""The faults: what can happen to the files of a data directory behind the server's back, one at a time."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NOBODY: Final = 65534

FILES: Final[dict[str, tuple[str, ...]]] = {
    "document": ("FORMAT", "catalog.json", "tables/*/table.json", "documents/*"),
    "wal": ("tables/*/*/*.log",),
    "sst": ("tables/*/*/*.sst",),
    "manifest": ("tables/*/*/MANIFEST-*",),
    "current": ("tables/*/*/CURRENT",),
    "options": ("tables/*/*/OPTIONS-*", "tables/*/*/rocksdict-config.json", "tables/*/*/IDENTITY"),
    "durable-end": ("tables/*/*/DURABLE-END",),
    "checkpoint-file": ("checkpoints/*/*/*/*",),
    "image": ("images/*/*.image",),
}
"""Patterns of each group of files."""
DIRECTORIES: Final[dict[str, str]] = {
    "table": "tables/??????",
    "bucket": "tables/??????/????",
    "checkpoint": "checkpoints/??????/????/??????-*",
    "checkpoints-of-bucket": "checkpoints/??????/????",
    "checkpoints-of-table": "checkpoints/??????",
    "images-of-table": "images/??????",
    "documents": "documents",
    "tables": "tables",
    "checkpoints": "checkpoints",
}
FILE_ACTS: Final = ("cut", "empty", "flip", "delete", "older", "duplicate", "swap")
DIRECTORY_ACTS: Final = ("rename", "swap", "older", "copy", "delete", "empty")
LIMITS: Final = ("permission", "descriptors", "file-size", "everything older")
_ALONE: Final = {"documents", "tables", "checkpoints"}
"""Of these there is one, so that it cannot be swapped."""
_FLIPS: Final = ("wal", "sst", "manifest", "document", "checkpoint-file", "image")
"""Groups whose files are large, or many: their bits are worth more cases."""

KINDS: Final = (
    *(f"{group} {act}" for group in FILES for act in FILE_ACTS),
    *(
        f"{group} {act}"
        for group in DIRECTORIES
        for act in DIRECTORY_ACTS
        if (group, act) not in {(g, "swap") for g in _ALONE}
    ),
    *(f"{group} {act}" for group in _FLIPS for act in ("cut", "flip") for _ in range(2)),
    *LIMITS,
)
"""Every kind of fault, the likely ones more than once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What was done to a data directory."""

    kind: str
    what: str
    """For people, with names inside the data directory."""
    older: int | None = None
    """Which older copy its files are from; None: of none."""
    units: tuple[str, ...] = ()
    """Directories that became older copies of themselves as a whole: they hold older states then, and cannot know."""
    passing: bool = False
    """It is over before the second start, and everything must be there then."""
    descriptors: int | None = None
    """`RLIMIT_NOFILE` of the first start, above what is open already."""
    file_bytes: int | None = None
    """`RLIMIT_FSIZE` of the first start."""
    unprivileged: bool = False
    """The first start is an unprivileged user's."""


def inflict(kind: str, data: Path, older: list[Path], rng: random.Random) -> Fault:
    """Do it.

    Args:
        kind: One of `KINDS`.
        data: The data directory; nobody has it open.
        older: Older copies of it.
        rng: Chooses file, place and size.
    """
    if kind in LIMITS:
        return _LIMITED[kind](data, older, rng)
    group, act = kind.rsplit(" ", 1)
    if group in FILES:
        victims = sorted(path for pattern in FILES[group] for path in data.glob(pattern) if path.is_file())
    else:
        victims = sorted(path for path in data.glob(DIRECTORIES[group]) if path.is_dir())
    if act == "older":
        return _older(kind, data, victims, older, rng)
    victim = rng.choice(victims)
    what = (_FILE_ACT if group in FILES else _DIRECTORY_ACT)[act](victim, victims, rng)
    return Fault(kind=kind, what=f"{victim.relative_to(data)} {what}")


def _older(kind: str, data: Path, victims: list[Path], older: list[Path], rng: random.Random) -> Fault:
    """Replace something by an older copy; of those that differ, if there are any."""
    choices = [
        (index, victim)
        for index, copy in enumerate(older)
        for victim in victims
        if (copy / victim.relative_to(data)).exists() and not _same(copy / victim.relative_to(data), victim)
    ]
    if not choices:
        victim = rng.choice(victims)
        _remove(victim)
        return Fault(kind=kind, what=f"{victim.relative_to(data)} deleted: no older copy has it")
    index, victim = rng.choice(choices)
    name = str(victim.relative_to(data))
    _remove(victim)
    source = older[index] / name
    if source.is_dir():
        shutil.copytree(source, victim)
        return Fault(kind=kind, what=f"{name} replaced by that of copy {index}", older=index, units=(name,))
    shutil.copy2(source, victim)
    return Fault(kind=kind, what=f"{name} replaced by that of copy {index}", older=index)


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _cut(path: Path, _: list[Path], rng: random.Random) -> str:
    size = path.stat().st_size
    by = min(size, rng.choice((1, 2, rng.randint(1, 64), rng.randint(1, max(1, size)))))
    os.truncate(path, size - by)
    return f"cut by {by} of {size} bytes"


def _empty_file(path: Path, _: list[Path], rng: random.Random) -> str:
    os.truncate(path, 0)
    return "emptied"


def _flip(path: Path, _: list[Path], rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    if not content:
        path.write_bytes(b"\0")
        return "got a byte of zeros: it was empty"
    at, bit = rng.randrange(len(content)), rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} of {len(content)} flipped"


def _delete(path: Path, _: list[Path], rng: random.Random) -> str:
    _remove(path)
    return "deleted"


def _duplicate(path: Path, _: list[Path], rng: random.Random) -> str:
    name, suffix = path.name, path.suffix
    if suffix in {".log", ".sst"}:
        copy = path.with_name(f"{rng.choice((1, int(path.stem) + 1, 999_999)):06d}{suffix}")
    elif name.startswith(("MANIFEST-", "OPTIONS-")):
        copy = path.with_name(f"{name.split('-')[0]}-{rng.choice((1, 999_999)):06d}")
    else:
        copy = path.with_name(name + rng.choice(("~", ".bak", "2", ".tmp")))
    if copy.exists():
        copy = path.with_name(name + ".bak")
    shutil.copy2(path, copy)
    return f"duplicated as {copy.name}"


def _swap(path: Path, victims: list[Path], rng: random.Random) -> str:
    others = [other for other in victims if other != path]
    if not others:
        return _delete(path, victims, rng)
    other = rng.choice(others)
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)
    return f"swapped with {other.parent.parent.name}/{other.parent.name}/{other.name}"


def _other_name(path: Path, rng: random.Random) -> Path:
    plain = [path.with_name(f"{path.name}{suffix}") for suffix in (".bak", "2", ".dropped", ".creating")]
    if path.name.isdigit():
        plain += [path.with_name(str(number).zfill(len(path.name))) for number in (3, 9, 99)]
    elif "-" in path.name:
        number, rest = path.name.split("-", 1)
        plain += [path.with_name(f"{int(number) + 7:06d}-{rest}")] * 3
    return rng.choice([each for each in plain if not each.exists()])


def _rename(path: Path, _: list[Path], rng: random.Random) -> str:
    other = _other_name(path, rng)
    path.rename(other)
    return f"renamed to {other.name}"


def _copy_beside(path: Path, _: list[Path], rng: random.Random) -> str:
    other = _other_name(path, rng)
    shutil.copytree(path, other)
    return f"copied as {other.name}"


def _empty_directory(path: Path, _: list[Path], rng: random.Random) -> str:
    shutil.rmtree(path)
    path.mkdir(0o700)
    return "emptied"


def _permission(data: Path, _: list[Path], rng: random.Random) -> Fault:
    everything = sorted([data, *data.rglob("*")])
    if os.geteuid() == 0:
        for path in everything:
            os.chown(path, NOBODY, NOBODY)
    victim = rng.choice([path for path in everything if path.is_dir()] if rng.random() < 0.4 else everything)
    mode = rng.choice((0o000, 0o400, 0o500 if victim.is_dir() else 0o000))
    victim.chmod(mode)
    name = victim.relative_to(data)
    return Fault(
        kind="permission", what=f"{name} has mode {mode:03o}", passing=True, unprivileged=os.geteuid() == 0
    )


def _descriptors(_: Path, __: list[Path], rng: random.Random) -> Fault:
    left = rng.randint(3, 120)
    return Fault(kind="descriptors", what=f"{left} descriptors left", passing=True, descriptors=left)


def _file_size(_: Path, __: list[Path], rng: random.Random) -> Fault:
    size = rng.choice((0, 1, rng.randint(1, 4096), rng.randint(1, 100_000)))
    return Fault(kind="file-size", what=f"files may have {size} bytes", passing=True, file_bytes=size)


def _everything_older(data: Path, older: list[Path], rng: random.Random) -> Fault:
    index = rng.randrange(len(older))
    shutil.rmtree(data)
    shutil.copytree(older[index], data)
    return Fault(kind="everything older", what=f"all is that of copy {index}", older=index, units=("",))


_FILE_ACT: Final[dict[str, Callable[[Path, list[Path], random.Random], str]]] = {
    "cut": _cut,
    "empty": _empty_file,
    "flip": _flip,
    "delete": _delete,
    "duplicate": _duplicate,
    "swap": _swap,
}
_DIRECTORY_ACT: Final[dict[str, Callable[[Path, list[Path], random.Random], str]]] = {
    "rename": _rename,
    "swap": _swap,
    "copy": _copy_beside,
    "delete": _delete,
    "empty": _empty_directory,
}
_LIMITED: Final[dict[str, Callable[[Path, list[Path], random.Random], Fault]]] = {
    "permission": _permission,
    "descriptors": _descriptors,
    "file-size": _file_size,
    "everything older": _everything_older,
}


def restore_modes(data: Path) -> None:
    """Give files and directories the modes back that the server gives them."""
    pending = [data]
    while pending:
        path = pending.pop()
        if path.is_dir():
            path.chmod(0o700)
            pending += path.iterdir()
        elif path.is_file():
            path.chmod(0o600)
