"""DSPy on lmnb: `lmnb.dspy.LM()` is a `dspy.LM` whose calls run as programs on a backend, by default the default one.

So they are seen where programs are: views, ledger, traces, the cache tree. Needs the package `dspy`, 3.4 or newer.
"""

from lmnb.dspy.lm import LM

__all__ = ["LM"]
