"""The life of one attempt as a pipeline of steps, the same for every driver.

`pipeline` lists the steps in order, `steps` has one module for each, `runtime` declares what they
need of a container engine, and `outcome` maps ends to their reasons.
"""
