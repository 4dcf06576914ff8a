"""Features drawn at random and used together, compared with each problem alone: its texts, tree,
scores and choice with all KV on the device, no cache, and one problem at a time.

A `Combination` is one draw. Its defaults are the plainest way to solve, so that what differs from
them is what a failure needs; `fewest` looks for the fewest such settings. Models run in float64,
where rounding was not seen to change a sample. Compiled ones run in float32, where it changes one
now and then: such a draw has failed if others of its settings fail too.
"""
