"""What `make lint` does not show to flake8-async, none of its rules on cancellation would object to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.cancellation import can_be_objected_to

_TRY: Final = "async def f():\n    try:\n        pass\n    "
OBJECTED_TO: Final = (
    _TRY + "finally:\n        await g()\n",
    _TRY + "finally:\n        async with g():\n            pass\n",
    _TRY + "except trio.Cancelled:\n        async for _ in g():\n            pass\n        raise\n",
    _TRY + "except:\n        pass\n",
    _TRY + "except (KeyError, BaseException):\n        pass\n",
    _TRY + "except* BaseException:\n        pass\n",
    _TRY + "except BaseException:\n        return\n",
    _TRY + "except Gone:\n        pass\n",
    "class A:\n    async def __aexit__(self, *_):\n        await g()\n",
    "async def f():\n    async with trio.open_nursery():\n        yield 1\n",
    "def f():\n    with trio.move_on_after(1):\n        yield 1\n",
    "def f():\n    with Scope():\n        yield 1\n",
    "@contextmanager\ndef f():\n    def g():\n        with trio.fail_after(1):\n            yield 1\n    yield g\n",
)
IMPORTS: Final = "import trio\nfrom trio import Cancelled as Gone, CancelScope as Scope\n"
HARMLESS: Final = (
    "import trio\n",
    _TRY + "finally:\n        g()\n",
    _TRY + "except ValueError:\n        await g()\n",
    "@fixture(scope='module')\ndef f():\n    with trio.fail_after(1):\n        yield 1\n",
    "def f():\n    with open('x') as file:\n        yield file\n",
)


def test_what_flake8_async_objects_to_is_shown_to_it(tmp_path: Path) -> None:
    """Of each sort of code that it objects to, and under other names."""
    for number, source in enumerate(OBJECTED_TO):
        (tmp_path / f"{number}.py").write_text(IMPORTS + source)
    program = Path(sys.executable).with_name("flake8-async")
    options = ("--disable-noqa", "--enable=ASYNC101,ASYNC102,ASYNC103,ASYNC104")
    command: list[str | Path] = [program, *options, *sorted(tmp_path.iterdir())]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for number, source in enumerate(OBJECTED_TO):
        assert f"{tmp_path / str(number)}.py:" in said, source
        plain = source.replace("Gone", "trio.Cancelled").replace("Scope", "trio.CancelScope")
        assert can_be_objected_to(plain), plain
    assert can_be_objected_to(IMPORTS)


def test_most_files_are_not_shown() -> None:
    """What a rule does not look at, or allows, costs no time."""
    assert [source for source in HARMLESS if can_be_objected_to(source)] == []
