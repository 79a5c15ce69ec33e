"""Shared pieces of the tests of tasks."""

from experiments.hosts.placement import make_placement
from experiments.training import evaluation
import jax
import pytest


@pytest.fixture
def check_one_copy(monkeypatch):
  """Returns a function that checks how parameters get to a task's test.

  They come from the host, and all compiled calls must have the same arrays.
  """

  def check(task, params, statistics):
    given = []
    compiled = jax.jit

    def jit(function):
      inner = compiled(function)

      def call(params, *arguments):
        given.append(jax.tree.leaves(params))
        return inner(params, *arguments)

      return call

    with monkeypatch.context() as patch:
      patch.setattr(jax, 'jit', jit)
      test = evaluation.Evaluation(task, make_placement('simulate', 1), False)
    test(evaluation.Model(*jax.device_get((params, statistics))))
    first, *others = given
    assert others
    assert all(isinstance(leaf, jax.Array) for leaf in first)
    for leaves in others:
      assert all(a is b for a, b in zip(leaves, first, strict=True))

  return check
