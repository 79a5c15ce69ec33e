r"""Images a second on 32 GPUs with 1 Gbps Ethernet: gTop-k's table VII.

Commands (data as for configs/gtopk_table5.py; see docs/papers.md):
  python -m experiments.papers gtopk_table7
on each of 32 machines, as docs/pods.md says:
  python -m experiments.main --multihost --workdir=runs/vgg16_gtopk \
    --config=configs/gtopk_table7.py:vgg16_gtopk --config.data.dir=DIR

Shi et al. 2019 (arXiv 1901.04359), sections IV-A, IV-D and IV-E. Printed: 32
GPUs (Nvidia P102-100), 1 Gbps Ethernet, density 0.001, batches of table V;
images a second of S-SGD with a dense all-reduce, with an all-gather of each
worker's top k, and with gTop-k. Figure 11 is the time of a step of the gTop-k
rows in parts; ours has those of experiments/run/time_breakdown.py and is in the
record (`breakdown_ms`). ResNet-50 accumulates 16 batches: a profiled step has a
sixteenth of the computing between two exchanges. A short run is enough for
both: 10 epochs of CIFAR-10 or one of ImageNet (ours). Top-k's rows are gradient
dropping with one threshold.

Quick: ResNet-8 and four workers simulated by one process, so that nothing
travels: what compression costs, not what it saves. What it saves on a slow
network is measured by `python -m experiments.benchmarks.training`.

Published:

  row             images/s
  ────────────────────────
  vgg16_dense          403
  vgg16_topk         2,016
  vgg16_gtopk        3,020
  resnet20_dense     9,212
  resnet20_topk     22,272
  resnet20_gtopk    25,280
  alexnet_dense         39
  alexnet_topk         296
  alexnet_gtopk        505
  resnet50_dense       343
  resnet50_topk        978
  resnet50_gtopk     1,251
"""

from configs import gtopk_table5
from configs.dgc_table2 import DROPPING
from experiments.papers.table import CIFAR
from experiments.papers.table import IMAGENET
from experiments.papers.table import Row
from experiments.papers.table import Table

# Nothing but steps in between.
TIMED = {
  'train.eval_every': 0,
  'train.checkpoint_every': 0,
  'parallel.check_agreement_every': 0,
}
_SCHEMES = {'dense': {}, 'topk': DROPPING, 'gtopk': gtopk_table5.GTOPK}
_PUBLISHED = {
  'vgg16': (403, 2016, 3020),
  'resnet20': (9212, 22272, 25280),
  'alexnet': (39, 296, 505),
  'resnet50': (343, 978, 1251),
}


def _rows(model: str) -> dict[str, Row]:
  full = gtopk_table5.MODELS[model]
  cifar = full['data.name'] == 'cifar10'
  return {
    f'{model}_{scheme}': Row(
      fields=fields,
      published={'images': images},
      beside='' if scheme == 'dense' else f'{model}_dense',
      full=full | {'epochs': 10 if cifar else 1},
      needs=(CIFAR if cifar else IMAGENET,),
    )
    for (scheme, fields), images in zip(
      _SCHEMES.items(), _PUBLISHED[model], strict=True
    )
  }


TABLE = Table(
  title='Images a second on 32 GPUs, 1 Gbps Ethernet',
  source='Shi et al. 2019, table VII and figure 11',
  metrics=('images',),
  full=TIMED
  | {
    'data.augment': True,
    'parallel.num_workers': 32,
    'parallel.runner': 'shard_map',
    # A multiple of the steps that ResNet-50 accumulates.
    'train.log_every': 16,
    'train.time_breakdown_every': 32,
    'optimizer.weight_decay': 1e-4,
  },
  quick=TIMED
  | {'epochs': 0.5, 'train.log_every': 2, 'train.time_breakdown_every': 8},
  rows={name: row for m in _PUBLISHED for name, row in _rows(m).items()},
  needs=('32 machines with a GPU each on 1 Gbps Ethernet',),
)
get_config = TABLE.get_config
