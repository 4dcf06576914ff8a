"""Integrations: lm-evaluation-harness, Inspect and Ray."""

HANDLES = {
    "command": {
        "lm_eval": "experiments.integrations.lm_eval:main",
        "on_ray": "experiments.integrations.on_ray:main",
    }
}
