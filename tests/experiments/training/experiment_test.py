"""What only the model can tell is wrong with a configuration."""

from configs import default
from experiments import models
from experiments.hosts.placement import make_placement
from experiments.program import errors
from experiments.training import experiment
import pytest
from tests.experiments.training.normalised import Normalised


@pytest.mark.slow
def test_microbatches_and_batch_normalisation_do_not_go_together(monkeypatch):
  monkeypatch.setattr(
    models, 'create', lambda name, classes, kind: Normalised(classes)
  )
  config = default.get_config()
  config.compression.alpha = 1.0
  config.update_from_flattened_dict(
    {
      'model.name': 'resnet20',
      'compression.name': 'variance_based',
      'compression.microbatch': 4,
    }
  )
  placement = make_placement('simulate', config.parallel.num_workers)
  with pytest.raises(
    errors.ConfigError,
    match="microbatch must be 0 for model.name='resnet20', .*, got 4",
  ):
    experiment.Experiment(config, placement)
  config.compression.microbatch = 0
  experiment.Experiment(config, placement)
