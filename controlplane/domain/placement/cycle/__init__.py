"""One scheduling cycle over one pool: prefilter, gangs, bands, plan."""
