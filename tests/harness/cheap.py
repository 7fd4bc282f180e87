"""Makes what nearly every test does cheap: the reset of tables, the hash of a password."""

from typing import Any, cast

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connections, transaction
from django.test import TransactionTestCase

KEPT = "django_migrations", "django_content_type", "auth_permission"
"""Tables whose rows the migrations write and no test changes."""

LARGE_BYTES = 1 << 20
"""From this size of a table on, TRUNCATE is cheaper than what its dead rows cost later tests."""

_SIZE = "SELECT max(pg_relation_size(quote_ident(t)::regclass)) FROM unnest(%s::text[]) AS t"

_truncate = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]


def make_tests_cheap() -> None:
    """Empty tables by DELETE after a test that committed, and hash passwords in one round."""
    cast(Any, TransactionTestCase)._fixture_teardown = _empty_tables
    # The algorithm and the format stay; the rounds are Django's and cost half a second.
    PBKDF2PasswordHasher.iterations = 1


def _empty_tables(case: TransactionTestCase) -> None:
    """Empty the tables of the test's databases.

    Django truncates all tables at once, which writes the files of each table and index anew, and
    then restores content types and permissions: 0.2 s of a processor where DELETE takes 0.01 s.
    """
    if case.available_apps is not None or case.serialized_rollback:
        _truncate(case)
        return
    for name in cast(Any, case)._databases_names(include_mirrors=False):
        connection = connections[name]
        tables = connection.introspection.django_table_names(
            only_existing=True, include_views=False
        )
        tables = sorted(set(tables) - set(KEPT))
        with connection.cursor() as cursor:
            cursor.execute(_SIZE, [tables])
            [(largest,)] = cursor.fetchall()
        if largest > LARGE_BYTES:
            _truncate(case)
            return
        with transaction.atomic(using=name), connection.cursor() as cursor:
            # Without foreign keys any order will do; without its trigger the audit log can go.
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute("".join(f'DELETE FROM "{table}";' for table in tables))
