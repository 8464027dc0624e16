# Stops at its last line (failed, kind 'action'): a row is checked before it moves, and this one jumps.
qpos = api.observe()['qpos'].copy()
qpos[0] += 0.05
api.step(qpos)
qpos[0] += 1.0
api.step(qpos)
