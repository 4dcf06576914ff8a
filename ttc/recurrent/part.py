"""Layers that keep a recurrent state of a sequence in place of keys and values."""

HANDLES = {
    "layers": {"recurrent": "ttc.recurrent.search:find_recurrent"},
    "one device": {"recurrent": "ttc.recurrent.least_time_step:why_one_device"},
}
