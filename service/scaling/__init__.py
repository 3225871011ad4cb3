"""The plan's numbers on their way to autoscalers: documents, guards, the KEDA scaler."""
