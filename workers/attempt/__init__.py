"""The life of one attempt as a visible pipeline of steps, the same for every kind of container.

`run` lists the steps in order, `steps` holds one file for each, `engine` says what they need of a
container engine, and `outcome` is the one table of what an end means.
"""
