"""The engine: token ids and sampling parameters in, token events out.

It knows nothing of notebooks, chat roles or programs. This file imports nothing, so that
`lmnb.runtime.request` can be used where torch is not installed.
"""
