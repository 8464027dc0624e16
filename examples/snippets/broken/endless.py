# Ends when its time is over (failed, kind 'timeout' or 'cpu'), with a warning beforehand.
angle = 0.0
while True:
    angle += 1e-6
