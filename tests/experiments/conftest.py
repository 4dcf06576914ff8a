"""Known settings are registered once in a process and not copied for each configuration, which
would take most of the time of composing one."""

from functools import cache

from hydra.core.config_store import ConfigStore

from experiments.runs import schema

schema.register = cache(schema.register)
ConfigStore.__deepcopy__ = lambda store, _: store
