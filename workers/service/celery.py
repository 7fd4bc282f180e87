"""The cell's Celery app: orders arrive as tasks; Flower shows the worker as `cell@<name>`."""

from collections.abc import Callable
from typing import Any

import structlog
from celery import Celery, Task
from celery.worker import state
from kombu import Queue

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.wire import envelope, queues
from workers.service.broker import RETRY_SECONDS_MAX, PromptAmqp

log = structlog.get_logger(__name__)

# Kombu reconnects when Redis is this late with an answer.
HEALTH_SECONDS = 5


def make_app(broker_url: str, order_queues: list[str]) -> Celery:
    """Return a Celery app that consumes these queues."""
    app = Celery("cellrun-cell", broker=broker_url, amqp=PromptAmqp, set_as_current=True)
    app.conf.update(
        # Celery prefers the variable CELERY_BROKER_URL to `broker`, but not to these.
        broker_read_url=broker_url,
        broker_write_url=broker_url,
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=True,
        # Remote control needs no key: any client of Redis could shut cells down.
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=1,
        broker_transport_options={
            "priority_steps": [0],
            "socket_connect_timeout": 1,
            "socket_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": HEALTH_SECONDS,
            "interval_start": 0,
            "interval_step": 1,
            "interval_max": RETRY_SECONDS_MAX,
        },
        task_queues=[
            # The cell acknowledges orders itself, so the broker need not.
            Queue(name, exchange="", routing_key=name, no_declare=True, no_ack=True)  # type: ignore[no-untyped-call]
            for name in order_queues
        ],
        task_default_queue=order_queues[0],
        task_create_missing_queues=False,
    )
    return app


class OrderTask(Task):
    """A task whose messages are handled as they arrive, whatever their headers.

    Celery's own request, pool and trace of a task take a fifth of the time of a fleet. Flower shows
    attempts instead of orders.
    """

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Callable[..., None]:
        """Return the handler of messages, which passes on their payload."""

        def handle_message(message: Any, *_: Any, **__: Any) -> None:
            state.all_total_count[0] += 1  # what Flower shows as processed by the worker
            self.run(message.payload)

        return handle_message


def register_orders(app: Celery, take: Callable[[str, str], None]) -> None:
    """Pass orders to `take(cell name, text)`, which only queues them."""

    @app.task(name=queues.ORDERS_TASK, base=OrderTask, shared=False)
    def orders(payload: Any) -> None:
        try:
            text = _text_of(payload)
            take(envelope.parse(text).cell, text)
        except MalformedMessage as error:
            log.warning("order_dropped", error=str(error))


def _text_of(payload: Any) -> str:
    match payload:
        case [[str(text), *_], *_]:
            return text
        case _:
            raise MalformedMessage("an order is a text")


def worker_arguments(hostname: str) -> list[str]:
    """Return the command line of the cell's worker."""
    return [
        "worker",
        "--hostname",
        hostname,
        "--pool",
        "solo",
        "--concurrency",
        "1",
        "--without-gossip",
        "--without-mingle",
        "--heartbeat-interval",
        "5",
        "--task-events",
        "--loglevel",
        "WARNING",
    ]
