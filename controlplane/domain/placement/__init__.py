"""Who runs where: from a snapshot of one pool to a plan, every task that stays behind with its
reason.
"""
