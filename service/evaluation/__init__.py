"""Back-tests over labeled recordings: the shipped configuration runs causally, pure code scores it.

Only ``recordings`` reads recordings; the scores are pure. Must not import ``service.drills`` or ``service.api``.
"""
