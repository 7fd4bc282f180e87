"""The URLs of logins, which come before those of the admin."""

from django.urls import path

from controlplane.admin.login import oidc
from controlplane.admin.login.pages import LoginPage

urlpatterns = [
    path("", LoginPage.as_view(), name="login"),
    path("oidc/", oidc.start, name="oidc_start"),
    path("oidc/callback/", oidc.callback, name="oidc_callback"),
]
