"""Which ranks: a process group, or a mesh of one or two dimensions."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

Group = dist.ProcessGroup | DeviceMesh | None
"""A process group, a mesh of one dimension, or None for all ranks."""


def group_of(name: str, group: Any) -> dist.ProcessGroup | None:
    """The process group that a caller means.

    Raises:
        TypeError, ValueError: none.
        RuntimeError: torch.distributed has not been started.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "context parallelism needs a process group: call torch.distributed.init_process_group "
            "first, under torchrun. One process alone calls flashasc.attention"
        )
    if group is None:
        return None
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"{name} must be a mesh of one dimension; got {group.ndim}: pass one of them, "
                'mesh["name"], or call hybrid_attention, which takes two'
            )
        return group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{name} must have this rank as a member; it is not in this group")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{name} must be a process group, a DeviceMesh of one dimension, or None (all ranks); "
            f"got {type(group).__name__}"
        )
    return group


def mesh_groups(mesh: Any) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """(ring, heads): the groups of a mesh of two dimensions, outer and inner.

    Raises:
        TypeError, ValueError: it is not one.
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            "mesh must be a DeviceMesh of two dimensions, ring and heads: "
            f'init_device_mesh("cuda", (ring, heads)); got {type(mesh).__name__}'
        )
    if mesh.ndim != 2:
        raise ValueError(
            f"mesh must have two dimensions, ring and heads; got {mesh.ndim}. With one, call "
            "ring_attention or ulysses_attention"
        )
    return mesh.get_group(0), mesh.get_group(1)
