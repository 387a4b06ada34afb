"""Unary calls of a hundred octets: weir's transport beside grpcio, synchronous and asynchronous, and grpclib.

The server answers with what it was sent. A client has a number of calls under way, all on one connection; grpcio's
synchronous client makes one by waiting for it, and more of them as futures, since a thread for each takes half as much
CPU again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import psutil
import trio

import transport
from bench.harness.processes import answer_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

PATH: Final = "/bench.Calls/Echo"
PAYLOAD: Final = bytes(range(100))
WARM_UP: Final = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Calling:
    """What to call, and how often."""

    way: str
    """One of `SERVERS`."""
    port: int
    calls: int
    in_flight: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCost:
    """What the calls took."""

    seconds: float
    cpu_s: float
    """Of the client."""
    resident_bytes: int
    """Of the client, at the end."""

    @classmethod
    def since(cls, started: float, cpu_s: float) -> CallCost:
        """Of calls that have ended: since a moment, and since the client had used so much CPU."""
        return cls(
            seconds=time.perf_counter() - started,
            cpu_s=time.process_time() - cpu_s,
            resident_bytes=int(psutil.Process().memory_info().rss),
        )


def _method() -> tuple[str, str]:
    _, service, method = PATH.split("/")
    return service, method


def serve_weir(ready: Connection) -> None:
    """Answer by weir's transport until the process is ended; tells its port."""

    async def echo(request: Any, _stream: transport.ServerStream) -> bytes:
        return bytes(request)

    async def main() -> None:
        async with transport.serve({PATH: transport.unary(echo)}) as server:
            ready.send(server.port)
            await trio.sleep_forever()

    trio.run(main)


def serve_grpcio(ready: Connection) -> None:
    """Answer by grpcio until the process is ended; tells its port."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    service, method = _method()
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, _context: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready.send(port)
    server.wait_for_termination()


def serve_grpc_aio(ready: Connection) -> None:
    """Answer by grpc.aio until the process is ended; tells its port."""

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    async def main() -> None:
        server = grpc.aio.server()
        service, method = _method()
        handler: Any = grpc.unary_unary_rpc_method_handler(echo)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready.send(port)
        await server.wait_for_termination()

    asyncio.run(main())


def serve_grpclib(ready: Connection) -> None:
    """Answer by grpclib until the process is ended; tells its port."""
    from bench.peers import grpclib_calls  # What is measured beside it does without.

    asyncio.run(grpclib_calls.serve(ready))


def caller(commands: Connection) -> None:
    """Call what comes over a pipe, until None comes, and answer with the cost."""
    answer_all(commands, lambda calling: _WAYS[calling.way](calling))


def _shares(calling: Calling) -> list[int]:
    """How many calls each of those in flight makes, one after the other."""
    each, more = divmod(calling.calls, calling.in_flight)
    return [each + (number < more) for number in range(calling.in_flight)]


async def measure(call: Any, calling: Calling) -> CallCost:
    """Call by asyncio."""

    async def call_often(times: int) -> None:
        for _ in range(times):
            assert len(await call(PAYLOAD)) == len(PAYLOAD)

    await call_often(WARM_UP)
    cpu, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*map(call_often, _shares(calling)))
    return CallCost.since(started, cpu)


def _by_weir(calling: Calling) -> CallCost:
    async def main() -> CallCost:
        async with transport.connect("127.0.0.1", calling.port) as client:

            async def call_often(times: int) -> None:
                for _ in range(times):
                    assert len(await client.call(PATH, PAYLOAD)) == len(PAYLOAD)

            await call_often(WARM_UP)
            cpu, started = time.process_time(), time.perf_counter()
            async with trio.open_nursery() as nursery:
                for times in _shares(calling):
                    nursery.start_soon(call_often, times)
            return CallCost.since(started, cpu)

    return trio.run(main)


def _by_grpcio(calling: Calling) -> CallCost:
    with grpc.insecure_channel(f"127.0.0.1:{calling.port}") as channel:
        call: Any = channel.unary_unary(PATH)

        def call_often(times: int) -> None:
            for _ in range(times):
                assert len(call(PAYLOAD)) == len(PAYLOAD)

        def call_by_futures() -> None:
            room, answers = threading.Semaphore(calling.in_flight), []
            for _ in range(calling.calls):
                room.acquire()
                answers.append(call.future(PAYLOAD))
                answers[-1].add_done_callback(lambda _: room.release())
            assert all(len(answer.result()) == len(PAYLOAD) for answer in answers)

        call_often(WARM_UP)
        cpu, started = time.process_time(), time.perf_counter()
        if calling.in_flight == 1:
            call_often(calling.calls)
        else:
            call_by_futures()
        return CallCost.since(started, cpu)


def _by_grpc_aio(calling: Calling) -> CallCost:
    async def main() -> CallCost:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{calling.port}") as channel:
            return await measure(channel.unary_unary(PATH), calling)

    return asyncio.run(main())


def _by_grpclib(calling: Calling) -> CallCost:
    from bench.peers import grpclib_calls

    return asyncio.run(grpclib_calls.call_all(calling))


_WAYS: Final[dict[str, Callable[[Calling], CallCost]]] = {
    "weir": _by_weir,
    "grpcio": _by_grpcio,
    "grpc.aio": _by_grpc_aio,
    "grpclib": _by_grpclib,
}
SERVERS: Final[dict[str, Callable[[Connection], None]]] = {
    "weir": serve_weir,
    "grpcio": serve_grpcio,
    "grpc.aio": serve_grpc_aio,
    "grpclib": serve_grpclib,
}
"""By way: what answers."""
