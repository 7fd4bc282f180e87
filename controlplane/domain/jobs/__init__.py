"""Jobs: submission, rejection, reruns and one-off tasks."""
