"""The processes that share a run's documents: one, or those that torchrun started."""
import datetime
import os

import torch
import torch.distributed as dist

from core.files import InputError


class Team:
    """The processes of a run: one, or those that torchrun started. All must see the same output folder.

    Other programs and clusters set RANK and WORLD_SIZE too. They count only beside TORCHELASTIC_RUN_ID, which torchrun
    sets.
    """

    def __init__(self):
        self.rank = 0
        self.size = 1
        self.local_rank = 0
        if "TORCHELASTIC_RUN_ID" in os.environ:
            self.rank, self.size, self.local_rank = (
                int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        if self.size > 1:
            # The first process to finish waits for the last, however long. If one fails, torchrun ends all.
            dist.init_process_group("gloo", timeout=datetime.timedelta(days=30))

    def device(self, wanted: str) -> str:
        """The device of this process. If there are several GPUs, each process takes its own."""
        if self.size > 1 and wanted in ("auto", "cuda") and torch.cuda.is_available():
            return f"cuda:{self.local_rank % torch.cuda.device_count()}"
        return wanted

    def each(self, function) -> list:
        """Call a function in each process and return all results. Each process waits for the others.

        If one process raises InputError, all raise it, so that none continues alone. torchrun ends all after others.
        """
        try:
            mine = function()
        except InputError as error:
            mine = error
        found = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(found, mine)

        for outcome in found:
            if isinstance(outcome, InputError):
                raise outcome
        return found

    def first(self, function):
        """The result of a function that is called in the first process only, for all. InputError as in `each`."""
        return self.each(lambda: function() if self.rank == 0 else None)[0]

    def leave(self):
        if self.size > 1:
            dist.destroy_process_group()
