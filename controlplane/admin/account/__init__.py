"""The own account of every user, outside the admin: roles, API tokens, password, logout.

`pages` has the views, `token_form` the form of a new token, `urls` the addresses.
"""
