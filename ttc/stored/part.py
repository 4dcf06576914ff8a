"""Weights that stay as they are stored: those of .gguf files, and gpt-oss's experts in MXFP4."""

HANDLES = {
    "quantized": {"True": "ttc.stored.reading:stored_weights"},
    "int8_activations": {"True": "ttc.stored.int8_activations:round_activations"},
    "stays": {"mxfp4": "ttc.stored.mxfp4_loading:read_folder"},
}
