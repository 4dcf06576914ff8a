"""Running searches over data sets, and measuring them."""

from experiments.own_packages import check

check()
