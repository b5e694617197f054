#include "engine/open/adapter_keys.h"

#include <stdio.h>
#include <string.h>

/* Ends of adapter keys (".lora_down.weight") and the tensor roles they mean; the longest match wins. */
static const struct key_end {
    const char *end;
    enum adapter_role role;
    enum adapter_dialect dialect;
} key_ends[] = {
    {".lora_down.weight", ADAPTER_DOWN, ADAPTER_KOHYA},
    {".lora_up.weight", ADAPTER_UP, ADAPTER_KOHYA},
    {".lora_mid.weight", ADAPTER_MID, ADAPTER_KOHYA},
    {".alpha", ADAPTER_ALPHA, ADAPTER_KOHYA},
    {".scale", ADAPTER_SCALE, ADAPTER_KOHYA},
    {".lora_A.weight", ADAPTER_DOWN, ADAPTER_PEFT},
    {".lora_A.default.weight", ADAPTER_DOWN, ADAPTER_PEFT},
    {".lora_A", ADAPTER_DOWN, ADAPTER_PEFT},
    {".lora_B.weight", ADAPTER_UP, ADAPTER_PEFT},
    {".lora_B.default.weight", ADAPTER_UP, ADAPTER_PEFT},
    {".lora_B", ADAPTER_UP, ADAPTER_PEFT},
    {".lora_B.bias", ADAPTER_UP_BIAS, ADAPTER_PEFT},
    {".lora_B.default.bias", ADAPTER_UP_BIAS, ADAPTER_PEFT},
    {".lora.down.weight", ADAPTER_DOWN, ADAPTER_OLD_DIFFUSERS},
    {".lora.up.weight", ADAPTER_UP, ADAPTER_OLD_DIFFUSERS},
    {"_lora.down.weight", ADAPTER_DOWN, ADAPTER_OLD_DIFFUSERS},
    {"_lora.up.weight", ADAPTER_UP, ADAPTER_OLD_DIFFUSERS},
    {".lora_linear_layer.down.weight", ADAPTER_DOWN, ADAPTER_OLD_DIFFUSERS},
    {".lora_linear_layer.up.weight", ADAPTER_UP, ADAPTER_OLD_DIFFUSERS},
    {".dora_scale", ADAPTER_DORA, ADAPTER_KOHYA},
    {".lora_magnitude_vector", ADAPTER_DORA, ADAPTER_PEFT},
    {".lora_magnitude_vector.weight", ADAPTER_DORA, ADAPTER_PEFT},
    {".lora_magnitude_vector.default.weight", ADAPTER_DORA, ADAPTER_PEFT},
    {".diff", ADAPTER_DIFF, ADAPTER_KOHYA},
    {".diff_b", ADAPTER_DIFF_BIAS, ADAPTER_KOHYA},
    {".diff_m", ADAPTER_DIFF_MODULATION, ADAPTER_KOHYA},
    {".hada_w1_a", ADAPTER_HADA_W1_A, ADAPTER_KOHYA},
    {".hada_w1_b", ADAPTER_HADA_W1_B, ADAPTER_KOHYA},
    {".hada_w2_a", ADAPTER_HADA_W2_A, ADAPTER_KOHYA},
    {".hada_w2_b", ADAPTER_HADA_W2_B, ADAPTER_KOHYA},
    {".hada_t1", ADAPTER_HADA_T1, ADAPTER_KOHYA},
    {".hada_t2", ADAPTER_HADA_T2, ADAPTER_KOHYA},
    {".lokr_w1", ADAPTER_LOKR_W1, ADAPTER_KOHYA},
    {".lokr_w1_a", ADAPTER_LOKR_W1_A, ADAPTER_KOHYA},
    {".lokr_w1_b", ADAPTER_LOKR_W1_B, ADAPTER_KOHYA},
    {".lokr_w2", ADAPTER_LOKR_W2, ADAPTER_KOHYA},
    {".lokr_w2_a", ADAPTER_LOKR_W2_A, ADAPTER_KOHYA},
    {".lokr_w2_b", ADAPTER_LOKR_W2_B, ADAPTER_KOHYA},
    {".lokr_t2", ADAPTER_LOKR_T2, ADAPTER_KOHYA},
};

