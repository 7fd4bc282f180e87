"""Give the constraints of memberships messages that forms show."""

from django.conf import settings
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = (
        ("auth", "0012_alter_user_first_name_max_length"),
        ("controlplane", "0013_pool_limits"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    )

    operations = (
        migrations.AlterConstraint(
            model_name="membership",
            name="membership_of_user_or_group",
            constraint=models.CheckConstraint(
                condition=Q(user=None) ^ Q(group=None),
                name="membership_of_user_or_group",
                violation_error_message="Choose a user or a group, and not both.",
            ),
        ),
        migrations.AlterConstraint(
            model_name="membership",
            name="membership_on_one_scope",
            constraint=models.CheckConstraint(
                condition=Q(domain=None, project=None, role="auditor")
                | (~Q(role="auditor") & (Q(domain=None) ^ Q(project=None))),
                name="membership_on_one_scope",
                violation_error_message="Choose a project or a domain, and not both; for an"
                " auditor neither.",
            ),
        ),
        migrations.AlterConstraint(
            model_name="membership",
            name="membership_once_per_scope",
            constraint=models.UniqueConstraint(
                fields=("user", "group", "domain", "project"),
                name="membership_once_per_scope",
                nulls_distinct=False,
                violation_error_message="This member has a role there already: change that role.",
            ),
        ),
    )
