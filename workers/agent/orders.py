"""Orders as they arrive at a cell: checked and read, or dropped and counted by reason."""

from collections import Counter
from collections.abc import Callable

import structlog

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.orders import Order, read_order
from controlplane.contract.wire import envelope, keys
from controlplane.contract.wire.envelope import BadMac

log = structlog.get_logger(__name__)

SHOWN_CHARS = 200


class OrderReader:
    """Reads the order messages of one cell. `read` never raises."""

    def __init__(self, *, name: str, key: bytes, incarnation: Callable[[], str]) -> None:
        """Create a reader; `incarnation` returns the current one. Other orders are dropped."""
        self._name = name
        self._key = keys.mac_key(key, keys.TO_CELL)
        self._seal_key = keys.mac_key(key, keys.SEAL_ORDERS)
        self._incarnation = incarnation
        self.dropped: Counter[str] = Counter()

    def read(self, text: str) -> Order | None:
        """Return the order in `text`; None: it was dropped."""
        try:
            return self._read(text)
        except BadMac as error:
            self._drop("bad_mac", error)
        except MalformedMessage as error:
            self._drop("malformed", error)
        except Exception as error:  # an unexpected error must not end the process
            self._drop("unreadable", error)
        return None

    def _read(self, text: str) -> Order:
        message = envelope.parse(text)
        message.check(self._key)
        if message.cell != self._name or message.incarnation != self._incarnation():
            raise MalformedMessage(f"an order for {message.cell} {message.incarnation}")
        return read_order(message.content(self._seal_key))

    def _drop(self, reason: str, error: Exception) -> None:
        self.dropped[reason] += 1
        error_text = str(error)[:SHOWN_CHARS]
        log.warning("order_dropped", cell=self._name, reason=reason, error=error_text)
