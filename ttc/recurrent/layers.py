"""The recurrent layers of a model as the engine asks for them (`ttc.model.recurrent_layers`)."""

from __future__ import annotations

from torch import Tensor

from ttc.model.check.recording import AttentionCall
from ttc.passes.runtime import Runtime
from ttc.recurrent.check import Check, check_recurrent
from ttc.recurrent.modules import Recurrent
from ttc.recurrent.pass_states import PassStates
from ttc.recurrent.running_states import RunningStates


class RecurrentLayers(Recurrent):
    def check(self, check: Check, calls: list[AttentionCall], ids: Tensor, logits: Tensor) -> None:
        check_recurrent(self, check, calls, ids, logits)

    def pass_states(self, runtime: Runtime) -> PassStates:
        return PassStates(runtime)

    def running_states(self, runtime: Runtime) -> RunningStates:
        return RunningStates(runtime)
