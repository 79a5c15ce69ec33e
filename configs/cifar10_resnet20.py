r"""ResNet-20 on CIFAR-10, dense or with DGC, gTop-k and the others.

Commands (the data as https://www.cs.toronto.edu/~kriz/cifar.html has it,
binary version, below DIR):
  python -m experiments.main --config=configs/cifar10_resnet20.py:dgc \
    --workdir=runs/cifar10_dgc --config.data.dir=DIR

Published: He et al. 2016 (arXiv 1512.03385), table 6: error 8.75 % for
ResNet-20 with 128 images a step, 64,000 steps. Lin et al. 2018 (arXiv
1712.01887), table 2: ResNet-110, 4 workers: 93.75 % dense, 93.87 % DGC. Shi et
al. 2019 (arXiv 1901.04359): gTop-k beside dense on ResNet-20, 4 workers,
figure only.

Ours: the full length is not run yet. A short one, 400 steps of 2 x 64 images
on two CPU cores, with data_batch_5 held out as the test set (a lossless copy
of the published test file was not at hand, so this is not the published
split), dense beside DGC at density 0.001 after 100 steps of warm-up:

  python -m experiments.main --config=configs/cifar10_resnet20.py:dgc \
    --workdir=runs/cifar10_short/dgc --config.data.test_split=data_batch_5 \
    --config.parallel.num_workers=2 --config.parallel.runner=shard_map \
    --config.train.batch_size=64 --config.train.steps=400 \
    --config.train.log_every=10 --config.train.eval_every=100 \
    --config.train.checkpoint_every=100 --config.optimizer.schedule=cosine \
    --config.compression.warmup_steps=100

  and `:dense` without the last line. Training loss at the end (mean of the
  last five lines) 1.33 dense, 1.48 DGC; test accuracy 54.4 %, 48.5 %; bytes of
  a message 1,078,888 and 7,084 (the 1-D leaves, which DGC sends dense, are
  most of it). After 1.3 of 164 epochs DGC still trails, as is to be expected;
  curves: experiments/results/cifar10_resnet20_short.json.
"""

from configs import default
import ml_collections

_SCHEMES = {
  'dense': {},
  'gradient_dropping': {'density': 0.01},
  'dgc': {'density': 0.001},
  'gtopk': {'density': 0.001},
  'qsgd': {'levels': 7},
}
_BATCH = 128  # images a step, all workers together
_TRAIN_IMAGES = 50_000


def get_config(scheme: str = 'dense') -> ml_collections.ConfigDict:
  """Returns the paper's setting with one of the schemes."""
  config = default.get_config()
  config.train.steps = 64_000
  config.train.batch_size = _BATCH // 4
  config.train.learning_rate = 0.1
  config.train.log_every = 100
  config.train.eval_every = 1_000
  config.train.checkpoint_every = 1_000
  config.data.name = 'cifar10'
  config.data.augment = True
  config.model.name = 'resnet20'
  config.optimizer.weight_decay = 1e-4
  config.optimizer.schedule = 'steps'
  default.with_scheme(config, _SCHEMES, scheme)
  if 'density' in _SCHEMES[scheme]:
    # Four epochs of rising sparsity, as in both papers.
    config.compression.warmup_steps = 4 * (_TRAIN_IMAGES // _BATCH)
  return config
