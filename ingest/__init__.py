"""Feed distributed training from object storage: exact, repeatable, resumable, never silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Loader", "Spec", "__version__", "errors"]

if TYPE_CHECKING:
    from ingest import errors
    from ingest.session import Loader
    from ingest.spec import Spec

_WHERE = {"Loader": ("ingest.session", "Loader"), "Spec": ("ingest.spec", "Spec"), "errors": ("ingest.errors", None)}


def __getattr__(name: str) -> Any:
    # Lazy, so that `import ingest` costs nothing and loads neither Ray, DALI nor a framework.
    if name not in _WHERE:
        raise AttributeError(f"module 'ingest' has no attribute '{name}'")
    import importlib

    module, attribute = _WHERE[name]
    loaded = importlib.import_module(module)
    return loaded if attribute is None else getattr(loaded, attribute)
