"""Generate docs/metrics.md: every metric with its labels and meaning, and how to use them."""

from controlplane.domain.metrics import LABELS, METRICS
from docgen.prometheus_rules import OWN_RULES
from docgen.tables import table

_HEAD = """# Metrics

`GET /metrics` of web serves these metrics in the text format of Prometheus. All are gauges, read
from the database at the time of the request: each web process serves the same values, so
aggregate over several with `max`, not with `sum`. The cost of a request does not depend on
finished work.

The names, labels and units are stable. A later version may add metrics, values of labels and
kinds of alerts; it removes or renames none of these without an entry in the changelog.

A sample of a pool is written by convergence every 15 seconds
([samples](operations.md#monitoring)).

"""

_USE = """

## Scrape

Without a token, `/metrics` answers to the networks in `CELLRUN_METRICS_NETWORKS`, by default only
to its own host. Elsewhere, give Prometheus the token of a user who is an [auditor](projects.md)
or an operator. Name the job `cellrun`, as the rules expect:

```yaml
rule_files: [/etc/prometheus/rules/cellrun.rules.yaml]
scrape_configs:
  - job_name: cellrun
    scrape_interval: 15s
    authorization: {credentials_file: /etc/prometheus/cellrun.token}
    static_configs: [{targets: ["cellrun.example.com:8000"]}]
```

Flower has a `/metrics` of its own, about Celery's workers, behind its login.

## Alert rules

[`cellrun.rules.yaml`](../deploy/prometheus/cellrun.rules.yaml) is generated from the kinds of
alerts: each kind has a rule, which fires while such an alert is open, with the texts of
[troubleshooting](troubleshooting.md#alerts). The label `severity` is `critical` if work stops or
may be lost, `info` if nothing must be done soon, and `warning` otherwise. Further rules do not
need the control plane itself:

{rules}

A rule cannot name the subject of an alert (the cell, the pool, the job): the page "Alerts" of the
admin does.

## Dashboard

[`cellrun.json`](../deploy/grafana/cellrun.json) is a dashboard for Grafana 11 and newer. Import
it ("Dashboards", "New", "Import"), or [provision it](../deploy/README.md#prometheus-and-grafana).
The import selects the data source; a variable selects pools.

## Autoscaling

`cellrun_pool_wanted` is the amount of each resource with which a pool could run all its work now:
what attempts hold, and what waiting tasks need which more cells could run. These are tasks that
could start now, and that wait because

* no cell has enough free capacity, or prepares fewer containers than it may;
* their gang does not fit as a whole;
* the pool has no ready cell;
* placement has not considered them yet.

Tasks do not count if they are held, back off, wait for a dependency, a start time, an identical
task, a quota or limited tokens, match no ready cell, or are larger than every cell. At most
20,000 tasks of one shape (equal requirements) count. A pool without work has the value 0 for
`cpu_millis` and `memory_mib`, so that an autoscaler can end all of its cells.

The number of cells that a pool needs is its wanted amount divided by the amount of one cell,
rounded up: for the resource of which it is the largest. With KEDA, for cells of 8 cores and 32
GiB in a Deployment:

```yaml
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: cells-of-gpu}
spec:
  scaleTargetRef: {name: cells-of-gpu}
  minReplicaCount: 0
  maxReplicaCount: 20
  triggers:                                 # KEDA takes the largest of the two
    - type: prometheus
      metadata:
        serverAddress: http://prometheus:9090
        query: max(cellrun_pool_wanted{pool="gpu",resource="cpu_millis"})
        threshold: "8000"
        ignoreNullValues: "false"           # without a sample, the number of cells stays
    - type: prometheus
      metadata:
        serverAddress: http://prometheus:9090
        query: max(cellrun_pool_wanted{pool="gpu",resource="memory_mib"})
        threshold: "32768"
        ignoreNullValues: "false"
```

A HorizontalPodAutoscaler does the same with an external metric and `target: {type:
AverageValue}`. Keep in mind:

* Tasks of different sizes leave gaps on cells: wanted capacity is a lower bound. Tasks for which
  the gaps do not suffice stay in the value, so the autoscaler adds a cell for them only if its
  threshold is below the capacity of a cell, such as 90 percent of it.
* Quotas and limited tokens count once they are used up: a large job of a user with a small quota
  first counts as a whole. Set `maxReplicaCount`.
* Before it ends a cell, the autoscaler should [drain it](operations.md#drain-a-cell): a cell that
  stops with `CELLRUN_CELL_EVACUATE=true` requeues its tasks, which are retried elsewhere. A long
  stabilization window avoids that.
* While convergence does not run, the value stays that of the last sample; the alert
  `CellrunConvergenceLate` is open then.
"""


def write() -> str:
    """Return the page."""
    metrics = table(
        ("metric", "type", "labels", "meaning"),
        (
            (
                f"`{name}`",
                "gauge",
                ", ".join(f"`{label}`" for label in metric.labels),
                f"{metric.meaning} {metric.notes}".strip(),
            )
            for name, metric in METRICS.items()
        ),
    )
    labels = table(("label", "values"), ((f"`{name}`", text) for name, text in LABELS.items()))
    rules = table(
        ("rule", "severity", "meaning"),
        ((f"`{rule.name}`", rule.severity, rule.summary) for rule in OWN_RULES),
    )
    text = f"{_HEAD}{metrics}\n\n## Labels\n\n{labels}{_USE}"
    return text.replace("{rules}", rules)