static const struct refused_end {
    const char *end, *what;
} refused_ends[] = {
    {".oft_blocks", "OFT"},
    {".oft_diag", "OFT"},
    {".oft_R.weight", "OFT of peft"},
    {".oft_R.default.weight", "OFT of peft"},
    {".boft_R", "BOFT"},
    {".boft_s", "BOFT"},
    {".on_input", "IA3"},
    {".ia3_l", "IA3"},
    {".a1.weight", "GLoRA"},
    {".a2.weight", "GLoRA"},
    {".b1.weight", "GLoRA"},
    {".b2.weight", "GLoRA"},
    {".set_weight", "a replacement of a weight"},
    {".reshape_weight", "a reshaped weight"},
    {".w_norm", "a replacement of a norm"},
    {".b_norm", "a replacement of a norm"},
    {".lora_embedding_A", "an adapted embedding"},
    {".lora_embedding_B", "an adapted embedding"},
    {".lora_C.weight", "LoRA with three factors"},
};

static bool ends_with(const char *text, size_t bytes, const char *end) {
    size_t n = strlen(end);
    return bytes > n && !memcmp(text + bytes - n, end, n);
}

bool adapter_key_read(const char *key, struct adapter_key *out) {
    size_t bytes = strlen(key), longest = 0;
    *out = (struct adapter_key){0};
    for (size_t i = 0; i < sizeof key_ends / sizeof *key_ends; i++) {
        const struct key_end *k = &key_ends[i];
        size_t n = strlen(k->end);
        if (n <= longest || !ends_with(key, bytes, k->end)) continue;
        longest = n;
        *out = (struct adapter_key){(int)(bytes - n), k->role, k->dialect, NULL};
    }
    for (size_t i = 0; i < sizeof refused_ends / sizeof *refused_ends; i++) {
        size_t n = strlen(refused_ends[i].end);
        if (n <= longest || !ends_with(key, bytes, refused_ends[i].end)) continue;
        longest = n;
        *out = (struct adapter_key){.name_bytes = (int)(bytes - n), .refused = refused_ends[i].what};
    }
    return longest > 0;
}

/* Ends of attention module names in adapter files of old diffusers versions ("attn1.processor.to_q"). meant:
 * the current end of the name, first in a UNet or transformer, then in a text encoder. */
static const struct old_end {
    const char *old, *meant[2];
} old_ends[] = {
    {".to_q", {".to_q", ".q_proj"}},
    {".to_k", {".to_k", ".k_proj"}},
    {".to_v", {".to_v", ".v_proj"}},
    {".to_out", {".to_out.0", ".out_proj"}},
};

static int leave_out(const char *name, int bytes, const char *part, char *out) {
    int n = (int)strlen(part), at = 0;
    while (at + n <= bytes && memcmp(name + at, part, (size_t)n) != 0) at++;
    bool found = at + n <= bytes;
    int before = found ? at : bytes, skip = found ? n : 0;
    snprintf(out, LOADER_NAME_MAX + 1, "%.*s%.*s", before, name, bytes - before - skip, name + before + skip);
    return bytes - skip;
}

bool adapter_module_name(const struct adapter_module *module, int i, char *out) {
    int bytes = snprintf(out, LOADER_NAME_MAX + 1, "%.*s", module->name_bytes, module->name);
    if (i == 0) return true;
    if (module->dialect != ADAPTER_OLD_DIFFUSERS || i > 2) return false;
    bytes = leave_out(module->name, module->name_bytes, ".processor", out);
    for (size_t k = 0; k < sizeof old_ends / sizeof *old_ends; k++) {
        if (!ends_with(out, (size_t)bytes, old_ends[k].old)) continue;
        bytes -= (int)strlen(old_ends[k].old);
        snprintf(out + bytes, (size_t)(LOADER_NAME_MAX + 1 - bytes), "%s", old_ends[k].meant[i - 1]);
        return true;
    }
    return i == 1;
}
