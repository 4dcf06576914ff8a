"""Sums, products and powers of matrices in the trees of `ttc.text.formulas`."""

from __future__ import annotations

from ttc.text.formulas import Expr, changed, nodes

MOST_NODES = 20_000
"""Larger results are left as they are written: a product's parts are repeated in each entry."""

_NO_NUMBERS = ("list", "set", "brackets", "union", "minus", "relation", "dots")


def worked_out(tree: Expr) -> Expr:
    """A tree in which each sum, product or power of matrices is the matrix that it gives."""
    tree = changed(tree, worked_out)
    parts = tree[1:]
    if tree[0] == "+" and all(part[0] == "matrix" for part in parts):
        return _sum(parts) or tree
    if tree[0] == "neg" and parts[0][0] == "matrix":
        return _times(("num", "-1"), parts[0]) or tree
    if tree[0] == "/" and parts[0][0] == "matrix":
        return _times(("/", ("num", "1"), parts[1]), parts[0]) or tree
    if tree[0] == "^" and parts[0][0] == "matrix" and parts[1][0] == "num":
        exponent = parts[1][1]
        return (_product((parts[0],) * int(exponent)) if exponent in "23456" else None) or tree
    if tree[0] == "*" and any(part[0] == "matrix" for part in parts):
        return _product(parts) or tree
    return tree


def _sum(matrices: tuple[Expr, ...]) -> Expr | None:
    shapes = {tuple(map(len, matrix[1:])) for matrix in matrices}
    if len(shapes) > 1 or sum(map(_nodes, matrices)) > MOST_NODES:
        return None
    rows = zip(*(matrix[1:] for matrix in matrices), strict=True)
    return ("matrix", *(tuple(("+", *entry) for entry in zip(*row, strict=True)) for row in rows))


def _product(factors: tuple[Expr, ...]) -> Expr | None:
    product: Expr | None = factors[0]
    for factor in factors[1:]:
        product = None if product is None else _times(product, factor)
    return product


def _times(left: Expr, right: Expr) -> Expr | None:
    """The product of two matrices, or of a matrix and a number."""
    if right[0] != "matrix":
        left, right = right, left
    if right[0] != "matrix":
        return ("*", left, right)
    if left[0] in _NO_NUMBERS:
        return None
    rows, columns = left[1:], list(zip(*right[1:], strict=False))
    if left[0] != "matrix":
        if _nodes(left) * len(right) * len(columns) + _nodes(right) > MOST_NODES:
            return None
        return ("matrix", *(tuple(("*", left, entry) for entry in row) for row in right[1:]))
    fits = {len(row) for row in rows} == {len(right) - 1}
    even = len({len(row) for row in right[1:]}) == 1
    if not fits or not even:
        return None
    if _nodes(left) * len(columns) + _nodes(right) * len(rows) > MOST_NODES:
        return None

    def entry(row: Expr, column: Expr) -> Expr:
        return ("+", *(("*", *pair) for pair in zip(row, column, strict=True)))

    return ("matrix", *(tuple(entry(row, column) for column in columns) for row in rows))


def _nodes(tree: Expr) -> int:
    return sum(1 for _ in nodes(tree))
