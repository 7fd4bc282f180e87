"""Endpoint that forecasts the placement of a job without changing anything."""

from dataclasses import asdict

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, caller_of
from controlplane.api.requests import Parameters, read_body
from controlplane.api.responses import answer
from controlplane.commands.jobs.dry_run import dry_run
from controlplane.spec import parse_job


class JobDryRun(ApiView):
    """Where a job would go."""

    @openapi.describe(
        "dry_run_job",
        body="JobDocument",
        answers={200: openapi.ref("DryRun")},
        problems=(400, 403, 409, 413, 415, 422),
    )
    def post(self, request: Request) -> HttpResponse:
        """Forecast where a job would be placed, or why it would wait or be refused."""
        Parameters(request)
        body = read_body(request)
        found = dry_run(spec=parse_job(body), body=body, owner=caller_of(request), now=clock.now())
        return answer(asdict(found))
