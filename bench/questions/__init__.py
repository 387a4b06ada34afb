"""One bench per file: each asks one question, and says what must hold.

`run` measures and prints progress to `console`, writes a JSON to `output`, and then prints tables: if nobody
reads these, the measurements are there. It draws pictures into `plots` (None: none), and returns the bars. What else it
takes are options of the command, which `bench.__main__` explains.
"""
