"""Write the documentation pages and the client's types that are generated from the code.

Run it by `python -m docgen.generate` or `make docs`; a test checks that the committed files are
current.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from controlplane.domain.integrity import render_document
from docgen import (
    benchmark_pages,
    client_documents,
    grafana_dashboard,
    metrics_page,
    placement_page,
    prometheus_rules,
    query_plans_page,
    scenarios_page,
    settings_page,
    states_page,
    states_picture,
)

FOLDER = Path(__file__).parents[1] / "docs"

PAGES: Mapping[str, Callable[[], str]] = {
    "states.md": states_page.write,
    "images/states.svg": states_picture.draw,
    "images/job.svg": states_picture.draw_job,
    "scenarios.md": scenarios_page.write,
    "settings.md": settings_page.write,
    "placement.md": placement_page.write,
    "invariants.md": render_document,
    "metrics.md": metrics_page.write,
    "benchmarks.md": benchmark_pages.write_page,
    "benchmark-results.md": benchmark_pages.write_results,
    "query-plans.md": query_plans_page.write,
    **benchmark_pages.list_plots(),
    "../deploy/grafana/cellrun.json": grafana_dashboard.write,
    "../deploy/prometheus/cellrun.rules.yaml": prometheus_rules.write,
    "../cellrun/documents/__init__.py": client_documents.write_package,
    **{
        f"../cellrun/documents/{module}.py": partial(client_documents.write_module, module)
        for module in client_documents.MODULES
    },
}


def main() -> int:
    """Write every file that has changed."""
    for name, write in PAGES.items():
        path, text = FOLDER / name, write()
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"{path.resolve()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
