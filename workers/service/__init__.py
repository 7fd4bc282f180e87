"""The process of a cell: its loop, its Celery worker, its connection to the broker."""
