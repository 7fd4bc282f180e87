"""Admin pages of tenancy: domains, projects, memberships, groups, users, tokens and secrets."""
