"""Recipes: published figures, made again, and ProcessBench."""

HANDLES = {
    "command": {
        "published": "experiments.recipes.published.command:main",
        "processbench": "experiments.recipes.processbench.command:main",
    },
    "settings": {
        "processbench": "experiments.recipes.processbench.settings:ProcessBenchConfig",
    },
}
