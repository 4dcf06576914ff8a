"""Remote backends: models that a server runs, over HTTP."""

HANDLES = {
    "group": {"backend": "ttc.remote.endpoint:Endpoint"},
    "backend": {"openai": "ttc.remote.endpoint:Endpoint"},
    "connect": {"backend": "ttc.remote.backend:RemoteBackend"},
}
