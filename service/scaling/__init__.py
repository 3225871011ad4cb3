"""Scaling outputs of the plan: autoscaler manifests, the guard of manual scaling, the KEDA scaler.

Must not import ``service.incidents``, ``service.sources`` or a package above them.
"""
