"""The training loop: gradients of a worker, the step of all, the whole run."""
