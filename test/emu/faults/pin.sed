# Fault: copies read host memory pools that are not pinned, as if the driver had refused to pin them.
s/pins->device->memory->pin(pins->device, pins->memory + i \* pins->chunk, bytes);/bytes ? -1 : 0;/
