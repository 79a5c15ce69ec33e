"""gTop-k: the tree, the butterfly, and the hole in the paper."""

import itertools

import numpy as np
import pytest
from tests.oracles import checks
from tests.oracles import gtopk
from tests.oracles import leaves
from tests.oracles import sparse


def _messages(rng, num_workers, n=24, k=5):
  # Small integers: many ties, many cancelled sums.
  messages = []
  for _ in range(num_workers):
    x = rng.integers(-3, 4, n).astype(np.float32)
    messages.append({i: x[i] for i in sparse.top_k(x, k)})
  return messages


@pytest.mark.parametrize('num_workers', range(1, 9))
def test_butterfly_is_the_tree_everywhere(num_workers):
  rng = np.random.default_rng(2)
  for _ in range(50):
    messages = _messages(rng, num_workers)
    ranks, survived = gtopk.butterfly(messages, 5)
    assert all(held == ranks[0] for held in ranks)
    assert (ranks[0], survived) == gtopk.tree(messages, 5, 'fold')
    if num_workers in (1, 2, 4, 8):
      assert (ranks[0], survived) == gtopk.tree(messages, 5, 'wait')
    for i, value in ranks[0].items():
      assert value == sum(
        messages[w][i] for w in range(num_workers) if i in survived[w]
      )


def test_hole_in_the_paper_put_back():
  """Dropped at an inner merge, in the final mask through another subtree."""
  gradients = [
    [np.float32(x)] for x in ([3, 0, 0], [0, 2, 0], [0, 5, 0], [0, 0, 1])
  ]
  options = {'density': 1 / 3, 'topology': 'tree'}
  paper = gtopk.GTopK(put_back='paper', **options)
  exact = gtopk.GTopK(put_back='exact', **options)
  checks.close(paper.step(gradients)[0], [0, 1.25, 0])
  checks.close(exact.step(gradients)[0], [0, 1.25, 0])
  assert paper.pending[1][0].tolist() == [0, 0, 0]
  assert paper.lost[1][0].tolist() == [0, 2, 0]
  assert exact.pending[1][0].tolist() == [0, 2, 0]
  # Algorithm 2 is another answer, and knows no hole.
  gathered = gtopk.GTopK(1 / 3, topology='allgather', put_back='paper')
  checks.close(gathered.step(gradients)[0], [0, 1.75, 0])
  assert not any(leaf.any() for tree in gathered.lost for leaf in tree)


@pytest.mark.parametrize('num_workers', range(1, 9))
def test_paper_put_back_loses_only_what_it_shows(num_workers):
  rng = np.random.default_rng(3)
  oracle = gtopk.GTopK(0.1, put_back='paper', topology='tree')
  old = leaves.zeros(checks.draw(rng, num_workers))
  for _ in range(4):
    gradients = checks.draw(rng, num_workers)
    oracle.step(gradients)
    for w, leaf in itertools.product(
      range(num_workers), range(len(checks.SHAPES))
    ):
      checks.close(
        old[w][leaf] + gradients[w][leaf],
        oracle.delivered[w][leaf]
        + oracle.pending[w][leaf]
        + oracle.lost[w][leaf],
      )
    old = leaves.copy(oracle.pending)
