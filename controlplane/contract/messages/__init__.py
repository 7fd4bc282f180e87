"""Messages between the control plane and its cells."""
