"""PyTorch's own traces: execution traces (who reads which tensor) and Kineto traces (how long each call took)."""
