"""The pages before a session: each works without scripts and under a strict policy of content."""

from typing import Any, cast

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.cache import add_never_cache_headers

from controlplane.admin.login.form import LoginForm
from controlplane.admin.login.sessions import begin_second_step, has_permission, open_session
from controlplane.queries.tenancy.permissions import may_log_in

POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
"""Styles of this site, forms to this site, and nothing else."""


class StrictPage:
    """A view whose pages contain no scripts, images, inline styles or frames."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the response with the policy."""
        response = cast(HttpResponse, super().dispatch(request, *args, **kwargs))  # type: ignore[misc]
        response["Content-Security-Policy"] = POLICY
        response["Referrer-Policy"] = "same-origin"
        add_never_cache_headers(response)
        return response


class LoginPage(StrictPage, LoginView):
    """The login with name and password, with a link to the OpenID provider if there is one."""

    authentication_form = LoginForm
    template_name = "controlplane/login.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the page, or redirect a user who is logged in to the admin."""
        if has_permission(request):
            return HttpResponseRedirect(reverse("admin:index"))
        user = request.user
        if isinstance(user, User) and may_log_in(user):  # only the second factor is missing
            following = self.get_redirect_url()
            if answer := begin_second_step(request, user, following=following):
                return answer
        return super().get(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Start the session of the user, or continue with the second factor."""
        user, following = form.get_user(), self.get_success_url()
        answer = begin_second_step(self.request, user, following=following)
        return answer or open_session(self.request, user, following=following, has_factor=False)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Return whether there is a provider, and the user that may not use the admin."""
        return super().get_context_data(
            title="Log in",
            has_oidc=settings.CELLRUN.has_oidc,
            refused_user="" if has_permission(self.request) else self.request.user.get_username(),
            **kwargs,
        )
