"""Everything here changes results. All of it is off by default."""
