"""A copy that changes on one device stops the run, which says where."""

from experiments.program import errors
from experiments.training import train
from experiments.training.experiment import Experiment
import jax
import numpy as np
import pytest

_DAMAGED = 3  # the step after which it happens


def _flip(array, device):
  """One bit of one element, on one device: no rounding of a step hides it."""
  shards = [shard.data for shard in array.addressable_shards]
  copy = np.array(shards[device])
  copy.reshape(-1).view(np.uint32)[-1] ^= 1 << 12
  shards[device] = jax.device_put(copy, shards[device].sharding)
  return jax.make_array_from_single_device_arrays(
    array.shape, array.sharding, shards
  )


@pytest.fixture
def damaging(monkeypatch):
  """Returns a function: what has `words` in its path is damaged in the run."""
  make = Experiment.make_train_step

  def start(words, device):
    def damaged(self, stage):
      step = make(self, stage)

      def run(state, batch):
        state, metrics = step(state, batch)
        if int(state.step) != _DAMAGED:
          return state, metrics
        return jax.tree_util.tree_map_with_path(
          lambda path, x: (
            _flip(x, device)
            if all(word in jax.tree_util.keystr(path) for word in words)
            else x
          ),
          state,
        ), metrics

      return run

    monkeypatch.setattr(Experiment, 'make_train_step', damaged)

  return start


@pytest.mark.parametrize(
  ('words', 'named'),
  [
    pytest.param(
      ['.params', 'Dense_0', 'kernel'],
      r"\.params\['Dense_0'\]\['kernel'\]",
      marks=pytest.mark.slow,
    ),
    (['.compressor', '[0]'], r'\.opt_state\[0\]\.compressor.* '),
  ],
)
def test_a_flipped_bit_stops_the_run(
  words, named, tiny_config, damaging, tmp_path
):
  config = tiny_config('power_sgd', rank=2, runner='shard_map')
  config.parallel.num_workers = 3
  config.train.checkpoint_every = _DAMAGED
  # PowerSGD's factors are made anew in each step: the next one mends them.
  config.parallel.check_agreement_every = _DAMAGED
  damaging(words, 1)
  with pytest.raises(
    errors.DisagreementError,
    match=f'^after step 3 {named}.*worker 1 has another copy than worker 0;',
  ) as caught:
    train.train_and_evaluate(config, tmp_path)
  assert caught.value.exit_status and '\n' not in str(caught.value)
  assert not list((tmp_path / 'checkpoints').glob('[0-9]*'))
  assert not (tmp_path / 'summary.json').exists()


@pytest.mark.slow
def test_a_checkpoint_and_the_end_are_checked_whatever_n_is(
  tiny_config, damaging, tmp_path
):
  config = tiny_config('dense', runner='shard_map', steps=5)
  config.parallel.check_agreement_every = 100
  damaging(['.params', 'Dense_0', 'bias'], 0)
  with pytest.raises(errors.DisagreementError, match="step 5 .*'bias'"):
    train.train_and_evaluate(config, tmp_path / 'end')
  config.train.checkpoint_every = 3
  with pytest.raises(errors.DisagreementError, match="step 3 .*'bias'"):
    train.train_and_evaluate(config, tmp_path / 'saved')
  config.train.checkpoint_every = 0
  config.parallel.check_agreement_every = 0
  assert train.train_and_evaluate(config, tmp_path / 'off')
