"""A real server on the loopback interface, in a thread of its own, for tests of blocking clients.

It serves a data directory exactly as `weir serve` does; only the process is shared, so that a test can ask it what it
still holds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio

from scanner.server.server import Server, open_server

if TYPE_CHECKING:
    from scanner.server.auth.access import CredentialsFile
    from scanner.server.auth.principals import Credentials
    from scanner.server.config import ScannerConfig
    from scanner.storage.rocksdb.config import StorageConfig
    from transport import ServerTls, TransportConfig

POLL_INTERVAL_S = 0.01

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that runs in another thread."""

    server: Server
    """Not safe to touch from here; use `ask`."""
    token: trio.lowlevel.TrioToken

    @property
    def endpoint(self) -> str:
        """`HOST:PORT` to connect to."""
        return f"{self.server.host}:{self.server.port}"

    def ask(self, question: Callable[[Server], T]) -> T:
        """Call `question` with the server in the server's thread, and return its answer."""
        return trio.from_thread.run_sync(question, self.server, trio_token=self.token)

    def wait_until(self, condition: Callable[[Server], bool]) -> None:
        """Return when `condition` holds of the server, seen from its own thread; the test's own timeout bounds it."""
        trio.from_thread.run(self._wait_until, condition, trio_token=self.token)

    async def _wait_until(self, condition: Callable[[Server], bool]) -> None:
        # Other processes have a part in this, so nothing in this one can announce the moment.
        while not condition(self.server):  # noqa: ASYNC110
            await trio.sleep(POLL_INTERVAL_S)


@contextlib.contextmanager
def running_server(
    data_dir: Path,
    config: ScannerConfig | None = None,
    *,
    port: int = 0,
    storage_config: StorageConfig | None = None,
    transport_config: TransportConfig | None = None,
    tls: ServerTls | None = None,
    credentials: Credentials | CredentialsFile | None = None,
    clock: trio.abc.Clock | None = None,
) -> Iterator[RunningServer]:
    """Serve `data_dir` on the loopback interface; leaving the block ends the server.

    Args:
        data_dir: Made if it does not exist.
        config: Of the server; None for the defaults.
        port: To listen on; 0: any free one.
        storage_config: Of its store; None for the defaults.
        transport_config: Of its connections.
        tls: For TLS.
        credentials: Who may call, and do what.
        clock: Of its thread; None: the machine's.

    Raises:
        BaseException: Whatever ended the server before the block did.
    """
    started = threading.Event()
    running: list[RunningServer] = []
    ends: list[trio.Event] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        async with open_server(
            data_dir,
            host="127.0.0.1",
            port=port,
            config=config,
            storage_config=storage_config,
            transport_config=transport_config,
            ssl_context=tls,
            credentials=credentials,
        ) as server:
            ends.append(trio.Event())
            running.append(RunningServer(server, trio.lowlevel.current_trio_token()))
            started.set()
            await ends[0].wait()

    def run() -> None:
        try:
            trio.run(serve, clock=clock)
        except Exception as failure:
            failures.append(failure)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="weir test server", daemon=True)
    thread.start()
    started.wait()
    try:
        if running:
            yield running[0]
    finally:
        if running and thread.is_alive():
            with contextlib.suppress(trio.RunFinishedError):
                running[0].token.run_sync_soon(ends[0].set)
        thread.join()
        if failures:
            raise failures[0]
