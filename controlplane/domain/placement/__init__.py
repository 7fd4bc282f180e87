"""Who runs where: from a snapshot of one pool to a plan, with reasons for those that wait."""
