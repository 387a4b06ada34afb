"""The run without a mutant, and a file that keeps what it found for the next run of nearly the same tree.

The tests of a file are run again where that file has changed; all are where anything else has that they may execute.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.mutation.executions import Executions
from bench.mutation.guarantees import ROOT, modules
from bench.mutation.laboratory import COPIED

if TYPE_CHECKING:
    from bench.mutation.laboratory import Laboratory

_NOT_TESTED: Final = ("bench/mutation", "bench/questions", "docs", "tools")
"""By the tests that mutants are tried with."""
_FILES: Final = 20
"""How many are run before what was found is kept: a run that is interrupted goes on there."""


def survey(
    laboratory: Laboratory, files: Collection[str], jobs: int, kept: Path | None
) -> tuple[Executions, list[str]]:
    """Run files of tests without a mutant.

    Args:
        laboratory: Where.
        files: The files of tests.
        jobs: How many processes run them.
        kept: The file with what an earlier run found, then what this one did; need not exist. None: no file.

    Returns:
        What the tests did, and those that failed.

    Raises:
        BenchFailed: The tests cannot be run.
    """
    rest, digests = _rest(), {each: _digest(ROOT / each) for each in files}
    executions, failed = Executions({}, {}), list[str]()
    changed = sorted(files)
    if kept is not None and kept.exists() and (document := json.loads(kept.read_text()))["rest"] == rest:
        changed = [each for each in changed if document["files"].get(each) != digests[each]]
        digests = {**document["files"], **digests}
        executions = Executions.from_json(document["executions"]).without(changed)
        failed = [each for each in document["failed"] if each.partition("::")[0] not in changed]
    known = {file: digest for file, digest in digests.items() if file not in changed}
    for first in range(0, len(changed), _FILES):
        some = changed[first : first + _FILES]
        found, failed_now = laboratory.survey(some, modules(), jobs)
        executions, failed = executions.joined(found), failed + failed_now
        known.update((file, digests[file]) for file in some)
        if kept is not None:
            document = {"rest": rest, "files": known, "failed": failed, "executions": executions.to_json()}
            kept.write_text(json.dumps(document))
    return executions, failed


def _rest() -> str:
    """A digest of all code but the files of tests."""
    digest = hashlib.sha256()
    for folder in COPIED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not path.name.startswith("test_") and not name.startswith(_NOT_TESTED):
                digest.update(f"{name} {_digest(path)}\n".encode())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
