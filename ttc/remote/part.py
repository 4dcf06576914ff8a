"""Remote backends: models that a server runs, over HTTP."""

HANDLES = {
    "backend": {"openai": "ttc.remote.endpoint:Endpoint"},
    "connect": {"backend": "ttc.remote.backend:RemoteBackend"},
}
