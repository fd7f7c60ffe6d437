"""Rehearsal: vLLM's own start-up code, run on a simulated GPU in a child process.

This folder is also imported by the child under another name, by an interpreter that may lack everything
dsv4check needs: ``protocol.py`` and ``worker/`` use the standard library only (and, in the worker, torch and vllm).
"""
