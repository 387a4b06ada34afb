"""One bench per file: each asks one question, and says what must hold.

`run` measures, prints progress and tables to `console`, writes a JSON to `output`, draws pictures into `plots` (None:
none), and returns the bars. What else it takes are options of the command, which `bench.__main__` explains.
"""
