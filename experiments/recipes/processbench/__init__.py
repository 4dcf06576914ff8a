"""ProcessBench (Zheng et al., 2024, arXiv 2412.06559): does a verifier find the first wrong
step?"""
