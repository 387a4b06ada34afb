"""The wire in protobuf: the .proto files, which are the source of truth, and what `make proto` makes of them."""
