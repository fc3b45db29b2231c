"""The tests of a GPU (`tests/gpu`), each by the same function, on DALI's CPU backend: right, but for the device."""

from __future__ import annotations

import device_checks as checks
import pytest
from augment_ops import CASES

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    checks.on_cpu_backend(monkeypatch)


@pytest.mark.parametrize("name", checks.NEAR_REFERENCE)
def test_pixels_are_close_to_the_reference(name):
    checks.is_near_the_reference(name)


@pytest.mark.parametrize("name", checks.IMAGE_RECIPES)
def test_a_recipe_agrees_with_the_cpu_path(name):
    checks.recipe_is_near_the_cpu_path(name)


@pytest.mark.parametrize("name", CASES)
def test_an_op_agrees_with_the_cpu_path(name):
    checks.op_is_near_the_cpu_path(name, device_id=None)


@pytest.mark.parametrize("name", checks.SAME_BITS)
def test_bits_do_not_depend_on_the_batch(name):
    checks.bits_do_not_depend_on_the_batch(name)


def test_other_formats_and_turned_images_join_after_decoding():
    checks.other_formats_and_turned_images_join_after_decoding()


def test_a_bad_image_is_named_and_the_augmenter_lives_on():
    checks.a_bad_image_is_named_and_the_augmenter_lives_on()
