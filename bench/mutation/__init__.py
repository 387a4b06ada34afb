"""Small changes of source code that a test should notice: where they can be made, and what becomes of each."""
