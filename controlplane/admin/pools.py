"""Admin pages of pools: policy and current state."""

from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin
from django.db.models import Field, Model
from django.http import HttpRequest
from django.urls import path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import (
    NOTHING,
    cell_badge,
    count_link,
    flag_badge,
    instant,
    meter,
    small_table,
    with_note,
)
from controlplane.admin.base import StyledAdmin, column, confirmed_action, loaded_column
from controlplane.admin.fields import (
    AllowedMountsField,
    JobLimitsField,
    PluginField,
    PluginsField,
    TokensField,
)
from controlplane.admin.queue import show_queue
from controlplane.commands.tenancy.pools import confirm_loss, save_pool
from controlplane.models import Pool
from controlplane.plugins import Kind
from controlplane.queries.views.pools import PoolUse, load_pool_uses
from controlplane.spec.limits import JobLimits, in_order


def _model_options(name: str) -> dict[str, Any]:
    field = cast("Field[Any, Any]", Pool._meta.get_field(name))
    return {"help_text": field.help_text, "initial": field.get_default}


class PoolForm(forms.ModelForm):
    """A pool's policy, with a choice of the installed plugins."""

    sequencer = PluginField(Kind.SEQUENCER, **_model_options("sequencer"))
    selector = PluginField(Kind.SELECTOR, **_model_options("selector"))
    validators = PluginsField(Kind.VALIDATOR, **_model_options("validators"))
    tokens = TokensField(
        help_text="How many tokens of each name the tasks of the pool may hold at the same time,"
        " one name per line: <code>licence: 4</code>. Jobs request tokens as resources."
    )

    allowed_mounts = AllowedMountsField(
        help_text="Paths on the hosts of the cells that tasks may mount, with everything below"
        " them, one per line. Mounts are read-only, except for a line such as"
        " <code>/srv/scratch: writable</code>."
    )

    job_limits = JobLimitsField(
        help_text="Limits for the values of jobs, one per line: <code>max_pids: 4096</code>."
        " Defaults: "
        + ", ".join(
            f"{name} {str(value).lower()}" for name, value in JobLimits().model_dump().items()
        )
        + "."
    )

    class Meta:
        model = Pool
        exclude = ("cursor",)


