"""Where the entries of one shape lie in another, by hand."""

import pytest

from kl_companion.stand_in import arrays


def test_shapes_together():
    assert arrays.together((2, 1), (3,)) == (2, 3)
    assert arrays.together((), (0, 1)) == (0, 1)
    with pytest.raises(RuntimeError, match=r"tensor a \(2\) must match the size of tensor b \(3\)"):
        arrays.together((4, 2), (4, 3))


def test_what_is_repeated():
    assert arrays.spread((2, 3), (2, 3)) is None
    assert arrays.spread((2, 1), (2, 3)) == (0, 0, 0, 1, 1, 1)
    assert arrays.spread((3,), (2, 3)) == (0, 1, 2, 0, 1, 2)
    assert arrays.spread((), (2,)) == (0, 0)
    for shape, wider in (((2,), (3,)), ((1, 2), (2,))):
        with pytest.raises(RuntimeError, match="expand"):
            arrays.spread(shape, wider)


def test_lines():
    assert arrays.lines((2, 3), (1,)) == ((0, 1, 2), (3, 4, 5))
    assert arrays.lines((2, 3), (0,)) == ((0, 3), (1, 4), (2, 5))
    assert arrays.lines((2, 3), (0, 1)) == (tuple(range(6)),)
    assert arrays.lines((), ()) == ((0,),)
    assert arrays.lines((2, 0), (1,)) == ((), ())


def test_axes():
    assert arrays.axes_of(None, 3) == (0, 1, 2)
    assert arrays.axes_of((-1, 0), 3) == (0, 2)
    assert arrays.axes_of(0, 0) == ()
    with pytest.raises(IndexError, match="Dimension out of range"):
        arrays.axis_of(3, 3)
    with pytest.raises(RuntimeError, match="names an axis twice"):
        arrays.axes_of((0, -2), 2)


def test_nested_lists():
    for entries in ([[1, 2], [3, 4]], [], 5, [[[1.0]]], [[], []]):
        assert arrays.nested(*arrays.flat(entries)) == entries
    with pytest.raises(ValueError, match="different shapes"):
        arrays.flat([[1], [2, 3]])


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2), ()])
def test_lines_taken_are_put_back(axes):
    shape, entries = (2, 3, 2), list(range(12))
    parts = arrays.taken(entries, shape, axes)
    assert parts == [[entries[i] for i in line] for line in arrays.lines(shape, axes)]
    assert arrays.put(parts, shape, axes) == entries
