"""The URLs of the own account."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from controlplane.admin.account.pages import (
    AccountPage,
    PasswordPage,
    TokenCreationPage,
    TokenRevocationPage,
)

urlpatterns = [
    path("", AccountPage.as_view(), name="account"),
    path("logout/", LogoutView.as_view(next_page="admin:login"), name="account_logout"),
    path("password/", PasswordPage.as_view(), name="account_password"),
    path("tokens/new/", TokenCreationPage.as_view(), name="account_new_token"),
    path("tokens/<id:token_id>/revoke/", TokenRevocationPage.as_view(), name="account_revoke"),
]
