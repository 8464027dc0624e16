# Pick up the red cube, wherever it stands on the table: from pictures alone, as on a real robot.
import math


def down(position, yaw):
    """Return a pose of the tool that points straight down."""
    return [*position, 0.0, math.cos(yaw / 2), math.sin(yaw / 2), 0.0]


found = api.call_tool('detect', colour='red', size_m=0.04)
if not found:
    raise RuntimeError('no red cube is to be seen')
cube = found[0]
x, y, z = cube['position_m']
print(f'a red cube at {x:.3f} {y:.3f} m, turned {math.degrees(cube["yaw_rad"]):.0f} degrees')

# The gripper takes it by two of its sides: of the four ways the one that turns the hand least.
endpose = api.observe()['endpose']
turned = 2 * math.atan2(endpose[5], endpose[4])
yaw = cube['yaw_rad'] + math.pi / 2 * round((turned - cube['yaw_rad']) / (math.pi / 2))

if endpose[7] < 0.9:
    api.open_gripper()
api.move_arm(down([x, y, z + 0.08], yaw))
api.move_arm(down([x, y, z], yaw), speed=0.7)
step = api.close_gripper()
if step.observation['qpos'][-1] < 0.1:
    raise RuntimeError('the gripper closed on nothing')
api.checkpoint('grasped')
step = api.move_arm(down([x, y, z + 0.18], yaw), speed=0.7)
while not step.done:
    step = api.close_gripper()  # it is closed: this holds, until the env has seen enough
RESULT = {'success': step.info['success'], 'rows': step.info['step']}
