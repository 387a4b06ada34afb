"""The generic services of gRPC in protobuf: the published .proto files, and what `make proto` makes of them."""
