"""Validators, sequencers and selectors that ship with the control plane."""
