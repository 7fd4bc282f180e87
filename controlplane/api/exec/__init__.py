"""Sessions in running attempts: their endpoints, and the streams of clients and cells.

The streams are WebSockets in front of Django, with Redis between the two sides: web has several
processes.
"""
