"""The store of files: one interface, in a local folder or in an object store."""
