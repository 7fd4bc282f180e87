"""Tokens have a role, an end and a last use; a revoked one is refused at once."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane import clock
from controlplane.commands.tenancy.tokens import (
    TokenRights,
    create_api_token,
    digest_of,
    grant_token,
)
from controlplane.domain.errors import NotFound, NotPermitted
from controlplane.domain.roles import Role
from controlplane.models import ApiToken, AuditLine
from controlplane.queries.tenancy.accounts import find_credential, session_credential
from tests.harness.members import admit
from tests.integration.api.conftest import Caller, check_described, make_caller

JOB = {"name": "sweep", "image": "busybox", "command": ["true"]}


def grant(caller: Caller, **body: Any) -> Any:
    """The document of a new token."""
    answer = caller.post("/tokens", {"name": "laptop", **body})
    assert answer.status == 201, answer.json
    return answer.json


def test_new_token_works_for_its_user_for_ninety_days(submitter: Caller) -> None:
    made = grant(submitter)
    check_described("GrantedToken", made)
    row = ApiToken.objects.get(pk=made["id"])
    assert row.expires_at is not None
    assert row.expires_at - row.created_at == timedelta(days=90)
    assert row.digest == digest_of(made["token"])
    caller = Caller(made["token"])
    assert caller.post("/jobs", JOB).status == 201
    whoami = caller.get("/whoami").json
    check_described("Whoami", whoami)
    assert (whoami["user"], whoami["role"], whoami["token"]["name"]) == (
        "ann",
        "submitter",
        "laptop",
    )


def test_value_is_in_the_first_response_only(submitter: Caller) -> None:
    made = grant(submitter)
    for path in ("/tokens", "/whoami"):
        answer = submitter.get(path)
        assert answer.status == 200
        assert made["token"].encode() not in answer.content
        assert digest_of(made["token"]).encode() not in answer.content


def test_viewer_token_of_a_submitter_reads_only(submitter: Caller) -> None:
    job = submitter.post("/jobs", JOB).json
    reader = Caller(grant(submitter, role="viewer")["token"])
    assert reader.get(f"/jobs/{job['id']}").status == 200
    assert reader.post("/jobs", JOB).status == 403
    assert reader.post(f"/jobs/{job['id']}/cancel", {}).status == 403
    assert reader.post("/tokens", {"name": "more"}).status == 403


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"role": "operator"}, "cannot create one with the role operator"),
        ({"expires_in_days": 366}, "at most 365 days"),
    ],
)
def test_submitter_cannot_grant_more_than_the_own_token(
    submitter: Caller, body: dict[str, Any], expected: str
) -> None:
    answer = submitter.post("/tokens", {"name": "laptop", **body})
    assert answer.status == 403
    assert expected in answer.json["detail"]
    assert not ApiToken.objects.filter(name="laptop").exists()


@pytest.mark.parametrize(
    ("role", "status"), [(Role.VIEWER, 403), (Role.SUBMITTER, 404), (Role.MANAGER, 404)]
)
def test_token_for_another_user_does_not_reveal_whether_the_user_exists(
    role: Role, status: int
) -> None:
    caller = make_caller("ann", role)
    make_caller("bob")
    for rights in ({}, {"role": "operator"}, {"expires_in_days": 366}):
        body: dict[str, Any] = {"name": "x", **rights}
        found = caller.post("/tokens", {**body, "user": "bob"})
        missing = caller.post("/tokens", {**body, "user": "eve"})
        assert (found.status, missing.status) == (status, status)
        assert found.json["detail"].replace("bob", "eve") == missing.json["detail"]
    assert not ApiToken.objects.filter(name="x").exists()


def test_operator_grants_tokens_to_others_with_a_longer_life(operator: Caller) -> None:
    make_caller("bob")
    made = grant(operator, user="bob", expires_in_days=1000)
    assert made["user"] == "bob"
    assert Caller(made["token"]).get("/whoami").json["user"] == "bob"
    refused = operator.post("/tokens", {"name": "x", "user": "bob", "role": "operator"})
    assert (refused.status, refused.json["detail"]) == (
        403,
        "the token cannot have the role operator: its user is no operator",
    )
    assert operator.post("/tokens", {"name": "x", "user": "carl"}).status == 404
    assert operator.post("/tokens", {"name": "x", "expires_in_days": 3651}).status == 422


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "x", "role": "root"}, "role"),
        ({"name": "x", "expires_in_days": 0}, "expires_in_days"),
        ({"name": "x", "scopes": ["submit"]}, "scopes"),
    ],
)
def test_malformed_request_names_the_field(
    submitter: Caller, body: dict[str, Any], field: str
) -> None:
    answer = submitter.post("/tokens", body)
    assert answer.status == 422
    assert list(answer.faults) == [field]


def test_second_token_of_a_name_is_a_conflict(submitter: Caller) -> None:
    grant(submitter)
    answer = submitter.post("/tokens", {"name": "laptop"})
    assert (answer.status, answer.json["detail"]) == (
        409,
        "ann has a token with the name laptop already",
    )


def test_revoked_token_is_refused_and_its_name_is_free_again(submitter: Caller) -> None:
    made = grant(submitter)
    caller = Caller(made["token"])
    assert caller.get("/jobs").status == 200
    assert submitter.send("DELETE", f"/tokens/{made['id']}").status == 204
    assert caller.get("/jobs").status == 401
    assert submitter.send("DELETE", f"/tokens/{made['id']}").status == 404
    grant(submitter)


def test_token_that_is_revoked_during_a_request_creates_no_other(submitter: Caller) -> None:
    stolen = grant(submitter)
    thief = find_credential(digest_of(stolen["token"]), now=clock.now())
    assert thief is not None
    assert submitter.send("DELETE", f"/tokens/{stolen['id']}").status == 204
    rights = TokenRights(Role.SUBMITTER, 90)
    with pytest.raises(NotPermitted, match="has been revoked"):
        grant_token(by=thief, user=thief.user, name="more", rights=rights, now=clock.now())
    assert not ApiToken.objects.filter(name="more").exists()


def test_user_deactivated_during_a_request_gets_no_token(operator: Caller) -> None:
    """A token would be valid as soon as the user, or service account, is active again."""
    assert operator.put("/users/robot", {}).status == 201
    by, robot = session_credential(operator.user), User.objects.get(username="robot")
    assert operator.put("/users/robot", {"active": False}).status == 200
    rights = TokenRights(Role.SUBMITTER, 90)
    with pytest.raises(NotFound):
        grant_token(by=by, user=robot, name="more", rights=rights, now=clock.now())
    assert not ApiToken.objects.filter(user=robot).exists()


def test_token_may_revoke_itself(submitter: Caller) -> None:
    own = submitter.get("/whoami").json["token"]["id"]
    assert submitter.send("DELETE", f"/tokens/{own}").status == 204
    assert submitter.get("/whoami").status == 401


def test_users_see_and_revoke_their_own_tokens_only(submitter: Caller, operator: Caller) -> None:
    bob = make_caller("bob", Role.SUBMITTER)
    made = grant(bob)
    listed = submitter.get("/tokens").json["results"]
    assert {token["user"] for token in listed} == {"ann"}
    for token in listed:
        check_described("Token", token)
    assert submitter.get("/tokens?user=bob").status == 404
    assert submitter.send("DELETE", f"/tokens/{made['id']}").status == 404
    assert {token["user"] for token in operator.get("/tokens").json["results"]} == {
        "ann",
        "bob",
        "olga",
    }
    assert [token["name"] for token in operator.get("/tokens?user=bob").json["results"]] == [
        "laptop",
        "test",
    ]
    assert operator.send("DELETE", f"/tokens/{made['id']}").status == 204
    assert Caller(made["token"]).get("/jobs").status == 401


def test_pages_of_tokens_are_complete(submitter: Caller) -> None:
    for number in range(5):
        grant(submitter, name=f"n{number}")
    names, path = [], "/tokens?limit=2"
    while path:
        page = submitter.get(path).json
        names += [token["name"] for token in page["results"]]
        path = page["next"]
    assert names == ["n4", "n3", "n2", "n1", "n0", "test"]


def test_last_use_is_exact_to_an_hour(submitter: Caller) -> None:
    caller = Caller(grant(submitter)["token"])
    token = ApiToken.objects.get(name="laptop")
    assert token.last_used_at is None
    caller.get("/jobs")
    token.refresh_from_db()
    first = token.last_used_at
    assert first is not None
    caller.get("/jobs")
    token.refresh_from_db()
    assert token.last_used_at == first
    earlier = clock.now() - timedelta(minutes=61)
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=earlier)
    caller.get("/jobs")
    token.refresh_from_db()
    assert token.last_used_at is not None
    assert token.last_used_at >= first


def test_operator_token_of_a_demoted_user_has_only_the_roles_of_a_member(
    operator: Caller,
) -> None:
    User.objects.filter(username="olga").update(is_superuser=False)
    assert operator.get("/users").status == 403
    assert operator.post("/jobs", JOB).status == 422
    assert operator.user is not None
    admit(operator.user, Role.SUBMITTER)
    assert operator.post("/jobs", JOB).status == 201
    assert operator.put("/pools/default", {}).status == 403


def test_creation_and_revocation_are_audited_with_the_token_that_did_it(operator: Caller) -> None:
    make_caller("bob")
    made = grant(operator, user="bob", role="viewer")
    operator.send("DELETE", f"/tokens/{made['id']}")
    lines = AuditLine.objects.filter(subject="token laptop of bob").order_by("pk")
    for line, action in zip(lines, ("create.token", "revoke.token"), strict=True):
        assert (line.actor, line.action, line.via, line.token) == ("olga", action, "token", "test")
        facts = line.after if action == "create.token" else line.before
        assert facts["role"] == "viewer"
        assert made["token"] not in str(vars(line))


def test_operator_creates_and_deactivates_users(operator: Caller) -> None:
    answer = operator.put("/users/ci@build", {})
    assert answer.status == 201
    check_described("User", answer.json)
    assert not User.objects.get(username="ci@build").has_usable_password()
    token = grant(operator, user="ci@build")["token"]
    assert Caller(token).get("/jobs").status == 200
    assert operator.put("/users/ci@build", {"active": False}).status == 200
    assert Caller(token).get("/jobs").status == 401
    assert operator.post("/tokens", {"name": "y", "user": "ci@build"}).status == 404
    assert operator.put("/users/ci@build", {}).json["active"] is True
    assert Caller(token).get("/jobs").status == 200
    subjects = AuditLine.objects.filter(subject="user ci@build").order_by("pk")
    assert [line.action for line in subjects] == ["create.user", "change.user", "change.user"]
    assert [line.after["is_active"] for line in subjects] == [True, False, True]


def test_writing_a_user_changes_nothing_else(operator: Caller) -> None:
    before = User.objects.get(username="olga")
    assert operator.put("/users/olga", {"active": True}).status == 200
    after = User.objects.get(username="olga")
    assert (after.is_superuser, after.password) == (True, before.password)
    refused = operator.put("/users/olga", {"active": False})
    assert (refused.status, refused.json["detail"]) == (
        409,
        "operators cannot deactivate their own account",
    )


def test_users_are_for_operators(submitter: Caller) -> None:
    for answer in (
        submitter.get("/users"),
        submitter.get("/users/ann"),
        submitter.put("/users/eve", {}),
    ):
        assert answer.status == 403
    assert not User.objects.filter(username="eve").exists()


def test_given_token_of_a_restarted_stack_replaces_itself(submitter: Caller) -> None:
    for _ in range(2):
        create_api_token(
            user=submitter.user,
            name="bootstrap",
            role=Role.SUBMITTER,
            now=clock.now(),
            token="s" * 40,
        )
    assert Caller("s" * 40).get("/jobs").status == 200
