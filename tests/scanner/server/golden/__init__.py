"""What a server of an older version has left, which every later one goes on with."""
