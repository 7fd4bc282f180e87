"""Programs that users start in running attempts, and their streams to the control plane."""
