"""What is submitted to a cluster: index, train, bench; and what the demo needs."""
