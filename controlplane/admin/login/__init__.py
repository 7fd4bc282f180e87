"""Logins: by password (`form`, `pages`) and with an OpenID provider (`oidc`, `provider`).

`urls` has their addresses, `identities` the admin pages of users of a provider.
"""
