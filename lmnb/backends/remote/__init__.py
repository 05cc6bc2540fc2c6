"""Backends that generate elsewhere: an SGLang server, and the APIs of model vendors."""
