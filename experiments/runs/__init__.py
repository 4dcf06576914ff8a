"""One run of a search over a data set: its settings, data, records and figures."""
