"""Kernels: each operation in one file, with its plain-torch reference and one dispatching wrapper.

This file imports nothing: when the checkout's root is on `sys.path`, other libraries may import a
top-level package named `kernels`, and must get something inert.
"""

__version__ = "0.0.1"
