"""The commands of `cellrun`, each a thin door: parse, ask the session, draw."""
