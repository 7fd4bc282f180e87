"""The pages before a session: each works without scripts and under a strict policy of content."""

from typing import Any, cast

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from controlplane.admin.login.form import LoginForm

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
        return response


class LoginPage(StrictPage, LoginView):
    """The login with name and password, with a link to the OpenID provider if there is one."""

    authentication_form = LoginForm
    template_name = "controlplane/login.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the page, or redirect a user who is logged in to the admin."""
        if admin.site.has_permission(request):
            return HttpResponseRedirect(reverse("admin:index"))
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the page needs: `next`, and whether there is a provider."""
        return super().get_context_data(
            has_oidc=settings.CELLRUN.has_oidc,
            other_user=self.request.user.get_username(),
            **kwargs,
        )