@admin.register(Pool)
class PoolAdmin(StyledAdmin):
    """Policies of pools. A pool cannot be renamed or deleted, since jobs and cells refer to it."""

    form = PoolForm
    list_display = (
        "name",
        "sequencer",
        "selector",
        "strict_fifo",
        "preemption",
        "cells_now",
        "cpu",
        "memory",
        "waiting",
        "queue",
    )
    actions = ("confirm_losses",)
    search_fields = ("name",)
    fieldsets: ClassVar = (
        (None, {"fields": ("name",)}),
        ("Order", {"fields": ("sequencer", "strict_fifo", "starvation_seconds", "preemption")}),
        ("Placement", {"fields": ("selector", "max_building_per_cell", "tokens")}),
        ("Checks", {"fields": ("validators",)}),
        ("Cells", {"fields": ("cells_may_join",)}),
        (
            "Access to hosts",
            {
                "fields": (
                    "allowed_mounts",
                    "privileged_allowed",
                    "exec_allowed",
                    "allowed_capabilities",
                    "input_networks",
                )
            },
        ),
        ("Limits of jobs", {"fields": ("job_limits",)}),
        ("Loss of cells", {"fields": ("mass_loss",)}),
        (
            "Time limits, in seconds",
            {
                "fields": (
                    "pending_timeout_seconds",
                    "pull_timeout_seconds",
                    "create_timeout_seconds",
                )
            },
        ),
    )
    _now: ClassVar = (
        "Current state",
        {"fields": ("cells_now", "mass_loss_now", "in_use", "tokens_in_use", "waits_for")},
    )

    def get_urls(self) -> list[Any]:
        """Add the queues of pools to the pages."""
        view = self.admin_site.admin_view
        return [
            path("queue/", view(show_queue), name="controlplane_pool_first_queue"),
            path("<id:pool_id>/queue/", view(show_queue), name="controlplane_pool_queue"),
            *super().get_urls(),
        ]

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the fields; for an existing pool, its current state first."""
        first, *others = super().get_fieldsets(request, obj)
        return [first, *others] if obj is None else [first, self._now, *others]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Return the fields that are computed and, for an existing pool, its name."""
        return [] if obj is None else ["name", *self._now[1]["fields"]]

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: jobs and cells need the policy of their pool."""
        return False

    def save_model(self, request: HttpRequest, obj: Pool, form: Any, change: bool) -> None:
        """Save the pool with the command that the API uses."""
        save_pool(obj)

    def load(self, rows: list[Any]) -> dict[int, PoolUse]:
        """Return the usage of the pools."""
        return load_pool_uses([pool.pk for pool in rows], now=clock.now())

    @admin.display(description="cells")
    def cells_now(self, pool: Pool) -> SafeString | str:
        """Return the number of cells in each state."""
        cells = sorted(self.loaded(pool).cells.items())
        counts = (
            (
                count_link("cell", number, pool__id__exact=pool.pk, state__exact=state),
                cell_badge(state),
            )
            for state, number in cells
        )
        pair = '<span class="cellrun-pair">{} {}</span>'
        shown = format_html_join(" ", pair, counts)
        if pool.loss_held_at is not None:
            return with_note(shown, "mass loss suppressed")
        return shown or "none"

    cpu = loaded_column(lambda pool, use: _meter(use, "cpu_millis"), "cpu in use")
    memory = loaded_column(lambda pool, use: _meter(use, "memory_mib"), "memory in use")
    waiting = loaded_column(
        lambda pool, use: count_link("task", use.waiting_tasks, open="pending", pool=pool.name),
        "waiting tasks",
    )
    queue = column(lambda pool: _queue_link(pool), "queue")

    @admin.display(description="Mass loss")
    def mass_loss_now(self, pool: Pool) -> SafeString | str:
        """Return since when a mass loss is suppressed, and the remedies."""
        if pool.loss_held_at is None:
            return "none"
        return format_html(
            '{} since {}: <a class="cellrun-link" href="{}">confirm it in the list of pools</a>, or'
            " wait until the cells report again",
            flag_badge("suppressed", good=False),
            instant(pool.loss_held_at),
            self.list_url(),
        )

    @confirmed_action(
        "Confirm the loss",
        title="Confirm the loss of the silent cells of these pools?",
        text="More than half of a pool's cells became silent at once, so none was declared lost."
        " After confirmation, the silent cells are declared lost and their tasks run on other"
        " cells, even if their containers still run. Cells that report again are not affected.",
        button="Confirm the loss",
        done="Losses confirmed",
    )
    def confirm_losses(self, request: HttpRequest, pool: Pool) -> None:
        """Confirm the suppressed loss of a pool's silent cells."""
        confirm_loss(name=pool.name, actor=str(request.user), now=clock.now())

    @admin.display(description="In use")
    def in_use(self, pool: Pool) -> SafeString | str:
        """Return the used amount and the capacity of each resource, over the ready cells."""
        use: PoolUse = self.loaded(pool)
        names = in_order({*use.capacity, *use.held} - {*pool.tokens})
        rows = [(_title(name), _meter(use, name)) for name in names]
        rows = [row for row in rows if row[1] != NOTHING]
        return (
            small_table(("resource", "in use, of its ready cells' capacity"), rows)
            if rows
            else NOTHING
        )

    @admin.display(description="Tokens in use")
    def tokens_in_use(self, pool: Pool) -> SafeString | str:
        """Return the used number and the limit of each token."""
        held = self.loaded(pool).held
        rows = [
            (name, meter(name, held.get(name, 0), pool.tokens[name]))
            for name in in_order(pool.tokens)
        ]
        return small_table(("token", "in use"), rows) if rows else NOTHING

    @admin.display(description="Waiting tasks")
    def waits_for(self, pool: Pool) -> SafeString | str:
        """Return the pending reasons with the number of tasks that have each."""
        rows = [(waits.tasks, waits.code, waits.text) for waits in self.loaded(pool).waiting]
        columns = ("tasks", "reason", "most frequent message")
        found = small_table(columns, rows) if rows else "none"
        return format_html("{} {}", found, _queue_link(pool))


def _queue_link(pool: Pool) -> SafeString:
    address = reverse("admin:controlplane_pool_queue", args=[pool.pk])
    return format_html('<a class="cellrun-link" href="{}">Queue</a>', address)


def _title(name: str) -> str:
    return name.removesuffix("_millis").removesuffix("_mib")


def _meter(use: PoolUse, name: str) -> SafeString | str:
    return meter(name, use.held.get(name, 0), use.capacity.get(name) or None)
