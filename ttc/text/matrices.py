"""Sums, products and powers of matrices in the trees of `ttc.text.formulas`."""

from __future__ import annotations

from collections.abc import Callable

from ttc.text.formulas import Expr, changed, nodes

MOST_NODES = 20_000
"""Larger results are left as they are written: a product's parts are repeated in each entry."""

_NO_NUMBERS = ("list", "set", "brackets", "union", "minus", "relation", "dots")


def worked_out(tree: Expr) -> Expr:
    """A tree in which each sum, product or power of matrices is the matrix that it gives."""
    tree = changed(tree, worked_out)
    work = _OPERATIONS.get(tree[0])
    if work is None or not any(map(_is_matrix, tree[1:])):
        return tree
    return work(*tree[1:]) or tree


def _is_matrix(tree: Expr) -> bool:
    return bool(tree[0] == "matrix")


def _sum(*terms: Expr) -> Expr | None:
    shapes = {tuple(map(len, term[1:])) if _is_matrix(term) else None for term in terms}
    if len(shapes) > 1 or sum(map(_nodes, terms)) > MOST_NODES:
        return None
    rows = zip(*(matrix[1:] for matrix in terms), strict=True)
    return ("matrix", *(tuple(("+", *entry) for entry in zip(*row, strict=True)) for row in rows))


def _power(base: Expr, exponent: Expr) -> Expr | None:
    times = int(exponent[1]) if exponent[0] == "num" and exponent[1] in "23456" else 0
    return _product(*[base] * times) if times and _is_matrix(base) else None


def _product(*factors: Expr) -> Expr | None:
    product: Expr | None = factors[0]
    for factor in factors[1:]:
        product = None if product is None else _times(product, factor)
    return product


def _times(left: Expr, right: Expr) -> Expr | None:
    if _is_matrix(left) and _is_matrix(right):
        return _product_of_two(left, right)
    if _is_matrix(left):
        left, right = right, left
    return _scaled(left, right) if _is_matrix(right) else ("*", left, right)


def _scaled(number: Expr, matrix: Expr) -> Expr | None:
    entries = sum(len(row) for row in matrix[1:])
    if number[0] in _NO_NUMBERS or _nodes(number) * entries + _nodes(matrix) > MOST_NODES:
        return None
    return ("matrix", *(tuple(("*", number, entry) for entry in row) for row in matrix[1:]))


def _product_of_two(left: Expr, right: Expr) -> Expr | None:
    rows, columns = left[1:], list(zip(*right[1:], strict=False))
    fits = {len(row) for row in rows} == {len(right) - 1}
    even = {len(row) for row in right[1:]} == {len(columns)}
    size = _nodes(left) * len(columns) + _nodes(right) * len(rows)
    if not fits or not even or size > MOST_NODES:
        return None

    def entry(row: Expr, column: Expr) -> Expr:
        return ("+", *(("*", *pair) for pair in zip(row, column, strict=True)))

    return ("matrix", *(tuple(entry(row, column) for column in columns) for row in rows))


_OPERATIONS: dict[str, Callable[..., Expr | None]] = {
    "+": _sum,
    "*": _product,
    "^": _power,
    "neg": lambda part: _scaled(("num", "-1"), part),
    "/": lambda left, right: _times(("/", ("num", "1"), right), left) if _is_matrix(left) else None,
}


def _nodes(tree: Expr) -> int:
    return sum(1 for _ in nodes(tree))
