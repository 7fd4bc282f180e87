# One cell: the workers and the words on the wire. No Django, no database driver, no client.
#   docker build -f deploy/cell.Dockerfile -t cellrun/cell:local .
# BASE: any image with Python 3.11 or newer and its venv module.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
WORKDIR /opt/cellrun
COPY requirements/cell.txt requirements/cell.txt
RUN python3 -m venv .venv \
    && .venv/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/cell.txt

FROM ${BASE}
RUN useradd --system --uid 10001 --home-dir /var/lib/cellrun --create-home cellrun
WORKDIR /opt/cellrun
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=packages /opt/cellrun/.venv .venv
COPY controlplane/__init__.py controlplane/__init__.py
COPY controlplane/contract controlplane/contract
COPY workers workers
USER cellrun
CMD ["/opt/cellrun/.venv/bin/python", "-m", "workers"]
