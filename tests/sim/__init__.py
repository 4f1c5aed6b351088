"""One simulated world: several processes of two projects and clients on foreign machines, in one thread.

The code under test is the real one, with real databases. What is simulated is what no test can wait for: clocks,
the network, the order in which processes come to their next step, and their death at any of them. A seed gives the
whole history; `python -m tests.sim.soak --seeds 1-500` plays many.
"""
