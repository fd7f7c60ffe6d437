"""The child of a rehearsal. Imports torch and vllm, and of dsv4check only ``rehearsal.protocol``.

Run as a script by :mod:`dsv4check.rehearsal.parent`; see ``__main__.py``.
"""
