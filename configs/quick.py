"""What all quick settings share: minutes on two cores, by data set."""

from collections.abc import Mapping
from typing import Any

COMMON: Mapping[str, Any] = {
  'parallel.num_workers': 4,
  'parallel.workers_per_chunk': 1,  # three times as fast on CPUs as all at once
  'train.learning_rate': 0.1,
  'train.log_every': 10,
  'optimizer.schedule': 'cosine',
}
CIFAR = COMMON | {
  'data.name': 'cifar10',
  'data.test_split': 'data_batch_5',
  'data.augment': True,
  'model.name': 'resnet8',
  # Many steps of few images: what sends a thousandth of its gradient takes a
  # thousand steps to send all of it.
  'train.batch_size': 8,
  'epochs': 2,
  'optimizer.weight_decay': 1e-4,
}
DIGITS = COMMON | {
  'data.name': 'digits',
  'model.name': 'convnet',
  'train.batch_size': 16,
  'epochs': 10,
}
PTB = COMMON | {
  'data.name': 'ptb',
  'model.name': 'lstm_200',
  'train.batch_size': 4,
  'train.bptt_length': 20,
  'train.learning_rate': 4.0,
  'compression.clip_norm': 0.25,
  'epochs': 0.2,
  'train.eval_every': 145,
  'train.checkpoint_every': 290,
}
FSDD = COMMON | {
  'data.name': 'fsdd',
  'data.buckets': 3,
  'model.name': 'deepspeech_small',
  'train.batch_size': 8,
  'train.learning_rate': 0.02,
  'optimizer.nesterov': True,
  'compression.clip_norm': 100.0,
  'epochs': 4,
}
MULTI30K = COMMON | {
  'data.name': 'multi30k',
  'data.vocabulary': 4000,
  'data.buckets': 3,
  'model.name': 'attention_small',
  'train.batch_size': 16,
  'train.learning_rate': 0.002,
  'optimizer.name': 'adam',
  'epochs': 1,
  'train.eval_every': 150,
  'train.checkpoint_every': 225,
}
OF_SEQUENCES: Mapping[str, Mapping[str, Any]] = {
  'fsdd': FSDD,
  'multi30k': MULTI30K,
  'ptb': PTB,
  'ptb_characters': PTB | {'data.name': 'ptb_characters', 'epochs': 0.04},
}
