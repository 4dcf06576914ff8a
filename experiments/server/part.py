"""The server: an OpenAI-compatible server of the model and its searches."""

HANDLES = {
    "command": {"serve": "experiments.server.command:main"},
    "settings": {"serve": "experiments.server.settings:ServeConfig"},
}
