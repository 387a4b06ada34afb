"""What `bench replica` needs beyond its file: the streaming query that is killed, as a process of its own."""
