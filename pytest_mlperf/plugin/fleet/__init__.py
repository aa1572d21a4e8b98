"""Run the cases of a session on the nodes of a Ray cluster (`--mlperf-on`).

The pytest process collects and tells; `bridge.py` is a process that talks to Ray for it, `node.py`
runs in an actor of Ray on a node and starts the pytest process there, in which `child.py` sends
every report back. Ray is imported by `bridge.py` alone.
"""
