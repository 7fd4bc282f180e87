"""The pages of the own account, which every user may open: roles, and tokens of the API.

They use the commands and queries of the API's tokens, and show nothing of others.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from urllib.parse import quote

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse, reverse_lazy
from django.views.generic import FormView, TemplateView

from controlplane import clock
from controlplane.admin.account.token_form import OwnTokenForm
from controlplane.admin.badges import core_hours, gib_hours, instant
from controlplane.admin.login.form import OwnPasswordForm
from controlplane.admin.login.pages import StrictPage
from controlplane.admin.login.sessions import has_session
from controlplane.commands.tenancy.accounts import describe_user, record_user
from controlplane.commands.tenancy.tokens import TokenRights, grant_token, revoke_token
from controlplane.domain.errors import Conflict, NotFound, NotPermitted
from controlplane.domain.roles import MAX_TOKEN_PROJECTS, Access, Role
from controlplane.domain.usage import month_of
from controlplane.models import ApiToken
from controlplane.queries.tenancy import accounts
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.tenancy.accounts import Credential, session_credential
from controlplane.queries.tenancy.permissions import may_use_admin
from controlplane.queries.tenancy.projects import list_project_names, list_roles
from controlplane.queries.tenancy.usage import UsageFilter, load_usage_totals

TOKENS_OF_A_PAGE = 50


class AccountView(StrictPage):
    """A page of the user of the session; without a session it leads to the login."""

    user: User
    credential: Credential
    access: Access

    needs_password = False
    """Whether the page does not exist for users without a password."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the page, or a redirect to the login. Raise Http404."""
        if not has_session(request):
            return HttpResponseRedirect(f"{reverse('admin:login')}?next={quote(request.path)}")
        self.user = cast(User, request.user)
        if self.needs_password and not self.user.has_usable_password():
            raise Http404
        self.credential = session_credential(self.user)
        self.access = load_access(self.credential)
        return super().dispatch(request, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token in the list of its user. `limit`: the projects that it is limited to."""

    token: ApiToken
    limit: str
    is_expired: bool

    @property
    def created(self) -> str:
        """Return when it was created."""
        return instant(self.token.created_at)

    @property
    def expires(self) -> str:
        """Return when it expires."""
        return instant(self.token.expires_at) if self.token.expires_at else "never"

    @property
    def used(self) -> str:
        """Return when it was last used, exact to an hour."""
        return instant(self.token.last_used_at) if self.token.last_used_at else "never"


class AccountPage(AccountView, TemplateView):
    """The user's name, roles and tokens, as `GET /whoami` and `GET /tokens` return them."""

    template_name = "controlplane/account.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        before = self._before()
        wanted = accounts.TokenFilter(user_id=self.user.pk)
        readable, limit = self.access.readable, TOKENS_OF_A_PAGE + 1
        tokens = accounts.list_tokens(wanted, readable=readable, before=before, limit=limit)
        shown = tokens[:TOKENS_OF_A_PAGE]
        return super().get_context_data(
            title=self.user.get_username(),
            installation=self.access.on_installation,
            reads_all=self.access.has_open_reading,
            roles=list_roles(self.access),
            tokens=[describe_token(token, now=clock.now()) for token in shown],
            usage=self._usage(),
            is_first=before is None,
            older=shown[-1].pk if len(tokens) > len(shown) else None,
            has_password=self.user.has_usable_password(),
            may_use_admin=may_use_admin(self.user),
            **kwargs,
        )

    def _usage(self) -> dict[str, str] | None:
        """Return what attempts of own jobs requested and used this month; None: there are none."""
        month = month_of(clock.now())
        own = UsageFilter(month, month, by=("user",), user=self.user.get_username())
        rows = load_usage_totals(own)
        if not rows:
            return None
        return {
            "month": f"{month:%Y-%m}",
            "attempts": f"{rows[0]['attempts']:,}",
            "requested": core_hours(rows[0]["requested_cpu_seconds"]),
            "used": core_hours(rows[0]["used_cpu_seconds"]),
            "requested_memory": gib_hours(rows[0]["requested_memory_mib_seconds"]),
            "used_memory": gib_hours(rows[0]["used_memory_mib_seconds"]),
        }

    def _before(self) -> int | None:
        """Return the id of the token before the page; None for the first page."""
        text = self.request.GET.get("before", "")
        is_id = text.isascii() and text.isdigit() and len(text) <= 18
        return int(text) if is_id else None


def describe_token(token: ApiToken, *, now: datetime) -> TokenRow:
    """Return the row of a token. Projects on which the user has no role any more have no name."""
    is_expired = token.expires_at is not None and token.expires_at <= now
    return TokenRow(token=token, limit=_describe_limit(token), is_expired=is_expired)


def _describe_limit(token: ApiToken) -> str:
    if token.projects is None:
        return "all your projects"
    parts = list(token.projects)
    if hidden := token.hidden_projects:
        noun = "project" if hidden == 1 else "projects"
        parts.append(f"{hidden} {noun} without a role of yours")
    return ", ".join(parts)


class TokenCreationPage(AccountView, FormView):
    """The creation of a token, as `POST /tokens` does; the response shows its text once."""

    form_class = OwnTokenForm
    template_name = "controlplane/account_form.html"

    def get_form_kwargs(self) -> dict[str, Any]:
        """Return the arguments of the form: what the user may grant."""
        readable = list_project_names(self.access, limit=MAX_TOKEN_PROJECTS + 1)
        return {**super().get_form_kwargs(), "giver": self.credential.role, "readable": readable}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(title="Create an API token", button="Create", **kwargs)

    def form_valid(self, form: OwnTokenForm) -> HttpResponse:
        """Create the token and return the page with its text, or the form with an error."""
        fields = form.cleaned_data
        projects = frozenset(fields.get("projects") or ()) or None
        try:
            _, clear = grant_token(
                by=self.credential,
                user=self.user,
                name=fields["name"],
                rights=TokenRights(Role(fields["role"]), fields["days"], projects),
                now=clock.now(),
            )
        except Conflict as refusal:
            form.add_error("name", str(refusal))
        except (NotPermitted, NotFound) as refusal:
            form.add_error(None, str(refusal))
        else:
            self.template_name = "controlplane/account_token.html"
            return self.render_to_response(
                {
                    "title": f"Token {fields['name']}",
                    "token": clear,
                    "public_url": settings.CELLRUN.public_url,
                }
            )
        return self.form_invalid(form)


class PasswordPage(AccountView, PasswordChangeView):
    """The form of the own password; users of a provider have none here."""

    form_class = OwnPasswordForm
    template_name = "controlplane/account_form.html"
    title = "Change the password"
    success_url = reverse_lazy("account")
    needs_password = True

    def get_form(self, form_class: Any = None) -> OwnPasswordForm:
        """Return the form, which counts failures for the address of the request."""
        form = cast(OwnPasswordForm, super().get_form(form_class))
        form.request = self.request
        return form

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(button=self.title, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        """Change the password, which ends all other sessions of the user."""
        with transaction.atomic():
            before = describe_user(self.user)
            response = super().form_valid(form)
            record_user(self.user, before, now=clock.now())
        messages.success(self.request, "The password is changed. Other sessions have ended.")
        return response


class TokenRevocationPage(AccountView, TemplateView):
    """The revocation of an own token, as `DELETE /tokens/{id}` does, after a confirmation."""

    template_name = "controlplane/account_revoke.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        token = self._find(kwargs.pop("token_id"))
        row = describe_token(token, now=clock.now())
        return super().get_context_data(title=f"Revoke the token {token.name}?", row=row, **kwargs)

    def post(self, request: HttpRequest, token_id: int) -> HttpResponse:
        """Revoke the token, and return to the account."""
        token = self._find(token_id)
        try:
            revoke_token(token_id=token_id, by=self.credential, now=clock.now())
        except NotFound:  # revoked meanwhile
            raise Http404 from None
        messages.success(request, f"The token {token.name} is revoked.")
        return HttpResponseRedirect(reverse("account"))

    def _find(self, token_id: int) -> ApiToken:
        """Return an own token. Raise Http404, also for one that the user may revoke elsewhere."""
        try:
            token = accounts.get_token(token_id, readable=self.access.readable)
        except NotFound:
            raise Http404 from None
        if token.user_id != self.user.pk:
            raise Http404
        return token
