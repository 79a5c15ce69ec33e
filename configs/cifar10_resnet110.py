r"""ResNet-110 on CIFAR-10, as DGC's paper and QSGD's train it; one a row.

Command (data as for configs/cifar10_resnet20.py):
  python -m experiments.main --config=configs/cifar10_resnet110.py:dgc \
    --workdir=runs/resnet110_dgc --config.data.dir=DIR

  setting            from                       workers x images  epochs  sends
  dense              Lin et al., table 2        4 x 32            164     all
  gradient_dropping  Lin et al., table 2        4 x 32            164     0.001
  dgc                Lin et al., table 2        4 x 32            164     0.001
  qsgd               Alistarh et al., table 1   8 x 16 (ours)     164     4 bits

With other `parallel.num_workers`, `parallel.inner_workers` or
`train.batch_size` the epochs stay, and the steps follow: table 2 also has 8, 16
and 32 workers of 32 images.

Lin et al. 2018 (arXiv 1712.01887): table 2, top-1 for 128 images a step on four
workers: dense 93.75 %, gradient dropping 92.75 % (sparsity 99.9 %, without a
warm-up), DGC 93.87 % (section 4.1: warm-up of 4 epochs out of 164 at 75, 93.75,
98.4375, 99.6 %). "Less aggressive learning rate" in the warm-up, no number:
here 0.01, with which He et al. begin this network (recalled). They follow the
schedule of Gross & Wilber: 0.1, a tenth after 81 and after 122 epochs, weight
decay 1e-4, momentum 0.9 (all recalled); here after 1/2 and 3/4 of the steps.

Alistarh et al. 2017 (arXiv 1610.02132): table 1, 8 GPUs, learning rate 0.1:
93.86 % in full precision, 94.19 % with 4 bits in buckets of 512. Images a step
and epochs are not printed: those of the other rows.

Ours: not run.
"""

from configs import cifar10_resnet20
from configs.cifar10_resnet20 import Setting
import ml_collections

SETTINGS = {
  'dense': Setting(4, 32, 164),
  'gradient_dropping': Setting(4, 32, 164, arguments={'density': 0.001}),
  'dgc': Setting(4, 32, 164, 4, 0.1, {'density': 0.001}),
  'qsgd': Setting(8, 16, 164, arguments={'levels': 7, 'bucket_size': 512}),
}


def get_config(setting: str = 'dense') -> ml_collections.ConfigDict:
  """Returns one of `SETTINGS`."""
  return cifar10_resnet20.configure('resnet110', SETTINGS, setting)
