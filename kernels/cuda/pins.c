/* Pins: see pins.h. */
#include "kernels/cuda/pins.h"

void pins_init(struct pins *pins) {
    *pins = (struct pins){0};
    pthread_mutex_init(&pins->lock, NULL);
}

void pins_destroy(struct pins *pins) {
    pthread_mutex_destroy(&pins->lock);
}

bool pins_add(struct pins *pins, const void *memory, size_t bytes) {
    int i = 0;
    pthread_mutex_lock(&pins->lock);
    while (i < pins->n && pins->pin[i].to) i++;
    bool room = i < PINS;
    if (room) pins->pin[i] = (struct pin){(uintptr_t)memory, (uintptr_t)memory + bytes};
    if (room && i == pins->n) pins->n++;
    pthread_mutex_unlock(&pins->lock);
    return room;
}

void pins_remove(struct pins *pins, const void *memory) {
    pthread_mutex_lock(&pins->lock);
    for (int i = 0; i < pins->n; i++)
        if (pins->pin[i].from == (uintptr_t)memory) pins->pin[i] = (struct pin){0};
    while (pins->n && !pins->pin[pins->n - 1].to) pins->n--;
    pthread_mutex_unlock(&pins->lock);
}

size_t pins_cut(struct pins *pins, const void *memory, size_t bytes) {
    uintptr_t from = (uintptr_t)memory, to = from + bytes;
    pthread_mutex_lock(&pins->lock);
    for (int i = 0; i < pins->n; i++) {
        const struct pin *pin = &pins->pin[i];
        if (pin->from > from && pin->from < to) to = pin->from;
        if (pin->to > from && pin->to < to) to = pin->to;
    }
    pthread_mutex_unlock(&pins->lock);
    return to - from;
}
