"""Transport format of messages: envelope, keys, queue names, broker format."""
