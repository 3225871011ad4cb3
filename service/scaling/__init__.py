"""Scaling outputs of the plan: autoscaler manifests, the guard of manual scaling, the KEDA scaler."""
