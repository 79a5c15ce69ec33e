"""What a run of several hosts does when one of them, or the network, fails."""
