"""Generates test/golden/gguf/*.gguf for test_gguf: small GGUF files written by the gguf package. Needs gguf 0.19 and numpy.
"""
import os
import sys

import gguf
import numpy

QUANTS = gguf.GGMLQuantizationType
# Types that gguf.quants writes; tensors of the others are arbitrary bytes of the correct size, which the parser does
# not interpret.
RAW = [t for t in QUANTS if t not in (QUANTS.Q8_1,)]


def metadata(writer):
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -3)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4000000000)
    writer.add_int32("test.i32", -2000000000)
    writer.add_uint64("test.u64", 2**63 + 2048)
    writer.add_int64("test.i64", -(2**53))
    writer.add_float32("test.f32", 1e-6)
    writer.add_float64("test.f64", 1 / 3)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "Grüße")
    writer.add_array("test.ints", [3, -4, 5])
    writer.add_array("test.floats", [0.5, 1e10])
    writer.add_array("test.strings", ["a", "", "ccc"])
    writer.add_uint32("test.block_count", 7)


def types(path):
    """Writes a GGUF file with one tensor per type, two rows of 512 values with numbered bytes; names up to 127
    bytes; ranks 0 to 5."""
    writer = gguf.GGUFWriter(path, "test")
    metadata(writer)
    for t in RAW:
        values, size = gguf.GGML_QUANT_SIZES[t]
        row = 512 // values * size
        data = (numpy.arange(2 * row) % 251).astype(numpy.uint8).reshape(2, row)
        writer.add_tensor(f"type.{t.name}", data, raw_shape=(2, row), raw_dtype=t)
    writer.add_tensor("n" * 127, numpy.arange(3, dtype=numpy.float32))
    writer.add_tensor("five", numpy.arange(2 * 3 * 1 * 2 * 2, dtype=numpy.float32).reshape(2, 3, 1, 2, 2))
    write(writer)


def aligned(path):
    """Writes a GGUF file with 64-byte alignment and a flattened convolution weight, as ComfyUI's converter does."""
    writer = gguf.GGUFWriter(path, "sd1")
    writer.add_custom_alignment(64)
    kernel = numpy.arange(320 * 4 * 3 * 3, dtype=numpy.float32)
    writer.add_array("comfy.gguf.orig_shape.conv.weight", [320, 4, 3, 3])
    writer.add_tensor("conv.weight", gguf.quants.quantize(kernel.reshape(-1, 256), QUANTS.Q4_0), raw_dtype=QUANTS.Q4_0)
    writer.add_tensor("bias", numpy.arange(5, dtype=numpy.float16))
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


folder = sys.argv[1] if len(sys.argv) > 1 else "test/golden/gguf"
os.makedirs(folder, exist_ok=True)
types(f"{folder}/types.gguf")
aligned(f"{folder}/aligned.gguf")
