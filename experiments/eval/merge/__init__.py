"""`python -m experiments.merge OUT [SHARD ...]`: the shards of a run as one run."""
