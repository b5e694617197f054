"""Block tests of the Anima fixture, for ../block_tests.py."""

from block_steps import RUN_ALL, case_latent, expect, final_layers, open_, put, run, suite, test, zeros


def anima(f):
    about = f.blocks["block"]
    text = [f"case0.hidden.cond[0:{about['prompt']}]", zeros(about["zeros"], f.shape("case0.hidden.cond")[1])]
    lanes = dict(case0=dict(component="anima") | case_latent() | dict(text=text))
    number = about["layer"]
    layer = f"transformer_blocks.{number}"
    begin = [open_("case0"), run("transformer_blocks.0.text_kv")]  # the first of these blocks also fills the rope table
    conditioning = [put("block.time", "time"), put("block.shared", "shared")]
    final = final_layers(f, lanes, [run("proj_out")], [put("block.final_modulation", "final_modulation")], lambda rows: "tokens", "channels_last")
    return suite("anima", lanes, [
        test("conditioning", open_("case0"), run("time_embed"), expect("time", "block.time", "block.time"), expect("shared", "block.shared", "block.shared"),
             *conditioning, run(f"{layer}.modulation"), expect(f"modulation[{3 * number}:{3 * number + 3},0]", "block.modulation", "block.modulation"),
             run("norm_out"), expect("final_modulation", "block.final_modulation", "block.final_modulation")),
        test("embedders", *begin, expect("rope", "rope", "rope"), run("patch_embed"), expect("tokens", "embed.image.out", "embed.image")),
        dict(test("text", *begin, run(f"{layer}.text_kv"), expect(f"keys[{number}]", "block.keys", "block.keys"),
                  expect(f"values[{number}]", "block.values", "block.values")), bf16=False),
        test("layer", *begin, run(f"{layer}.text_kv"), *conditioning, run(f"{layer}.modulation"), put("block.layer.in", "tokens"), run(layer),
             expect("tokens", "block.layer.out", "block.layer")),
        test("final", *final),
        test("transformer", open_("case0"), RUN_ALL, expect("lane.prediction[:,0]", "block.velocity[0]", "block.velocity")),
    ], bf16=True)


def anima_adapter(f):
    about, (rows, columns) = f.blocks["block.adapter"], f.shape("adapter.embedding")
    lanes = dict(case0=dict(component="anima_adapter", tokens="case0.ids_2.cond", text=zeros(rows, columns), source="source"))
    begin, text = [open_("case0"), dict(table=0)], "lane.text"
    return suite("anima_adapter", lanes, [
        test("adapter layer", *begin, expect(text, "adapter.embedding", "adapter.embedding"), put("block.adapter.in", text),
             run(f"blocks.{about['layer']}"), expect(text, "block.adapter.out", "block.adapter")),
        test("adapter", *begin, run("blocks.*"), run("out_proj"), expect(text, "adapter.out", "adapter")),
    ], bf16=True)
