"""Messages that leave the control plane after a commit: orders, wakes, callbacks."""
