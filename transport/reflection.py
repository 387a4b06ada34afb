"""gRPC server reflection, v1 and v1alpha: describes the server's services to tools without its .proto files.

It answers from serialized file descriptors that it is given; it needs no pool and knows no type of them. The two
versions have the same octets on the wire, so one implementation answers both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf import descriptor_pb2

from transport.errors import StatusCode
from transport.health import of_short_requests, parse
from transport.proto.grpc.health.v1 import health_pb2
from transport.proto.grpc.reflection.v1 import reflection_pb2 as pb
from transport.proto.grpc.reflection.v1alpha import reflection_pb2 as pb_v1alpha
from transport.server import Handler
from transport.stream import ServerStream

_METHOD: Final = "ServerReflectionInfo"
_SERVICES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_GENERIC_FILES: Final = tuple(module.DESCRIPTOR.serialized_pb for module in (health_pb2, pb, pb_v1alpha))
_SHOWN_CHARACTERS_MAX: Final = 200
"""Of a peer's text in an error message."""


def reflection_handlers(paths: Iterable[str], files: Iterable[bytes]) -> dict[str, Handler]:
    """Make the handlers of the reflection services.

    Args:
        paths: Those of everything else that is served, /package.Service/Method; the services in them are listed.
        files: Serialized google.protobuf.FileDescriptorProto of these services and of all that they import. Those of
            health and reflection itself are known.

    Returns:
        The handlers, by path; to be served beside the others.

    Raises:
        ValueError: A service, or an imported file, is in none of the files.
    """
    index = FileIndex((*files, *_GENERIC_FILES))
    services = sorted({path.split("/")[1] for path in paths} | set(_SERVICES))
    missing = [name for name in services if index.declaring(name) is None]
    if missing:
        raise ValueError(f"no file declares the services {', '.join(missing)}")

    async def handle(stream: ServerStream) -> None:
        sent: set[str] = set()
        while (message := await stream.receive()) is not None:
            request = parse(pb.ServerReflectionRequest, message)
            await stream.send(_answer(index, services, request, sent).SerializeToString())

    return {f"/{service}/{_METHOD}": of_short_requests(handle) for service in _SERVICES}


class FileIndex:
    """Files, found by their names and by what they declare.

    Args:
        files: Serialized google.protobuf.FileDescriptorProto.

    Raises:
        ValueError: One imports a file that is not among them.
    """

    def __init__(self, files: Iterable[bytes]) -> None:
        self._octets: dict[str, bytes] = {}
        self._imports: dict[str, list[str]] = {}
        self._symbols: dict[str, str] = {}
        self._extensions: dict[str, dict[int, str]] = {}
        for octets in files:
            file = descriptor_pb2.FileDescriptorProto.FromString(octets)
            self._octets[file.name] = octets
            self._imports[file.name] = list(file.dependency)
            self._symbols.update(dict.fromkeys(_symbols(file), file.name))
            for extension in _extensions(file):
                self._extensions.setdefault(extension.extendee.lstrip("."), {})[extension.number] = file.name
        missing = {name for names in self._imports.values() for name in names} - self._octets.keys()
        if missing:
            raise ValueError(f"imported, and not among the files: {', '.join(sorted(missing))}")

    def declaring(self, symbol: str) -> str | None:
        """The name of the file that declares a message, field, oneof, enum, value, service, method or extension."""
        return self._symbols.get(symbol)

    def extending(self, message: str, number: int) -> str | None:
        """The name of the file with this extension of a message."""
        return self._extensions.get(message, {}).get(number)

    def extension_numbers(self, message: str) -> list[int] | None:
        """All known extensions of a message; None if there is no such message."""
        return sorted(self._extensions.get(message, {})) if message in self._symbols else None

    def with_imports(self, name: str, sent: set[str]) -> list[bytes] | None:
        """A file, then all that it imports and that was not sent before; None if there is no such file.

        Args:
            name: The file's; it comes whether it was sent before or not.
            sent: Names of files sent before; those that are returned are added.
        """
        if name not in self._octets:
            return None
        sent.discard(name)
        found, waiting = [], [name]
        while waiting:
            each = waiting.pop()
            if each not in sent:
                sent.add(each)
                found.append(self._octets[each])
                waiting += self._imports[each]
        return found


def _answer(
    index: FileIndex, services: list[str], request: pb.ServerReflectionRequest, sent: set[str]
) -> pb.ServerReflectionResponse:
    response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    name: str | None = None
    match kind:
        case "list_services":
            response.list_services_response.service.extend(pb.ServiceResponse(name=each) for each in services)
            return response
        case "all_extension_numbers_of_type":
            numbers = index.extension_numbers(request.all_extension_numbers_of_type)
            if numbers is not None:
                extensions = response.all_extension_numbers_response
                extensions.base_type_name = request.all_extension_numbers_of_type
                extensions.extension_number.extend(numbers)
                return response
        case "file_by_filename":
            name = request.file_by_filename
        case "file_containing_symbol":
            name = index.declaring(request.file_containing_symbol)
        case "file_containing_extension":
            wanted = request.file_containing_extension
            name = index.extending(wanted.containing_type, wanted.extension_number)
        case _:
            return _failed(response, StatusCode.INVALID_ARGUMENT, "the request asks for nothing known here")
    files = None if name is None else index.with_imports(name, sent)
    if files is None:
        what = str(getattr(request, kind)).strip()[:_SHOWN_CHARACTERS_MAX]
        return _failed(response, StatusCode.NOT_FOUND, f"{kind} {what!r}: nothing like that is served here")
    response.file_descriptor_response.file_descriptor_proto.extend(files)
    return response


def _failed(
    response: pb.ServerReflectionResponse, status: StatusCode, message: str
) -> pb.ServerReflectionResponse:
    response.error_response.error_code = int(status)
    response.error_response.error_message = message
    return response


def _symbols(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    scope = f"{file.package}." if file.package else ""
    yield from (scope + extension.name for extension in file.extension)
    for enum in file.enum_type:
        yield from _enum_symbols(enum, scope)
    for service in file.service:
        yield scope + service.name
        yield from (f"{scope}{service.name}.{method.name}" for method in service.method)
    for message in file.message_type:
        yield from _message_symbols(message, scope)


def _message_symbols(message: descriptor_pb2.DescriptorProto, scope: str) -> Iterator[str]:
    name = scope + message.name
    yield name
    yield from (f"{name}.{field.name}" for field in (*message.field, *message.extension))
    yield from (f"{name}.{choice.name}" for choice in message.oneof_decl)
    for enum in message.enum_type:
        yield from _enum_symbols(enum, f"{name}.")
    for inner in message.nested_type:
        yield from _message_symbols(inner, f"{name}.")


def _enum_symbols(enum: descriptor_pb2.EnumDescriptorProto, scope: str) -> Iterator[str]:
    yield scope + enum.name
    yield from (scope + value.name for value in enum.value)  # values are siblings of their enum


def _extensions(
    scope: descriptor_pb2.FileDescriptorProto | descriptor_pb2.DescriptorProto,
) -> Iterator[descriptor_pb2.FieldDescriptorProto]:
    yield from scope.extension
    inner = scope.message_type if isinstance(scope, descriptor_pb2.FileDescriptorProto) else scope.nested_type
    for message in inner:
        yield from _extensions(message)
