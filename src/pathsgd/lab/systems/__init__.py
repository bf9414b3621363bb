"""The systems of the paper's tables: one file each, listed here by name.

A system is a frozen dataclass of settings (``IrnnSystem(hidden=100)``)::

    system = SYSTEMS["irnn"]()
    model = system.build(task, seed=0)                      # nn.Module: (inputs, state=None) -> (outputs, state)
    losses = system.losses(model, task, batch, state)       # objective (with penalty), loss, state
    losses.objective.backward()
    state = detach_state(losses.state)

A new system is one new file and one line in ``SYSTEMS``.
"""
