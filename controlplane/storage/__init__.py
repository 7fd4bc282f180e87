"""The artifact store, a local folder: inputs, logs, artifacts and discarded folders."""
