"""The blocks of code in the documentation, and a session that types them as a reader would.

A block is `console` (commands after `$ `, and what they print), `python` (a program), `sql`, `toml`, `sh` (commands for
a person to run once), or anything else, which is for reading.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scanner.cli import run

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGES: Final = tuple(
    sorted(
        path.relative_to(REPOSITORY).as_posix()
        for pattern in ("*.md", "docs/**/*.md", "[bt]*/README.md")
        for path in REPOSITORY.glob(pattern)
    )
)
_FENCE: Final = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS: Final = re.compile(r"(?:127\.0\.0\.1|0\.0\.0\.0|weir\.example\.com):\d+")
_MADE_UP: Final = re.compile(r"\b(?:[0-9a-f]{64}|\d{8}T\d{6}Z|\d{4}(?:-\d\d){2} \d\d(?::\d\d){2} UTC|\d+K)\b")
"""What differs in each session, and may occur again on the page: a token's hash, a backup's name, time and size."""
_TIMEOUT_S: Final = 500
"""Far longer than anything takes: only what will never come takes it."""
_WEIR: Final = """#!{python}
import os, sys
from scanner.cli import main, weir
from scanner.cli.app import runs_one_command
runs_one_command()  # As in `main`, which imports the command too late here.
words = sys.argv[1:]
command, rest = weir, list(words)
while rest and hasattr(command, "get_command"):
    command = command.get_command(None, rest.pop(0))
if any(each.name == "endpoint" for each in command.params) and not {{"-e", "--endpoint"}} & set(words):
    words += ["-e", os.environ["PAGE_ENDPOINT"]]
main(words)
"""
"""`weir`, for the server of the page where the page leaves the endpoint out."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of code."""

    page: str
    line: int
    """Of the fence that opens it."""
    language: str
    """Empty where the fence names none."""
    code: str


def snippets(page: str) -> list[Snippet]:
    """Every block of a page, in order."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [
        Snippet(page, text.count("\n", 0, match.start()) + 1, match["language"], match["code"])
        for match in _FENCE.finditer(text)
    ]


def run_here(page: str, endpoint: str) -> dict[str, Any]:
    """Type a page in this process: Python in one namespace, as a notebook has it, and commands as a shell reads them.

    Returns:
        What the Python has named.
    """
    namespace: dict[str, Any] = {}
    for snippet in snippets(page):
        if snippet.language == "python":
            exec(compile(_ADDRESS.sub(endpoint, snippet.code), page, "exec"), namespace)
        elif snippet.language == "console":
            for line in snippet.code.splitlines():
                program, *words = shlex.split(line.removeprefix("$ "))
                assert (program, run([*words, "-e", endpoint])) == ("weir", 0)
    return namespace


def commands(code: str) -> list[tuple[str, list[str]]]:
    """The commands of a `console` block, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


@dataclass(slots=True)
class Session:
    """A reader's shell, in a directory of its own."""

    directory: Path
    programs: Path = Path(sys.executable).parent
    """Of the environment in which weir is installed."""
    endpoint: str = ""
    """Of the server that was started last."""
    _servers: list[subprocess.Popen[str]] = field(default_factory=list)
    _real: dict[str, str] = field(default_factory=dict)
    """What stands on the page, made up, and what it is in this session."""

    def run(self, snippet: Snippet) -> None:
        """Type a block.

        Raises:
            AssertionError: A command failed, or printed something else than the page says.
        """
        if snippet.language == "python":
            self._type(["python", "-W", "error", "-c", self._translated(snippet.code)], [], snippet)
            return
        for command, printed in commands(snippet.code):
            if command.startswith("weir serve "):
                self.serve(command, printed)
            elif shown := re.fullmatch(r"cat (\S+\.toml)", command):
                (self.directory / shown[1]).write_text(self._translated("\n".join(printed)))
            else:
                self._type(["bash", "-c", self._translated(command)], printed, snippet)
                if command == "weir drain":
                    self._wait_ended(self._servers.pop())

    def serve(self, command: str, printed: list[str]) -> None:
        """Start a server in the background, on a free port of this machine."""
        command = re.sub(r"--metrics-port \d+", "--metrics-port 0", command).replace("0.0.0.0", "127.0.0.1")
        command = self._placed(command)
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command} --port 0"],
            cwd=self.directory,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._servers.append(process)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("listening on "):
                break
        assert lines, command
        self.endpoint = lines[-1].removeprefix("listening on ")
        if printed:
            self._compare(printed, lines, command)

    def close(self) -> None:
        """End the servers that run, as SIGTERM does."""
        for process in self._servers:
            process.terminate()
            self._wait_ended(process)

    def _wait_ended(self, process: subprocess.Popen[str]) -> None:
        process.communicate(timeout=_TIMEOUT_S)
        assert process.returncode == 0

    def _type(self, words: list[str], printed: list[str], snippet: Snippet) -> None:
        done = subprocess.run(
            words,
            cwd=self.directory,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        what = f"{snippet.page}:{snippet.line}: {words[-1]}"
        fails = any(line.startswith("weir: ") for line in printed)
        assert (done.returncode != 0) is fails, f"{what}\n{done.stdout}"
        if printed:
            self._compare(printed, done.stdout.splitlines(), what)

    def _compare(self, printed: list[str], lines: list[str], what: str) -> None:
        """Compare with the page, where `...` stands for anything, on a line and over lines."""
        documented, real = "\n".join(printed), "\n".join(line.rstrip() for line in lines)
        self._real |= dict(zip(_MADE_UP.findall(documented), _MADE_UP.findall(real), strict=False))
        pattern = re.escape(_ADDRESS.sub("ADDRESS", self._translated(documented))).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, _ADDRESS.sub("ADDRESS", real), re.DOTALL), f"{what}\n{real}"

    def _translated(self, text: str) -> str:
        text = _ADDRESS.sub(self.endpoint or r"\g<0>", self._placed(text))
        for documented, real in self._real.items():
            text = text.replace(documented, real)
        return text

    def _placed(self, text: str) -> str:
        """With the session's directory for those of the reader, who may have a server at the same place."""
        return re.sub(r"(?<![\w/])/(mnt|tmp)/", f"{self.directory}/", text)

    def _environment(self) -> dict[str, str]:
        shims = self.directory / "bin"
        if not shims.exists():
            shims.mkdir()
            (shims / "weir").write_text(_WEIR.format(python=self.programs / "python"))
            (shims / "weir").chmod(0o755)
        path = [str(shims), str(self.programs), os.environ["PATH"]]
        return {
            **os.environ,
            "PATH": os.pathsep.join(path),
            "PAGE_ENDPOINT": self.endpoint,
            "COLUMNS": "100",
        }


@contextmanager
def session(directory: Path, programs: Path = Path(sys.executable).parent) -> Iterator[Session]:
    """A shell, in an environment that has weir; its servers end with the block."""
    shell = Session(directory, programs)
    try:
        yield shell
    finally:
        shell.close()
