"""The laboratory: the project's own benchmarks, the papers' experiments and their records."""

HANDLES = {
    "command": {
        "bench": "experiments.lab.bench.command:main",
        "paper": "experiments.lab.paper.command:main",
        "report": "experiments.lab.report.command:main",
    }
}
