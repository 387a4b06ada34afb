"""Generates the *_pb2.py and *_pb2.pyi files beside the .proto files, with the protoc pinned in uv.lock.

    python -m tools.generate_protos [DIRECTORY]

With a directory the files go there instead, in the same layout; the drift test compares them with the committed ones.
"""

import sys
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = ("scanner/proto", "transport/proto")
"""Each is an import root of its own: a .proto file names another by its path below the root."""

PRIVATE_ROOTS = frozenset({"transport/proto"})
"""Roots with .proto files of other people's packages. Whoever has grpcio-health-checking or grpcio-reflection in the
process as well has put these types into protobuf's default pool, and that refuses a second one of the same name. So
each of these files, which import nothing, gets a pool of its own."""

_DEFAULT_POOL, _OWN_POOL = "_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()"


def generate(target: Path) -> list[Path]:
    """Write the generated modules of every .proto file.

    Args:
        target: The repository, or any directory: the files land below it as they do in the repository.

    Returns:
        The files written, relative to `target`.

    Raises:
        SystemExit: protoc refused a file; it has said why on stderr.
    """
    written: list[Path] = []
    for root in ROOTS:
        source = REPOSITORY / root
        out = target / root
        out.mkdir(parents=True, exist_ok=True)
        protos = sorted(source.rglob("*.proto"))
        arguments = [
            f"-I{source}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
        ]
        if protoc.main(["protoc", *arguments, *map(str, protos)]) != 0:
            raise SystemExit(f"protoc refused a file below {root}")
        if root in PRIVATE_ROOTS:
            _take_out_of_default_pool(out.rglob("*_pb2.py"))
        stems = [(Path(root) / proto.relative_to(source)).with_suffix("") for proto in protos]
        written += [Path(f"{stem}_pb2{suffix}") for stem in stems for suffix in (".py", ".pyi")]
    return written


def _take_out_of_default_pool(modules: Iterable[Path]) -> None:
    for module in modules:
        source = module.read_text(encoding="utf-8")
        assert source.count(_DEFAULT_POOL) == 1, f"{module}: protoc writes its modules in another way now"
        module.write_text(source.replace(_DEFAULT_POOL, _OWN_POOL), encoding="utf-8")


if __name__ == "__main__":
    for path in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY):
        print(path)
