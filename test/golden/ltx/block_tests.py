"""Block tests of LTX-2's transformer, for ../block_tests.py."""

from block_steps import RUN_ALL, expect, open_, put, run, suite, test


def ltx2(f):
    about, case = f.blocks["block"], f.expect["cases"][0]
    lane = dict(component="ltx2", text="case0.hidden.cond", fps=case["fps"]) | (dict(n_clean_frames=about["given"]) if about["given"] else {})
    lanes = dict(case0=lane | dict(timestep="block.t", latent="block.latent[0]", sound="block.sound[0]"))
    nets, text = [run("time_embed"), run("audio_time_embed"), run("av_cross_attn_*")], []
    rows = [("sound_condition", "sound_e"), ("sound_modulation", "sound_modulation"), ("cross", "cross"), ("sound_cross", "sound_cross"),
            ("gate", "gate"), ("sound_gate", "sound_gate")]
    if f.has("block.prompt"):  # LTX-2.3
        nets += [run("prompt_adaln"), run("audio_prompt_adaln")]
        rows += [("prompt", "prompt"), ("sound_prompt", "sound_prompt")]
    else:
        text = [run("caption_projection"), run("audio_caption_projection")]
    for i, clean in enumerate(["clean_", ""] if about["given"] else [""]):  # the reference's rows are for timestep 0, then t
        rows += [(f"{clean}condition", f"e[{i}:{i + 1}]"), (f"{clean}modulation", f"modulation[{i}:{i + 1}]")]
    begin = [open_("case0"), *nets]
    layer = [put("block.layer.in[0]", "tokens"), put("block.layer.sound.in[0]", "sound"), run(f"transformer_blocks.{about['layer']}.*"),
             expect("tokens", "block.layer.out[0]", "block.layer"), expect("sound", "block.layer.sound.out[0]", "block.layer.sound")]
    final = [put("block.final.in[0]", "tokens"), put("block.final.sound.in[0]", "sound"), run("proj_out"),
             expect("lane.prediction", "block.velocity[0]", "block.final"), expect("lane.sound_prediction", "block.sound_velocity[0]", "block.final.sound")]
    tests = [
        test("nets", *begin, *[expect(ours, f"block.{theirs}", f"block.{theirs.split('[')[0]}") for ours, theirs in rows]),
        test("embedders", *begin, expect("sound_rope", "rope.sound", "rope"), expect("cross_sound_rope", "rope.cross_sound", "rope"), run("proj_in"),
             expect("tokens", "embed.image.out[0]", "embed.image"), expect("sound", "embed.sound.out[0]", "embed.sound")),
        test("layer", *begin, *text, *layer),
        test("final", *begin, *final),
    ]
    if text:
        tests.append(test("text", open_("case0"), *text, expect("text[0:40]", "embed.text.out", "embed.text"),
                          expect("sound_text[0:40]", "embed.sound_text.out", "embed.text")))
    for call in f.expect["blocks"]["transformer"]:
        name = call["name"]
        lanes[name] = lane | dict(timestep=f"{name}.t", latent=f"case0.{call['latent']}[0]", sound=f"case0.{call['sound']}[0]",
                                  stg_blocks=call["stg_blocks"], isolated=call["isolated"])
        # the noise lacks the clean frame
        clean = [put("case0.encoded.init[0]", "lane.latent[:,0:1]")] if about["given"] and call["latent"] == "latent_000" else []
        tests.append(test(name, open_(name), *clean, RUN_ALL, expect("lane.prediction", f"{name}.out[0]", "velocity"),
                          expect("lane.sound_prediction", f"{name}.sound[0]", "velocity.sound")))
    return suite("ltx2", lanes, tests, gpu=True)
