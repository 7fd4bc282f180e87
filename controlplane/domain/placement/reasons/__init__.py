"""Why a task waits, as figures and as a sentence."""
