"""Commands for `manage.py`: thin doors, like the API."""
