"""The spec: what to read, in which order, augmented how, batched how. Validated, frozen, data only."""

from ingest.spec.augment import Augment, Recipe
from ingest.spec.batch import Batch, BucketBy
from ingest.spec.delivery import Errors, LoaderOptions
from ingest.spec.facts import class_facts, fingerprint
from ingest.spec.order import Mixing, Order
from ingest.spec.read import Read
from ingest.spec.section import Amount, Auto, Count, Fraction, Section, Size
from ingest.spec.source import FeatureType, Source, Split, TFRecord, WeightedSource
from ingest.spec.storage import Cache, CachedStorage, Storage
from ingest.spec.whole import Spec, json_schema

__all__ = [
    "Amount",
    "Augment",
    "Auto",
    "Batch",
    "BucketBy",
    "Cache",
    "CachedStorage",
    "Count",
    "Errors",
    "FeatureType",
    "Fraction",
    "LoaderOptions",
    "Mixing",
    "Order",
    "Read",
    "Recipe",
    "Section",
    "Size",
    "Source",
    "Spec",
    "Split",
    "Storage",
    "TFRecord",
    "WeightedSource",
    "class_facts",
    "fingerprint",
    "json_schema",
]
