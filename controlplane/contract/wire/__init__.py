"""How a message travels: envelope, keys, queue names, broker format."""
