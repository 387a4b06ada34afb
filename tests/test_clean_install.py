"""What is installed: a client has what it needs and no more, and the quickstart works on every Python there is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from packaging.requirements import Requirement

import scanner.sync
from tests.support.interpreters import VERSIONS, interpreters
from tests.support.nightly import everyday
from tests.support.server import running_server
from tests.support.snippets import session, snippets

pytestmark = [pytest.mark.slow, pytest.mark.socket]

REPOSITORY = Path(__file__).resolve().parent.parent
EXTRAS = (
    "click",
    "cryptography",
    "duckdb",
    "pandas",
    "polars",
    "prometheus_client",
    "pyspark",
    "rich",
    "rocksdict",
)
SCAN = f"""
import sys
from importlib.util import find_spec

import pyarrow as pa

import weir
import weir.sync

with weir.sync.connect(sys.argv[1]) as client:
    client.table("items").write(pa.table({{"id": [4]}}))
    rows = client.table("items").new_scan().where(weir.col("id") > 1).where("id < 5").to_arrow()
    print(sorted(rows["id"].to_pylist()))
    try:
        client.table("items").new_scan().to_pandas()
    except ImportError as error:
        print(error)
    try:
        client.table("items").new_scan().to_polars()
    except ImportError as error:
        print(error)
    try:
        client.table("items").new_scan().to_arrow(progress=True)
    except ImportError as error:
        print(error)
    print([name for name in {EXTRAS} if find_spec(name)])
try:
    import weir.spark
except ImportError as error:
    print(error)
try:
    import scanner.storage.rocksdb.store
except ImportError as error:
    print(error)
"""


def uv(*words: str | Path, environment: Path | None = None) -> None:
    """Run the uv that `make install` put into .venv."""
    variables = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    if environment is not None:
        variables["UV_PROJECT_ENVIRONMENT"] = str(environment)
    subprocess.run(
        [REPOSITORY / ".venv/bin/uv", *words, "--quiet"],
        cwd=REPOSITORY,
        env={**variables, "UV_PYTHON_DOWNLOADS": "never"},
        check=True,
    )


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it depends on, as uv.lock pins it; no extra."""
    environment = tmp_path_factory.mktemp("clean") / "venv"
    uv("sync", "--frozen", "--no-default-groups", "--no-editable", environment=environment)
    return environment


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--out-dir", directory)
    return directory


def test_a_client_install_scans(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading and writing need no extra; what does need one says which, in one line."""
    with running_server(tmp_path / "data") as running:
        with scanner.sync.connect(running.endpoint) as client:
            schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
            client.create_table("items", schema, primary_key=["id"]).write(
                pa.table({"id": [1, 2, 3]}, schema)
            )
        done = subprocess.run(
            [clean / "bin/python", "-c", SCAN, running.endpoint],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[2, 3, 4]",
        "to_pandas() needs pandas, which is not installed: pip install 'weirstream[pandas]'",
        "to_polars() needs polars, which is not installed: pip install 'weirstream[polars]'",
        "progress=True needs rich, which is not installed: pip install 'weirstream[cli]'",
        "[]",
        "the data source of Spark needs pyspark, which is not installed: pip install 'weirstream[spark]'",
        "a store on the disk needs rocksdict, which is not installed: pip install 'weirstream[server]'",
    ]
    size = sum(path.stat().st_size for path in clean.rglob("*") if path.is_file() and not path.is_symlink())
    with capsys.disabled():
        print(f"\na client install takes {size / 1e6:.0f} MB")


def test_the_command_names_its_extra(clean: Path, tmp_path: Path) -> None:
    """`weir` without click is one line on standard error."""
    done = subprocess.run(
        [clean / "bin/weir", "tables"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "weir: the command weir needs click, which is not installed: pip install 'weirstream[cli]'\n"
    )


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("click", "8.1.8"),  # each error of a command is an AttributeError
        ("click", "8.4.0"),  # `weir describe` exits with 1 where there is no pager
        ("pyarrow", "22.0.0"),  # of the year 9999 in a CSV, with nanoseconds elsewhere, it makes another one
        ("pyarrow", "24.0.0"),  # Parquet gets seconds as other milliseconds where these do not reach
        ("rich", "14.2.0"),  # a progress that is not shown leaves empty lines
        ("trio", "0.33.0"),  # a `weir` that has no descriptor left says that no server answers
    ],
)
def test_releases_that_go_wrong_are_not_allowed(name: str, version: str) -> None:
    """Nothing is installed beside releases that are known to answer otherwise than the tests of today want it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [Requirement(text) for each in (project["dependencies"], *extras) for text in each]
    specifiers = [each.specifier for each in wanted if each.name == name]
    assert specifiers
    assert not any(each.contains(version) for each in specifiers)


def test_another_package_of_the_same_name_is_named(tmp_path: Path) -> None:
    """A foreign `transport` in front of ours ends the import in one line that says where it is."""
    (tmp_path / "transport.py").touch()
    python = REPOSITORY / ".venv/bin/python"
    path = f"{tmp_path}{os.pathsep}{REPOSITORY}"
    done = subprocess.run(
        [python, "-c", "import weir"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"Python finds {tmp_path}/transport.py under that name" in done.stderr.splitlines()[-1]


def test_the_sdist_has_what_a_build_and_the_tests_need(distributions: Path) -> None:
    """Sources, tests, pages, locks and tools are in it; what git, caches and builds leave is not."""
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in names}
    packages = {
        "bench",
        "docs",
        "pyspark_weir",
        "scanner",
        "spark_source",
        "tests",
        "tools",
        "transport",
        "weir",
    }
    files = {
        "LICENSE",
        "Makefile",
        "NOTICE",
        "README.md",
        "mkdocs.yml",
        "pyproject.toml",
        "uv.lock",
        "Dockerfile",
    }
    assert packages | files <= tops
    assert {"scanner/proto/weir/v1/scanner.proto", "weir/py.typed", "docs/operating/alerts.yml"} <= names
    assert not {".git", ".venv", "build", "dist"} & tops
    assert [name for name in names if "__pycache__" in name] == []


def test_the_wheel_has_what_spark_looks_for(distributions: Path) -> None:
    """Spark finds the format by the name of a module beside the packages, which imports what the wheel has."""
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {"pyspark_weir/__init__.py", "spark_source/data_source.py"} <= set(archive.namelist())


@pytest.mark.rocks
@pytest.mark.parametrize("version", VERSIONS)
def test_the_quickstart_works_on_every_other_python(
    version: str, distributions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the wheel, which was built from the sdist, as printed, with what uv.lock pins.

    The Python of the tests runs everything else. It has its turn where there is no other, and at night.
    """
    python = interpreters().get(version)
    with capsys.disabled():
        print(f"\nthe quickstart on Python {version}: {python or 'not on this machine'}")
    if python is None or (python == sys.executable and everyday(len(interpreters()) > 1, nightly=False)):
        return
    environment = tmp_path / "venv"
    (distribution,) = distributions.glob("*.whl")
    uv(
        "sync", "--frozen", "--no-default-groups", "--no-install-project", "--extra", "server", "--python", python,
        environment=environment,
    )  # fmt: skip
    uv("pip", "install", "--no-deps", "--python", environment, distribution)
    with session(tmp_path, environment / "bin") as shell:
        for block in snippets("docs/quickstart.md"):
            if block.language in {"console", "python"}:
                shell.run(block)
