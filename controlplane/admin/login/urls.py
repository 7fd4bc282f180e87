"""The URLs of logins, which come before those of the admin."""

from django.urls import path

from controlplane.admin.login import oidc
from controlplane.admin.login.pages import LoginPage
from controlplane.admin.login.totp import CodePage, EnrolmentPage

urlpatterns = [
    path("", LoginPage.as_view(), name="login"),
    path("code/", CodePage.as_view(), name="totp_code"),
    path("second-factor/", EnrolmentPage.as_view(), name="totp_enroll"),
    path("oidc/", oidc.start, name="oidc_start"),
    path("oidc/callback/", oidc.callback, name="oidc_callback"),
]
