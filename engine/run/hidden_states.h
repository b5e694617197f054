/* The hidden states of a text encoder that a pipeline reads, and how the encoder's blocks write them to
 * lane.text: each state is [T, C], several are concatenated by columns. */
#ifndef SLUICE_RUN_HIDDEN_STATES_H
#define SLUICE_RUN_HIDDEN_STATES_H

#include "engine/run/lane.h"
#include "kernels/ops.h"

/* The hidden states to which the encoder's final norm is applied. */
enum final_norm_rule {
    FINAL_NORM_OF_LAST, /* only the output of the last layer, as in transformers' hidden_states */
    FINAL_NORM_OF_ALL,
    FINAL_NORM_OF_NONE,
};

enum { HIDDEN_STATES_MAX = 12 };

struct hidden_states {
    /* Indices as in transformers' hidden_states: k > 0 is the output of the k-th layer, -1 of the last layer,
     * -2 of the layer before it. 0 ends a shorter list; an empty list means -1. */
    int16_t layers[HIDDEN_STATES_MAX];
    enum final_norm_rule final_norm;
    bool all; /* the token embeddings, then the output of every layer; `layers` is then empty */
};

/* The hidden states that an encoder with this many layers writes, in the settings of a text encoder. */
struct encoder_output {
    struct hidden_states states;
    int n_layers;
    bool zero_centered; /* the final RMS norm multiplies by 1 + weight (Gemma) */
};

/* Number of hidden states that an encoder with n_layers layers writes. */
int hidden_states_count(const struct hidden_states *states, int n_layers);
/* Smallest number of layers of an encoder that has all these hidden states. */
int hidden_states_min_layers(const struct hidden_states *states);
/* Number of layers, of an encoder with n_layers, that must run for all these hidden states. */
int hidden_states_used_layers(const struct hidden_states *states, int n_layers);
bool hidden_states_use_norm(const struct hidden_states *states, int n_layers);

/* True if an encoder needs a tensor of its own for the rows of its residual stream. False: the rows can be in
 * lane.text itself, which then holds the hidden state without a copy. */
bool hidden_states_need_rows(const struct hidden_states *states, const struct lane *lane);
/* Call after each layer (`layer`: its number from 0; -1 after the token embeddings). Copies the residual
 * stream to lane.text if the pipeline reads this layer's output. rows: the encoder's own tensor [T, C]; rank
 * 0: rows are in lane.text.
 */
void hidden_states_write(struct context *x, const struct encoder_output *output, const struct lane *lane,
                         struct tensor rows, int layer);
/* Call after the last layer. Applies the final norm to the hidden states in lane.text that are read
 * after it. norm: weight, and bias of a layer norm; without bias it is an RMS norm. rows: [T, C],
 * overwritten; rank 0: the only hidden state is normed in place. */
void hidden_states_norm(struct context *x, const struct encoder_output *output, const struct lane *lane,
                        struct tensor rows, struct affine norm, float eps);

#endif
