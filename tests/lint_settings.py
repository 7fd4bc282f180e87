"""Settings for programs that only read the code: they use no database and no broker."""

import os

os.environ.setdefault("CELLRUN_SECRET_KEY", "only-for-linters-" * 3)
os.environ.setdefault("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
os.environ.setdefault("CELERY_BROKER_URL", "redis://127.0.0.1:1/0")

from controlplane.config.settings import *  # noqa: F403  (the environment comes first)
