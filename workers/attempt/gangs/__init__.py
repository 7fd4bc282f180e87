"""Members of a gang on this cell: their peer files and how those are kept up to date."""
