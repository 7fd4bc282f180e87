"""The pipeline of steps that runs one attempt; it is the same for every driver.

`pipeline` lists the steps in order, `steps` has one module for each, `runtime` declares the engine
operations that they need, and `outcome` maps ends to reasons.
"""
