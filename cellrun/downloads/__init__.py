"""Downloads of artifacts: selection by name, safe paths, files that continue."""
