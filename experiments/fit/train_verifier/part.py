"""Training: a verifier is trained on the model's own solutions."""

HANDLES = {
    "command": {"train_verifier": "experiments.fit.train_verifier.command:main"},
    "settings": {"train": "experiments.fit.train_verifier.settings:TrainConfig"},
}
