"""What a run leaves behind: its files, its bytes, its time, its checkpoints."""
