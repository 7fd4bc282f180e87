"""Give API tokens a role in place of scopes, a unique name for each user, and a last use."""

from typing import Any

from django.db import migrations, models


def set_roles_and_names(apps: Any, schema_editor: Any) -> None:
    """Derive roles from scopes, and number the names that a user has repeatedly."""
    tokens = apps.get_model("controlplane", "ApiToken").objects
    taken: set[tuple[int, str]] = set()
    for token in tokens.order_by("pk"):
        roles = [role for scope, role in _ROLES if scope in token.scopes]
        token.role = roles[0] if roles else "viewer"
        name, number = token.name, 1
        while (token.user_id, token.name) in taken:
            number += 1
            token.name = f"{name[:90]} {number}"
        taken.add((token.user_id, token.name))
        token.save(update_fields=["role", "name"])


_ROLES = (("operate", "operator"), ("submit", "submitter"))


class Migration(migrations.Migration):
    """Tokens: from scopes to roles."""

    dependencies = (("controlplane", "0001_initial"),)

    operations = (
        migrations.AddField(
            "apitoken",
            "role",
            models.CharField(
                choices=[
                    ("viewer", "viewer"),
                    ("submitter", "submitter"),
                    ("operator", "operator"),
                ],
                default="submitter",
                help_text="The most that requests with this token may do; the user's role limits"
                " it too.",
                max_length=16,
            ),
        ),
        migrations.AddField(
            "apitoken",
            "last_used_at",
            models.DateTimeField(
                blank=True,
                help_text="When it was last used; updated at most once an hour.",
                null=True,
            ),
        ),
        migrations.RunPython(set_roles_and_names, migrations.RunPython.noop, elidable=True),
        migrations.RemoveField("apitoken", "scopes"),
        migrations.AddConstraint(
            "apitoken",
            models.UniqueConstraint(fields=("user", "name"), name="token_name_once_per_user"),
        ),
    )
