"""The methods of `weir.v1`: one module each, thin."""
