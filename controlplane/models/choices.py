"""Choices and conditions of several tables, derived from the domain's enumerations."""

from django.db.models import Q

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import TERMINAL, UNSUCCESSFUL

TASK_STATES = [(int(state), state.name) for state in TaskState]
TERMINAL_NUMBERS = sorted(int(state) for state in TERMINAL)
UNSUCCESSFUL_NUMBERS = sorted(int(state) for state in UNSUCCESSFUL)


def finished_iff_terminal() -> Q:
    """Return the condition that `finished_at` is set if and only if the state is terminal."""
    return Q(state__in=TERMINAL_NUMBERS, finished_at__isnull=False) | (
        ~Q(state__in=TERMINAL_NUMBERS) & Q(finished_at__isnull=True)
    )
