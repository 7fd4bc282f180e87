"""The output of attempts on its way to the control plane."""
