"""Data directories of each format that was released, packed, and what makes them."""
