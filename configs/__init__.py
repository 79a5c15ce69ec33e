"""One file an experiment; `default` has every field with its meaning."""
