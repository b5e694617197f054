# Fault: a ring slot is refilled before its last visit has ended.
s/\*piece = (struct piece){f, from, to, event, buffer, /*piece = (struct piece){f, from, to, 0, buffer, /
