"""Pages about finished runs: their trees, and leaderboards."""

HANDLES = {
    "command": {
        "view": "experiments.pages.view.command:main",
        "leaderboard": "experiments.pages.leaderboard.command:main",
    }
}
