"""Which elements a worker sends, under any scope."""

from tests.oracles import chunks
from tests.oracles import sparse


def largest(tree, density, *, scope, chunk_size=None, dense=()):
  """Returns (leaf, offset) of every element selected, in order.

  Args:
    tree: tree[leaf], float32; what is larger in magnitude goes first.
    density: fraction of each run that is selected, in (0, 1].
    scope: what the density is of: 'global', all leaves joined; 'leaf', each
      leaf; 'chunk', each run of chunk_size elements of a leaf.
    chunk_size: elements; None unless the scope is 'chunk'.
    dense: positions of leaves that take no part.
  """
  by_chunk = scope == 'chunk'
  selected = []
  for group in sparse.groups(len(tree), 'leaf' if by_chunk else scope, dense):
    place = sparse.places(tree, group)
    run = chunk_size if by_chunk else max(1, len(place))
    for i in chunks.largest(sparse.join(tree, group), density, run):
      selected.append(place[i])
  return selected
