"""The documentation says what the tree says: errors, links, names of modules."""

import inspect
import re
import typing
from pathlib import Path

import pytest

import scanner
import transport
import weir
import weir.sync
from scanner.client import admin
from scanner.errors import ERRORS
from tools.public_names import undocumented
from tools.write_reference import REFERENCE, pages

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("[bt]*/README.md")]
)


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_the_reference_is_that_of_the_code() -> None:
    """docs/reference is what `make reference` writes: the help of every command, and all names that are public."""
    written = {path.name: path.read_text(encoding="utf-8") for path in REFERENCE.iterdir()}
    assert written == pages()


def test_every_public_name_is_there() -> None:
    """What `weir` and `scanner` list is found, although each name is imported when it is first used."""
    assert weir.__all__ == scanner.__all__
    assert [name for name in weir.__all__ if not hasattr(weir, name)] == []


def test_type_hints_of_public_names_can_be_evaluated() -> None:
    """As pydantic, FastAPI and beartype do it; pandas and polars, which not everyone has, are not imported for that."""
    public = {
        f"{face.__name__}.{name}": getattr(face, name)
        for face in (weir, weir.sync, transport)
        for name in face.__all__
    }
    for name, each in list(public.items()):
        public |= {
            f"{name}.{member}": value
            for member, value in getattr(each, "__dict__", {}).items()
            if member[0] != "_"
        }
    failed = set()
    for name, value in public.items():
        each = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if inspect.isclass(each) or inspect.isfunction(each):
            try:
                typing.get_type_hints(each)
            except (NameError, TypeError) as error:
                failed.add(f"{name}: {error}")
    assert failed == {
        "transport.Client.movements: name 'Movements' is not defined",
        "weir.sync.Scan.to_pandas: name 'pd' is not defined",
        "weir.sync.Scan.to_polars: name 'pl' is not defined",
    }


def test_what_callers_get_is_public() -> None:
    """Every error of the page, and what the calls of administration return, has a name in `weir`."""
    errors = {row.exception.__name__ for row in ERRORS}
    returned = {
        name
        for name, each in vars(admin).items()
        if isinstance(each, type) and each.__module__ == admin.__name__
    }
    assert (errors | returned) - set(weir.__all__) == set()


def test_every_public_name_is_documented() -> None:
    """Each name of `weir`, `weir.sync` and `weir.spark`, and each member of a class, has a docstring."""
    assert undocumented() == []


def test_errors_page_is_the_error_table() -> None:
    """docs/errors.md has one row per error, in order, with its status, exception, retriability and meaning."""
    rows = [
        f"| `{row.reason}` | `{row.status}` | `{row.exception.__name__}` | {'yes' if row.retriable else 'no'} "
        f"| {(row.exception.__doc__ or '').splitlines()[0]} |"
        for row in ERRORS
    ]
    page = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| `")] == rows


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_pages_that_the_code_names_are_there() -> None:
    """A page that a docstring, a comment or a .proto file sends the reader to exists."""
    sources = [
        path
        for package in ("transport", "scanner", "spark_source", "bench", "tests")
        for suffix in ("py", "proto")
        for path in (REPOSITORY / package).rglob(f"*.{suffix}")
    ]
    named = {
        link for path in sources for link in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert {link for link in named if not (REPOSITORY / link).exists()} == set()


def test_files_that_pages_name_exist() -> None:
    """A page that says where something is says where it is now."""
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    named = {
        name
        for page in pages
        for name in re.findall(
            r"`((?:weir|transport|scanner|spark_source|bench|tests|tools)/[\w./-]+\.\w+)`", page.read_text()
        )
    }
    assert named
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()
