"""Wire contract between the control plane and its cells; standard library only.

This is the only package of the control plane that a cell may import. Both sides support versions N
and N-1: unknown fields are ignored, missing optional fields take their defaults.
"""
