"""Programs: a sandbox for what a model wrote, verifiers that run it, data sets of programs."""

HANDLES = {
    "reader": {
        "code": "experiments.programs.data:read_code",
        "evalplus": "experiments.programs.data:read_evalplus",
        "livecodebench": "experiments.programs.data:read_livecodebench",
    },
    "verifier": {
        "codet": "verifiers.programs.codet:CodeT",
        "execution": "verifiers.programs.execution_verifier:ExecutionVerifier",
        "gen_prm": "verifiers.programs.gen_prm:GenPRM",
        "mbr_exec": "verifiers.programs.mbr_exec:MBRExec",
        "s_star": "verifiers.programs.s_star:SStar",
    },
    "grader": {"code": "experiments.programs.data:grader_of"},
}
