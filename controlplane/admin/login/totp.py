"""The pages of the second factor: the code at a login, and the setup with recovery codes."""

import base64
import os
from typing import Any

import segno
from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.debug import sensitive_post_parameters
from django.views.generic import FormView

from controlplane import clock
from controlplane.admin.login.form import limited_check
from controlplane.admin.login.pages import StrictPage
from controlplane.admin.login.sessions import (
    PROVIDER,
    SECOND_FACTOR,
    PendingLogin,
    factor_of,
    find_pending_login,
    find_session_user,
    home_of,
    open_session,
    own_path,
)
from controlplane.commands.tenancy.totp import (
    enroll_totp,
    open_key,
    reset_totp,
    seal_key,
    use_code,
)
from controlplane.domain.errors import CellrunError, Conflict
from controlplane.domain.totp import KEY_BYTES, provisioning_uri, readable_key
from controlplane.queries.tenancy.accounts import count_recovery_codes, has_totp

ISSUER = "Cellrun"
"""The name of the entry in authenticator apps."""

WRONG = "The code is wrong, or was used before."
WRONG_CLOCK = "The code is wrong. Check that the clock of the device is right."

_KEY = "totp_key"


class CodeForm(forms.Form):
    """A code."""

    code = forms.CharField(
        label="Code",
        max_length=40,
        widget=forms.TextInput(
            attrs={"autocomplete": "one-time-code", "autofocus": True, "spellcheck": "false"}
        ),
    )


@method_decorator(sensitive_post_parameters(), name="dispatch")
class CodePage(StrictPage, FormView):
    """The second step of a login: a code of the app, or a recovery code."""

    form_class = CodeForm
    template_name = "controlplane/login_code.html"
    login: PendingLogin

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the page of a pending login, or a redirect to the login."""
        found = find_pending_login(request)
        if found is None:
            return HttpResponseRedirect(reverse("admin:login"))
        self.login = found
        return super().dispatch(request, *args, **kwargs)

    def form_valid(self, form: CodeForm) -> HttpResponse:
        """Start the session, or return the page with an error."""
        used = verify_code(self.request, self.login.user, form)
        if used is None:
            return self.form_invalid(form)
        return open_session(
            self.request,
            self.login.user,
            following=self.login.following,
            detail=f"with {used}",
            factor=factor_of(self.login.user),
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(title="Enter a code", name=self.login.user, **kwargs)


@method_decorator(sensitive_post_parameters(), name="dispatch")
class EnrolmentPage(StrictPage, FormView):
    """The setup of a second factor, in a session or, if it is required, before one.

    A user who has one can delete it here with a code of it, and then set up another.
    """

    form_class = CodeForm
    template_name = "controlplane/login_enroll.html"
    login: PendingLogin | None
    user: User

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the page, or a redirect to the login."""
        self.login = find_pending_login(request)
        if self.login is not None:
            self.user = self.login.user
        elif user := find_session_user(request):
            self.user = user
        else:
            return HttpResponseRedirect(f"{reverse('admin:login')}?next={request.path}")
        self.is_enrolled = has_totp(self.user.pk)
        if self.is_enrolled and self.login is not None:
            return HttpResponseRedirect(reverse("totp_code"))
        if self.is_enrolled:
            self.template_name = "controlplane/login_replace.html"
        return super().dispatch(request, *args, **kwargs)

    def form_valid(self, form: CodeForm) -> HttpResponse:
        """Add or delete the second factor, or return the page with an error."""
        if self.is_enrolled:
            return self._delete(form)
        try:
            codes = enroll_totp(
                user=self.user, key=self._key(), code=form.cleaned_data["code"], now=clock.now()
            )
        except Conflict:  # set up in another window
            return HttpResponseRedirect(self.request.path)
        if codes is None:
            form.add_error(
                "code", "The code is wrong. Check that the clock of the device is right."
            )
            return self.form_invalid(form)
        self.request.session.pop(_KEY, None)
        following, factor = home_of(self.user), factor_of(self.user)
        if self.login is not None:
            following = own_path(self.request, self.user, self.login.following)
            detail = "with a new second factor"
            open_session(self.request, self.user, following=following, detail=detail, factor=factor)
        elif self.request.session.get(SECOND_FACTOR) is None:
            self.request.session[SECOND_FACTOR] = factor
        self.template_name = "controlplane/login_recovery.html"
        return self.render_to_response(
            {"title": "Keep your recovery codes", "codes": codes, "following": following}
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the page shows: the new key, or how many recovery codes remain."""
        if self.is_enrolled:
            remaining = count_recovery_codes(self.user.pk)
            return super().get_context_data(
                title="Your second factor",
                remaining=remaining,
                name=self.user,
                home=home_of(self.user),
                **kwargs,
            )
        key = self._key()
        uri = provisioning_uri(key, account=self.user.get_username(), issuer=ISSUER)
        return super().get_context_data(
            title="Set up a second factor",
            name=self.user,
            home=home_of(self.user),
            is_required=self.login is not None,
            picture=draw_qr_code(uri),
            key=readable_key(key),
            **kwargs,
        )

    def _delete(self, form: CodeForm) -> HttpResponse:
        if verify_code(self.request, self.user, form) is None:
            return self.form_invalid(form)
        reset_totp(user=self.user, actor=self.user.get_username(), now=clock.now())
        if self.request.session.get(SECOND_FACTOR) != PROVIDER:
            # The code has confirmed that this session is the user's. All others end.
            self.request.session[SECOND_FACTOR] = None
        return HttpResponseRedirect(self.request.path)

    def _key(self) -> bytes:
        """Return the key of this setup, which only this session knows."""
        session, user_id = self.request.session, self.user.pk
        if _KEY in session and self.request.method == "POST":
            try:
                return open_key(base64.b64decode(session[_KEY]), user_id=user_id)
            except CellrunError:
                pass  # of another user of this browser
        key = os.urandom(KEY_BYTES)
        session[_KEY] = base64.b64encode(seal_key(key, user_id=user_id)).decode()
        return key


def verify_code(request: HttpRequest, user: User, form: CodeForm) -> str | None:
    """Use up the code of the form; return what it was, or None with an error in the form."""
    try:
        with limited_check(request, user.get_username(), "wrong code"):
            used = use_code(user_id=user.pk, code=form.cleaned_data["code"], now=clock.now())
            if used is None:
                raise ValidationError(WRONG)
            return used
    except ValidationError as fault:
        form.add_error(None if fault.code == "throttled" else "code", fault)
    except Conflict as fault:
        form.add_error(None, str(fault))
    return None


def draw_qr_code(text: str) -> SafeString:
    """Return a QR code as SVG in the page; a policy of content may forbid all images."""
    return mark_safe(segno.make(text, error="m", micro=False).svg_inline(scale=4, light="#fff"))
