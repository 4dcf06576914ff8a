"""Layers that keep a recurrent state: linear attention, state spaces and convolutions."""
