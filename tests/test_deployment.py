"""The files for operators fit the code: the Dockerfile, what it may see, and the unit of systemd."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

import click

from scanner.cli import weir
from scanner.cli.serve import serve
from scanner.client.credentials import is_loopback
from scanner.client.endpoints import PORT_DEFAULT

REPOSITORY: Final = Path(__file__).resolve().parent.parent
DOCKERFILE: Final = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
UNIT: Final = (REPOSITORY / "docs" / "operating" / "weir.service").read_text(encoding="utf-8")


def only(pattern: str, text: str) -> str:
    """What a pattern finds, once."""
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return str(found)


def parsed(words: list[str]) -> dict[str, object]:
    """The options of `weir serve`, read as the command reads them."""
    under = click.Context(weir, info_name="weir", **weir.context_settings)
    context = serve.make_context("serve", words, parent=under, resilient_parsing=True)
    unread = [word for word in context.args if word.startswith("-")]
    assert unread == []
    known = {name for parameter in serve.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    return context.params


def test_the_image_has_the_uv_of_the_makefile() -> None:
    """One version of the tool that installs what uv.lock pins."""
    pinned = only(r"^uv_version := (\S+)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"))
    assert only(r"uv==(\S+)", DOCKERFILE) == pinned


def test_the_image_is_built_from_what_a_wheel_needs() -> None:
    """What is copied is there, .dockerignore lets it through and nothing else, and every shipped package is in it."""
    copied = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    }
    assert {name for name in copied if not (REPOSITORY / name).exists()} == set()
    allowed = re.findall(
        r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert copied == set(allowed)
    packages = only(r"^packages = (\[.*\])$", (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(json.loads(packages)) <= copied


def test_the_image_serves_drains_and_is_asked_for_its_health() -> None:
    """Its command is one of `weir serve`; what it exposes, stops with and asks is what the server has."""
    command = json.loads(only(r"^CMD (\[.*\])$", DOCKERFILE))
    assert command[0] == "serve"
    options = parsed(command[1:])
    assert str(options["data"]) == only(r"^VOLUME (\S+)$", DOCKERFILE)
    assert str(PORT_DEFAULT) in only(r"^EXPOSE (.*)$", DOCKERFILE).split()
    assert only(r"^STOPSIGNAL (\S+)$", DOCKERFILE) == "SIGTERM"
    user, group = only(r"--uid (\d+)", DOCKERFILE), only(r"--gid (\d+)", DOCKERFILE)
    assert only(r"^USER (\S+)$", DOCKERFILE) == f"{user}:{group}"
    check = shlex.split(only(r"^HEALTHCHECK .*CMD (.*)$", DOCKERFILE))
    assert check[:2] == ["weir", "health"]
    assert weir.get_command(click.Context(weir), "health") is not None


def test_the_unit_of_systemd_serves() -> None:
    """The server takes its options as they are, no reload ends it, and it waits for longer than a drain takes."""
    words = shlex.split(only(r"^ExecStart=(.*)$", UNIT))
    assert words[1] == "serve"
    host = str(parsed(words[2:])["host"])
    secured = {"--tls-cert", "--credentials"} <= set(words)
    assert secured or is_loopback(host)
    assert secured or re.search(r"^ExecReload=", UNIT, re.MULTILINE) is None
    assert int(only(r"^LimitNOFILE=(\d+)$", UNIT)) >= 65536
    drain_timeout_s = float(next(str(each.default) for each in serve.params if each.name == "drain_timeout"))
    assert int(only(r"^TimeoutStopSec=(\d+)$", UNIT)) > drain_timeout_s
