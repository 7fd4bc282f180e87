"""Logins: by password (`form`, `pages`), second factor (`totp`), OpenID (`oidc`, `provider`).

`sessions` starts sessions, `urls` has the addresses, `identities` the admin pages of users of a
provider.
"""
