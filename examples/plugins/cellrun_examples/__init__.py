"""One plugin of each kind; docs/plugins.md goes through them."""
