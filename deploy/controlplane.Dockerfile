# The control plane: web, placement, convergence, inbox, callbacks, beat, flower, manage.py and the command.
#   docker build -f deploy/controlplane.Dockerfile -t cellrun/controlplane:local .
# BASE: any image with Python 3.11 or newer and its venv module.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
WORKDIR /opt/cellrun
COPY requirements/run.txt requirements/run.txt
RUN python3 -m venv .venv \
    && .venv/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/run.txt

FROM ${BASE}
RUN useradd --system --uid 10001 --home-dir /var/lib/cellrun --create-home cellrun
WORKDIR /opt/cellrun
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 CELLRUN_HOME=/var/lib/cellrun
COPY --from=packages /opt/cellrun/.venv .venv
COPY manage.py ./
COPY controlplane controlplane
COPY cellrun cellrun
USER cellrun
VOLUME /var/lib/cellrun
