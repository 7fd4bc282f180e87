"""What leaves the control plane after commit: orders to cells, wakes of ticks, artifacts."""
