"""Pages without scripts, under a strict policy of content: the login is the first of them."""

from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.cache import add_never_cache_headers

from controlplane.admin.login.form import LoginForm
from controlplane.admin.login.sessions import (
    begin_second_step,
    find_session_user,
    has_session,
    home_of,
    is_page_of_admin,
    open_session,
)
from controlplane.queries.tenancy.permissions import may_use_admin

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
        """Return the page, or redirect a user with a session to the first page."""
        user, following = find_session_user(request), self.get_redirect_url()
        if user is None:
            return super().get(request, *args, **kwargs)
        if has_session(request):
            is_refused = is_page_of_admin(following) and following != reverse("admin:index")
            if is_refused and not may_use_admin(user):
                messages.error(request, f"{user} has no access to the admin.")
            return HttpResponseRedirect(home_of(user))
        answer = begin_second_step(request, user, following=following)
        return answer or super().get(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Start the session of the user, or continue with the second factor."""
        user, following = form.get_user(), self.get_success_url()
        answer = begin_second_step(self.request, user, following=following)
        return answer or open_session(self.request, user, following=following, factor=None)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Return whether there is a provider."""
        return super().get_context_data(
            title="Log in",
            has_oidc=settings.CELLRUN.has_oidc,
            **kwargs,
        )
