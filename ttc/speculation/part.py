"""Speculation: tokens that are guessed, so that one pass of the model checks several of them."""

HANDLES = {
    "group": {"speculation": "ttc.speculation.base:Draft"},
    "speculation": {
        "prompt_lookup": "ttc.speculation.prompt_lookup:PromptLookup",
        "draft_model": "ttc.speculation.draft_model:DraftModel",
    },
}
