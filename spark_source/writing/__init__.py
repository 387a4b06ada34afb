"""Writing: what a save or a micro-batch writes, how its tasks stage it, and how the driver publishes it, once."""
