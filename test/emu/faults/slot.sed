# A slot of the ring is filled again before its last visit is over.
s/\*piece = (struct piece){f, from, to, event, buffer, /*piece = (struct piece){f, from, to, 0, buffer, /
