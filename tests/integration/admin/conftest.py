"""What the tests of the operators' pages share: an installation with rows, and browsers."""

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.integration.admin.rows import make_installation


@pytest.fixture
def installation(db: None) -> None:
    """One of everything that has a page."""
    make_installation()


@pytest.fixture
def operator(installation: None) -> Client:
    """A browser in which an operator is logged in."""
    return _browser_of(User.objects.create_superuser("olga", password="x"))


@pytest.fixture
def onlooker(installation: None) -> Client:
    """Return a browser of a user who may read everything and change nothing."""
    user = User.objects.create_user("otto", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    return _browser_of(user)


def _browser_of(user: User) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser
