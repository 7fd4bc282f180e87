"""Artifacts that web keeps in an object store: the client follows a redirect, without its token."""

import pytest

from client import Session
from client.errors import Unreachable
from client.settings import ClientSettings
from tests.harness.web import Answer, Request, Web


def test_artifact_is_read_from_the_object_store_without_the_token() -> None:
    with Web() as web, Web() as bucket:
        bucket.files["/bucket/a?X-Amz-Signature=1"] = b"content"
        location = f"{bucket.url}/bucket/a?X-Amz-Signature=1"
        web.route = lambda request: Answer(302, headers={"Location": location})
        with Session(ClientSettings(web.url, "token")) as session:
            assert b"".join(session.read_artifact("1-2", "a")) == b"content"
            [request] = bucket.requests
            assert "Authorization" not in request.headers
            bucket.files.clear()
            with pytest.raises(Unreachable, match="object store answers 404"):
                b"".join(session.read_artifact("1-2", "a"))
            with pytest.raises(Unreachable, match="redirects"):
                session.job(1)


def test_redirect_of_the_object_store_is_not_followed_to_the_api() -> None:
    with Web() as web, Web() as bucket:

        def redirect(request: Request) -> Answer:
            return Answer(302, headers={"Location": f"{web.url}/secret"})

        bucket.route = redirect
        web.route = lambda request: Answer(302, headers={"Location": f"{bucket.url}/bucket/a"})
        with (
            Session(ClientSettings(web.url, "token")) as session,
            pytest.raises(Unreachable, match="302"),
        ):
            b"".join(session.read_artifact("1-2", "a"))
