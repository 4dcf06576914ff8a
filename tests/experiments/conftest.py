"""Settings are registered once in a process: what is registered stays, and to do it again takes
longer than to compose a configuration of them."""

from functools import cache

from experiments.runs import schema

schema.register = cache(schema.register)
