"""How read tasks run, and where."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from ingest.spec.section import Amount, Auto, Count, Section


class Read(Section):
    """How read tasks run."""

    readers: Count | Auto = Field("auto", description="read tasks of one rank that run at a time")
    cpus: Amount = Field(1.0, description="CPUs that Ray counts for each read task")
    resources: dict[str, Amount] = Field(
        default_factory=dict, description="custom resources that Ray counts for each read task"
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="labels of the nodes that read, {ingest-role: reader} say; Ray's selectors",
    )

    @field_validator("resources")
    @classmethod
    def _custom(cls, value: dict[str, float]) -> dict[str, float]:
        own = {"CPU": "read.cpus", "GPU": None, "memory": None, "object_store_memory": None}
        for name in value:
            if name in own:
                hint = f"; give {own[name]}" if own[name] else ""
                raise ValueError(f"{name} is no custom resource{hint}")
        return value

    @property
    def place(self) -> dict[str, Any]:
        """What Ray counts for a read task, and looks for in its node: options of a task."""
        return {
            "num_cpus": self.cpus,
            **({"resources": dict(self.resources)} if self.resources else {}),
            **({"label_selector": dict(self.labels)} if self.labels else {}),
        }
