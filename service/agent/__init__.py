"""The agent of a GPU node: devices and kernel log of one machine, over HTTP."""
