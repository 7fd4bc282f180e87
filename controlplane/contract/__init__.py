"""Wire contract between the control plane and its cells; standard library only.

This is the one package of the control plane that a cell may import. Both sides speak version N and
N-1 of it: unknown fields are ignored, missing optional fields take their defaults.
"""
