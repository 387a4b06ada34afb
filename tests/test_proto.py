"""The generated protobuf modules say what the .proto files say, and these stand on their own."""

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from tools import generate_protos

REPOSITORY = Path(__file__).resolve().parent.parent
PROTO_ROOT = REPOSITORY / "scanner" / "proto"
ROOTS = [REPOSITORY / root for root in generate_protos.ROOTS]
PROTOS = sorted(path.relative_to(PROTO_ROOT) for path in PROTO_ROOT.rglob("*.proto"))


def test_generated_files_are_what_the_pinned_protoc_makes(tmp_path: Path) -> None:
    """Generating again changes no committed file; else `make proto` was forgotten."""
    written = generate_protos.generate(tmp_path)
    assert len(written) == 2 * sum(len(list(root.rglob("*.proto"))) for root in ROOTS)
    changed = [
        str(path) for path in written if (tmp_path / path).read_bytes() != (REPOSITORY / path).read_bytes()
    ]
    assert changed == [], "run `make proto`"


def test_no_generated_file_is_left_without_its_proto() -> None:
    """A .proto file that was renamed or dropped leaves no generated module behind."""
    for root in ROOTS:
        stems = {path.with_suffix("") for path in root.rglob("*.proto")}
        generated = {path for path in root.rglob("*_pb2.py*") if path.suffix != ".pyc"}
        assert {path.with_name(path.name.partition("_pb2")[0]) for path in generated} == stems


@pytest.mark.parametrize("proto", PROTOS, ids=str)
def test_protos_compile_from_themselves_alone(proto: Path, tmp_path: Path) -> None:
    """A stranger with protoc and the .proto files alone gets stubs: they import nothing of ours and nothing odd."""
    out = tmp_path / "set"
    arguments = [f"-I{PROTO_ROOT}", "--include_imports", f"--descriptor_set_out={out}", str(proto)]
    assert protoc.main(["protoc", *arguments]) == 0
    described = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    assert {file.package for file in described.file} == {"weir.v1"}
    assert all(file.syntax == "proto3" for file in described.file)
    # Without one Go's generator refuses the file.
    assert all(file.options.go_package == "weir/v1;weirv1" for file in described.file)
