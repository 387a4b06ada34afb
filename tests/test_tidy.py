"""The rules of style that no linter has, held by tests instead of by review."""

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("weir", "transport", "scanner", "spark_source", "pyspark_weir", "bench", "tests", "tools")
SHIPPED = ("weir", "transport", "scanner", "spark_source", "pyspark_weir")

FUNCTION_LINES_MAX = 70

SANS_IO_MAY_IMPORT = {
    "h2", "hpack", "hyperframe", "google",
    "__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "heapq",
    "itertools", "math", "operator", "struct", "types", "typing", "typing_extensions", "zlib",
    "base64", "binascii", "urllib", "re",
}  # fmt: skip
"""All that transport.protocol may know outside itself: nothing here reads a clock, a socket or a die."""

IMPURE = {"asyncio", "random", "rocksdict", "secrets", "socket", "subprocess", "threading", "time", "trio"}
"""What no module imports that says that it is pure."""

BANNED_NAMES = {"start_server", "connect_async", "stats_dict", "master", "slave", "chunk", "bookmark"}
BANNED_VERBS = {"feed", "pump", "process"}
"""Words of other houses, the verbs where bytes are taken and made; docs/glossary.md has ours."""


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """The trees of all modules are no load for the tests that follow."""
    gc.disable()  # Parsing makes a million objects and no garbage.
    yield
    _tree.cache_clear()
    gc.enable()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _sources(*packages: str) -> list[Path]:
    return sorted(
        path
        for package in packages
        for path in (REPOSITORY / package).rglob("*.py")
        if not path.stem.endswith("_pb2")
    )


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names of the modules that a file imports; names taken from a module count with it."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno}: relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _where(path: Path, node: ast.expr | ast.stmt, what: str = "") -> str:
    return f"{_name(path)}:{node.lineno} {what}".rstrip()


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_modules_say_what_they_are() -> None:
    """Every module begins with a docstring; the empty `__init__.py` of a test package has nothing to say."""
    silent = [path for path in _sources(*PACKAGES) if not ast.get_docstring(_tree(path))]
    bare = {path for path in _sources("tests") if path.stem == "__init__" and path.stat().st_size == 0}
    assert [_name(path) for path in silent if path not in bare] == []


def test_functions_fit_on_a_screen() -> None:
    """No function is longer than 70 lines, its docstring included."""
    long = [
        _where(path, node, node.name)
        for path in _sources(*PACKAGES)
        for node in _functions(path)
        if (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_nothing_is_unfinished() -> None:
    """No file carries a note of work to be done."""
    marker = re.compile(r"#.*\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
    assert [
        _name(path) for path in _sources(*PACKAGES) if marker.search(path.read_text(encoding="utf-8"))
    ] == []


def test_queues_have_bounds() -> None:
    """No memory channel is opened without a limit."""
    unbounded = [
        _where(path, call)
        for path in _sources(*PACKAGES)
        for name, call in _calls(path)
        if name.partition("[")[0].endswith("open_memory_channel")
        and any("inf" in ast.unparse(argument) for argument in call.args)
    ]
    assert unbounded == []


def test_no_test_sleeps() -> None:
    """Tests wait for conditions; none waits for time to pass. (Helpers in `support` may poll another process.)"""
    sleeps = {"time.sleep", "trio.sleep", "trio.sleep_until", "sleep"}
    files = [path for path in _sources("tests") if not path.is_relative_to(REPOSITORY / "tests" / "support")]
    assert [_where(path, call) for path in files for name, call in _calls(path) if name in sleeps] == []


def test_every_test_says_what_it_shows() -> None:
    """Every test has a docstring, methods of test classes included."""
    silent = [
        _where(path, node, node.name)
        for path in _sources("tests")
        for node in _functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_test_is_switched_off() -> None:
    """No test is skipped for good."""
    off = {"pytest.mark.skip", "pytest.skip", "pytest.importorskip", "pytest.xfail", "pytest.mark.xfail"}
    assert [
        _where(path, node)
        for path in _sources("tests")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in off
    ] == []


def test_words_are_ours() -> None:
    """No function or class has a name that the glossary gives up."""
    banned = dict.fromkeys(_sources(*SHIPPED), BANNED_NAMES)
    banned |= dict.fromkeys(_sources("transport/protocol"), BANNED_NAMES | BANNED_VERBS)
    found = [
        _where(path, node, node.name)
        for path, names in banned.items()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name.lower() in names
    ]
    assert found == []


def test_shipped_code_does_not_print() -> None:
    """Only the command line writes to the terminal, and it does so through click and rich."""
    found = [
        _where(path, call) for path in _sources(*SHIPPED) for name, call in _calls(path) if name == "print"
    ]
    assert found == []


def test_protocol_knows_bytes_only() -> None:
    """The sans-IO core imports what is on the list and nothing else."""
    ours = ("transport.protocol", "transport.errors", "transport.config")
    foreign = [
        f"{_name(path)}:{line} {module}"
        for path in _sources("transport/protocol")
        for module, line in _imports(path)
        if module.partition(".")[0] not in SANS_IO_MAY_IMPORT and not module.startswith(ours)
    ]
    assert foreign == []


def test_environment_is_read_at_the_edge_only() -> None:
    """No setting comes in by an environment variable behind the caller's back; the command line takes its token so."""
    readers = [
        _name(path)
        for path in _sources(*SHIPPED)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.getenv"}
    ]
    assert set(readers) == {"scanner/cli/connection.py"}


def test_modules_that_say_that_they_are_pure_are_so() -> None:
    """They import nothing that waits, reads a clock, draws or has a state of its own."""
    said = re.compile(r"\bPure[.:;,]")
    pure = [path for path in _sources(*SHIPPED) if said.search(ast.get_docstring(_tree(path)) or "")]
    assert len(pure) > 20
    impure = [
        f"{_name(path)}:{line} {module}"
        for path in pure
        for module, line in _imports(path)
        if module.partition(".")[0] in IMPURE
    ]
    assert impure == []
