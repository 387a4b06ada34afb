"""Messages of protobuf and Arrow, to and from the values of `scanner.data`."""
