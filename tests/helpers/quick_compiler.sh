#!/bin/sh
# The compiler that COMPILER names, with few optimisations.
exec "$COMPILER" "$@" -O1
