"""Members of a gang on this cell, and their peer files."""
