"""One memory for all policies: segments that grow in place, in storages of two tiers."""
