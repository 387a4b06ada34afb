"""The comparison of all scan models: what each costs, what it keeps at the server, and what breaks it.

serving, writing, links      a server, a writer and a line to it, all of them to be broken at will
orders, scanning             the table, and one measured scan of it
speed, cuts, losses,
stalled, crossover,
isolating                    one question each, answered by a frozen record
comparison                   all of them, their bars, the JSON
plots                        the pictures, drawn from the JSON alone
"""
