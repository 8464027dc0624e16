# Move the tool to the yellow ball in the air, which two cameras see.
balls = api.call_tool('detect', colour='yellow', shape='ball')
if not balls:
    raise RuntimeError('no yellow ball is seen by two cameras')
goal = balls[0]['position_m']
check = api.safe_check('move_arm', pose=goal)
if not check['ok']:
    raise RuntimeError(f'the ball at {goal} cannot be reached: {check["message"]}')
step = api.move_arm(goal)
for _ in range(10):  # the servos catch up, and the env wants it to stay
    if step.done:
        break
    step = api.move_arm(goal)
api.checkpoint('reached')
RESULT = {'success': step.info['success'], 'rows': step.info['step']}
