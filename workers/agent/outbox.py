"""The outgoing messages of a cell: numbered, sealed under its incarnation, queued."""

import os
from typing import Any

from controlplane.contract.messages.reports import Reports
from controlplane.contract.wire import broker, envelope, keys, queues
from controlplane.contract.wire.sealing import NONCE_BYTES
from workers.agent.reporting import SequenceNumbers
from workers.config import CellConfig
from workers.journal import CellJournal


class Outbox:
    """The messages of one incarnation; `begin` starts the next one."""

    def __init__(self, config: CellConfig, journal: CellJournal) -> None:
        self._name = config.name
        self._key = keys.mac_key(config.key, keys.TO_CONTROL)
        self._seal_key = keys.mac_key(config.key, keys.SEAL_REPORTS)
        self._journal = journal
        self._messages: list[tuple[str, str]] = []
        self.begin()

    def begin(self) -> None:
        """Restart the numbers for a new incarnation."""
        self.numbers = SequenceNumbers(lambda: self._journal.memory.written)

    def send(self, body: dict[str, Any], number: int | None = None) -> int:
        """Seal and queue a message, and return its number."""
        seq = self.numbers.draw() if number is None else number
        incarnation = self._journal.memory.incarnation
        text = envelope.seal(
            self._key,
            cell=self._name,
            incarnation=incarnation,
            seq=seq,
            body=body,
            payload_seal=self._draw_seal(body),
        )
        queue = queues.inbox_queue(self._name)
        self._messages.append((queue, broker.plain_message(queue, text)))
        return seq

    def _draw_seal(self, body: dict[str, Any]) -> envelope.Seal | None:
        """Return a seal for reports; other messages have no content of jobs."""
        if body["type"] != Reports.TYPE:
            return None
        return envelope.Seal(self._seal_key, os.urandom(NONCE_BYTES))

    def claim(self, body: dict[str, Any]) -> int:
        """Send a message before the acceptance: newer than all before, older than a successor's."""
        memory = self._journal.memory
        return self.send(body, self.numbers.draw_claim(memory.claim or 0, memory.starts))

    def take(self) -> list[tuple[str, str]]:
        """Return and clear the queued messages, oldest first, as (queue, message)."""
        messages, self._messages = self._messages, []
        return messages
