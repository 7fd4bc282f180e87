"""The URLs of the web process."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularSwaggerSplitView

from controlplane.admin.work.palette import show_palette
from controlplane.api.description.served import Description
from controlplane.api.operators import health, metrics

# Here and not at app setup, since workers serve no pages.
admin.autodiscover()

urlpatterns = [
    path("", RedirectView.as_view(url="/admin/")),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.Metrics.as_view()),
    path("api/v1/", include("controlplane.api.urls")),
    path("api/schema/", Description.as_view(), name="schema"),
    path("account/", include("controlplane.admin.account.urls")),
    path("admin/login/", include("controlplane.admin.login.urls")),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
    # The admin's own form would check the present password without a limit.
    path("admin/password_change/", RedirectView.as_view(pattern_name="account_password")),
    path("admin/search/", admin.site.admin_view(show_palette)),
    path("admin/", admin.site.urls),
]
