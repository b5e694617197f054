#include "engine/run/hidden_states.h"

int hidden_states_count(const struct hidden_states *states, int n_layers) {
    int n = 1;
    if (states->all) return n_layers + 1;
    while (n < HIDDEN_STATES_MAX && states->layers[n]) n++;
    return n;
}

/* Number of layers before hidden state i. */
static int layers_before(const struct hidden_states *states, int i, int n_layers) {
    if (states->all) return i;
    int layer = states->layers[i] ? states->layers[i] : -1;
    return layer > 0 ? layer : n_layers + 1 + layer;
}

static bool is_normed(const struct hidden_states *states, int i, int n_layers) {
    if (states->final_norm == FINAL_NORM_OF_LAST) return layers_before(states, i, n_layers) == n_layers;
    return states->final_norm == FINAL_NORM_OF_ALL;
}

int hidden_states_min_layers(const struct hidden_states *states) {
    int least = 1;
    for (int i = 0; i < HIDDEN_STATES_MAX; i++) {
        int layer = states->layers[i] < 0 ? -states->layers[i] : states->layers[i];
        if (layer > least) least = layer;
    }
    return least;
}

int hidden_states_used_layers(const struct hidden_states *states, int n_layers) {
    int most = 0;
    for (int i = 0; i < hidden_states_count(states, n_layers); i++) {
        int layers = layers_before(states, i, n_layers);
        if (layers > most) most = layers;
    }
    return most;
}

bool hidden_states_use_norm(const struct hidden_states *states, int n_layers) {
    for (int i = 0; i < hidden_states_count(states, n_layers); i++)
        if (is_normed(states, i, n_layers)) return true;
    return false;
}

bool hidden_states_need_rows(const struct hidden_states *states, const struct lane *lane) {
    enum { ANY = 1 }; /* the number of layers does not decide between one state and several */
    return !tensor_packed(&lane->text) || hidden_states_count(states, ANY) > 1;
}

/* The columns of lane.text that hold hidden state i. */
static struct tensor state_columns(const struct encoder_output *output, const struct lane *lane, int i) {
    int32_t columns = lane->text.dim[1] / hidden_states_count(&output->states, output->n_layers);
    return tensor_slice_columns(lane->text, i * columns, columns);
}

void hidden_states_write(struct context *x, const struct encoder_output *output, const struct lane *lane,
                         struct tensor rows, int layer) {
    const struct hidden_states *states = &output->states;
    for (int i = 0; i < hidden_states_count(states, output->n_layers) && rows.rank; i++)
        if (layers_before(states, i, output->n_layers) == layer + 1)
            op_copy(x, state_columns(output, lane, i), rows);
}

void hidden_states_norm(struct context *x, const struct encoder_output *output, const struct lane *lane,
                        struct tensor rows, struct affine norm, float eps) {
    const struct hidden_states *states = &output->states;
    for (int i = 0; i < hidden_states_count(states, output->n_layers); i++) {
        struct tensor state = state_columns(output, lane, i), n = rows.rank ? rows : state;
        if (!is_normed(states, i, output->n_layers)) continue;
        if (rows.rank) op_copy(x, n, state); /* norms need rows without gaps */
        if (norm.bias.rank)
            op_layer_norm(x, n, n, norm, eps);
        else
            op_rms_norm(x, n, n, norm.weight, eps,
                        (struct modulation){.zero_centered = output->zero_centered});
        if (rows.rank) op_copy(x, state, n);
    }
}
