"""The most likely symbol of each frame, read as CTC means it.

Graves et al. 2006, "Connectionist temporal classification", section 3.2: best
path decoding.
"""

import numpy as np

BLANK = 0


def greedy(logits: np.ndarray, frames: np.ndarray) -> list[list[int]]:
  """Returns the symbols of the best path of each utterance.

  Symbols that follow themselves count once, then blanks are left out.

  Args:
    logits: [batch, frames, symbols].
    frames: int[batch], how many of the frames are no padding.
  """
  best = np.asarray(logits).argmax(-1)
  said = []
  for path, count in zip(best, np.asarray(frames), strict=True):
    path = path[:count]
    new = np.diff(path, prepend=BLANK) != 0
    said.append(path[new & (path != BLANK)].tolist())
  return said
