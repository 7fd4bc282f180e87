"""Commands about logins, projects, members, tokens, secrets and the audit log."""
