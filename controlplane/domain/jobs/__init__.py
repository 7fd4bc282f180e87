"""Jobs: what a submission becomes, what is refused, reruns and one-off tasks."""
