"""Admin pages of pools: policy and current state."""

from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin
from django.db.models import Field, Model
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import (
    NOTHING,
    cell_badge,
    flag_badge,
    instant,
    meter,
    small_table,
    with_note,
)
from controlplane.admin.base import StyledAdmin, confirmed_action, loaded_column
from controlplane.admin.fields import (
    AllowedMountsField,
    PluginField,
    PluginsField,
    TokensField,
)
from controlplane.commands.tenancy.pools import confirm_loss, save_pool
from controlplane.models import Pool
from controlplane.plugins import Kind
from controlplane.queries.views.pools import PoolUse, load_pool_uses
from controlplane.spec.limits import in_order


def _as_modelled(name: str) -> dict[str, Any]:
    field = cast("Field[Any, Any]", Pool._meta.get_field(name))
    return {"help_text": field.help_text, "initial": field.get_default}


class PoolForm(forms.ModelForm):
    """A pool's policy; plugins are chosen among those that are installed."""

    sequencer = PluginField(Kind.SEQUENCER, **_as_modelled("sequencer"))
    selector = PluginField(Kind.SELECTOR, **_as_modelled("selector"))
    validators = PluginsField(Kind.VALIDATOR, **_as_modelled("validators"))
    tokens = TokensField(
        help_text="How many of each may be held at once in the whole pool, one a line:"
        " <code>licence: 4</code>. A job asks for them among its resources."
    )

    allowed_mounts = AllowedMountsField(
        help_text="What of its cells' hosts tasks may mount, with all below it, one path a line;"
        " to write there, too: <code>/srv/scratch: writable</code>."
    )

    class Meta:
        model = Pool
        exclude = ("cursor",)


@admin.register(Pool)
class PoolAdmin(StyledAdmin):
    """Policies of pools. A pool keeps its name, which jobs and cells refer to, and is never
    deleted.
    """

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
    )
    actions = ("confirm_losses",)
    search_fields = ("name",)
    fieldsets: ClassVar = (
        (None, {"fields": ("name",)}),
        ("Order", {"fields": ("sequencer", "strict_fifo", "starvation_seconds", "preemption")}),
        ("Place", {"fields": ("selector", "max_building_per_cell", "tokens")}),
        ("Checks", {"fields": ("validators",)}),
        ("Hosts", {"fields": ("allowed_mounts", "privileged_allowed")}),
        ("When cells are lost", {"fields": ("mass_loss",)}),
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
        "Now",
        {"fields": ("cells_now", "mass_loss_now", "in_use", "tokens_in_use", "waits_for")},
    )

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """How it stands comes first, once there is something."""
        first, *others = super().get_fieldsets(request, obj)
        return [first, *others] if obj is None else [first, self._now, *others]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """The name, once it is given."""
        return [] if obj is None else ["name", *self._now[1]["fields"]]

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never: its jobs and cells would be without a policy."""
        return False

    def save_model(self, request: HttpRequest, obj: Pool, form: Any, change: bool) -> None:
        """Written as the API writes it."""
        save_pool(obj)

    def load(self, rows: list[Any]) -> dict[int, PoolUse]:
        """Return how the pools stand."""
        return load_pool_uses([pool.pk for pool in rows], now=clock.now())

    @admin.display(description="cells")
    def cells_now(self, pool: Pool) -> SafeString | str:
        """Its cells by state."""
        cells = sorted(self.loaded(pool).cells.items())
        counts = ((number, cell_badge(state)) for state, number in cells)
        pair = '<span class="cellrun-pair">{} {}</span>'
        shown = format_html_join(" ", pair, counts)
        if pool.loss_held_at is not None:
            return with_note(shown, "the loss of many at once is held back")
        return shown or "none"

    cpu = loaded_column(lambda pool, use: _meter(use, "cpu_millis"), "cpu in use")
    memory = loaded_column(lambda pool, use: _meter(use, "memory_mib"), "memory in use")
    waiting = loaded_column(lambda pool, use: use.waiting_tasks, "waiting")

    @admin.display(description="Mass loss")
    def mass_loss_now(self, pool: Pool) -> SafeString | str:
        """Since when the loss of more than half of its cells is held back."""
        if pool.loss_held_at is None:
            return "none"
        return format_html(
            '{} since {}: <a class="cellrun-link" href="{}">confirm it in the list of pools</a>, or'
            " wait for its cells",
            flag_badge("held back", good=False),
            instant(pool.loss_held_at),
            self.list_url(),
        )

    @confirmed_action(
        "Confirm the loss",
        title="Confirm the loss of their silent cells?",
        text="More than half of their cells fell silent at once, so none was marked lost. On"
        " confirmation, the silent cells are lost and their tasks run elsewhere, even if they"
        " still run there. Cells that report from now on are not affected.",
        button="Confirm the loss",
        done="Losses confirmed",
    )
    def confirm_losses(self, request: HttpRequest, pool: Pool) -> None:
        """Give up the cells of a pool that fell silent all at once."""
        confirm_loss(name=pool.name, actor=str(request.user), now=clock.now())

    @admin.display(description="In use")
    def in_use(self, pool: Pool) -> SafeString | str:
        """Each resource of its ready cells, and what is held of it."""
        use: PoolUse = self.loaded(pool)
        names = in_order({*use.capacity, *use.held} - {*pool.tokens})
        rows = [(_title(name), _meter(use, name)) for name in names]
        rows = [row for row in rows if row[1] != NOTHING]
        return (
            small_table(("resource", "held of what its ready cells have"), rows)
            if rows
            else NOTHING
        )

    @admin.display(description="Tokens in use")
    def tokens_in_use(self, pool: Pool) -> SafeString | str:
        """Each token, and how many of it are held."""
        held = self.loaded(pool).held
        rows = [
            (name, meter(name, held.get(name, 0), pool.tokens[name]))
            for name in in_order(pool.tokens)
        ]
        return small_table(("token", "held"), rows) if rows else NOTHING

    @admin.display(description="Waiting")
    def waits_for(self, pool: Pool) -> SafeString | str:
        """How many tasks wait for what."""
        rows = [(waits.tasks, waits.code, waits.text) for waits in self.loaded(pool).waiting]
        columns = ("tasks", "reason", "most frequent message")
        return small_table(columns, rows) if rows else "nothing"


def _title(name: str) -> str:
    return name.removesuffix("_millis").removesuffix("_mib")


def _meter(use: PoolUse, name: str) -> SafeString | str:
    return meter(name, use.held.get(name, 0), use.capacity.get(name) or None)
