"""Rows of registered ops that read data: readers, decoders, images, boxes and polygons, tensor buffers."""

from __future__ import annotations

from typing import Any

from .registry import Attributes, Build, Inputs, call, row


def _seeded(build: Build, attribute: str = "seed") -> Build:
    """The seed, and ``has_seed`` where there is such an attribute, as one: None without a seed."""

    def made(i: Inputs, a: Attributes, n: str) -> Any:
        seed = a[attribute] if a.get("has_seed", a[attribute] >= 0) else None
        return build(i, {**a, attribute: seed}, n)

    return made


# --- readers

_PARTS = """data_dir: str; data_part_num: int32; batch_size: int32; part_name_prefix: str = 'part-';
    part_name_suffix_length: int32 = -1; random_shuffle: bool = False; seed: int64 = -1; shuffle_buffer_size: int32 = 1024;
    shuffle_after_epoch: bool = False"""
_PART_NAMES = {
    n: n for n in ("batch_size", "data_part_num", "part_name_prefix", "part_name_suffix_length", "random_shuffle",
                   "shuffle_buffer_size", "shuffle_after_epoch")
} | {"random_seed": "seed"}  # fmt: skip
row(f"OFRecordReader () -> (out) {{{_PARTS}}}", _seeded(call("data.ofrecord_reader", "data_dir", **_PART_NAMES)))
row(f"""ofrecord_image_classification_reader () -> (image, label) {{{_PARTS}; color_space: str = 'BGR';
    image_feature_name: str = 'encoded'; label_feature_name: str = 'class/label'; decode_buffer_size_per_thread: int32 = 8;
    num_decode_threads_per_machine: int32 = 0}}""",
    _seeded(call("data.ofrecord_image_classification_reader", "data_dir", "image_feature_name", "label_feature_name",
                 color_space="color_space", **_PART_NAMES)))  # fmt: skip
row("""COCOReader () -> (image, image_id, image_size, gt_bbox, gt_label, gt_segm, gt_segm_index) {session_id: int64 = 0;
    annotation_file: str; image_dir: str; batch_size: int64; shuffle_after_epoch: bool = True; random_seed: int64 = -1;
    group_by_ratio: bool = True; remove_images_without_annotations: bool = True; stride_partition: bool = False}""",
    _seeded(call("data.coco_reader", "annotation_file", "image_dir", "batch_size", shuffle="shuffle_after_epoch",
         random_seed="random_seed", group_by_aspect_ratio="group_by_ratio", stride_partition="stride_partition",
         remove_images_without_annotations="remove_images_without_annotations"), "random_seed"))  # fmt: skip
row("""OneRecReader () -> (out) {files: list[str]; batch_size: int32; random_shuffle: bool = False;
    shuffle_mode: str = 'instance'; seed: int64 = -1; shuffle_buffer_size: int32 = 1024;
    shuffle_after_epoch: bool = False; verify_example: bool = True}""",
    _seeded(call("data.onerec_reader", "files", "batch_size", "random_shuffle", "shuffle_mode", "shuffle_buffer_size",
                 "shuffle_after_epoch", "verify_example", random_seed="seed")))  # fmt: skip

# --- decoders

_CROP = """num_attempts: int32 = 10; seed: int64 = -1; has_seed: bool = False; random_area: list[float] = (0.08, 1.0);
    random_aspect_ratio: list[float] = (0.75, 1.333333)"""
_CROP_NAMES = {n: n for n in ("num_attempts", "seed", "random_area", "random_aspect_ratio")}
row("ofrecord_bytes_decoder (in) -> (out) {name: str}", call("data.ofrecord_bytes_decoder", "in", blob_name="name"))
row("ofrecord_image_decoder (in) -> (out) {name: str; color_space: str = 'BGR'}",
    call("data.ofrecord_image_decoder", "in", blob_name="name", color_space="color_space"))  # fmt: skip
row(f"ofrecord_image_decoder_random_crop (in) -> (out) {{name: str; color_space: str = 'BGR'; {_CROP}}}",
    _seeded(call("data.ofrecord_image_decoder_random_crop", "in", blob_name="name", color_space="color_space",
                 **_CROP_NAMES)))  # fmt: skip
row("""ofrecord_raw_decoder (in) -> (out) {name: str; shape: Shape; data_type: dtype; dim1_varying_length: bool = False;
    auto_zero_padding: bool = False}""",
    call("data.ofrecord_raw_decoder", "in", "name", "shape", "data_type", dim1_varying_length="dim1_varying_length",
         auto_zero_padding="auto_zero_padding"))  # fmt: skip


def _onerec(i: Inputs, a: Attributes, n: str) -> Any:
    given = {k: a[k] if a[f"has_{k}"] else None for k in ("reshape", "batch_padding")}
    names = {k: k for k in ("is_dynamic", "reshape", "batch_padding")}
    return call("data.onerec_decoder", "in", "key", "data_type", "static_shape", **names)(i, {**a, **given}, n)


row("""onerec_decoder (in) -> (out) {key: str; data_type: dtype; static_shape: Shape; is_dynamic: bool = False;
    has_reshape: bool = False; reshape: Shape = (); has_batch_padding: bool = False; batch_padding: Shape = ()}""",
    _onerec)  # fmt: skip

# --- images

row("image_decode (in) -> (out) {color_space: str = 'BGR'; data_type: dtype = None}",
    call("image.decode", "in", color_space="color_space", dtype="data_type"))  # fmt: skip
row("image_flip (in, flip_code) -> (out)", call("image.flip", "in", "flip_code"))
row("image_normalize (in) -> (out) {std: list[float]; mean: list[float]}", call("image.normalize", "in", "std", "mean"))
row(f"image_random_crop (in) -> (out) {{{_CROP}}}", _seeded(call("image.random_crop", "in", **_CROP_NAMES)))
row("image_batch_align (in) -> (out) {shape: Shape; data_type: dtype; alignment: int32}",
    call("image.batch_align", "in", "shape", "data_type", "alignment"))  # fmt: skip
row("image_target_resize (in) -> (out, size, scale) {target_size: int32; max_size: int32}",
    call("image.target_resize", "in", "target_size", max_size="max_size"))  # fmt: skip


def _resized(i: Inputs, a: Attributes, n: str) -> Any:
    side = "longer" if a["resize_longer"] else "shorter"
    limits = {k: a[k] or None for k in ("min_size", "max_size")}
    names = {k: k for k in ("target_size", "min_size", "max_size", "keep_aspect_ratio", "resize_side", "interpolation_type")}
    given = {**a, **limits, "keep_aspect_ratio": True, "resize_side": side}
    image, scale, size = call("image.resize", "in", **names)(i, given, n)
    return image, size, scale


def _fixed(i: Inputs, a: Attributes, n: str) -> Any:
    names = {"target_size": "size", "channels": "channels", "dtype": "data_type", "interpolation_type": "interpolation_type"}
    return call("image.resize", "in", **names)(i, {**a, "size": (a["target_width"], a["target_height"])}, n)


row("""image_resize_keep_aspect_ratio (in) -> (out, size, scale) {target_size: int32; min_size: int32 = 0; max_size: int32 = 0;
    resize_longer: bool = False; interpolation_type: str = 'bilinear'}""", _resized)  # fmt: skip
row("""image_resize_to_fixed (in) -> (out, scale) {target_width: int64 = 0; target_height: int64 = 0; channels: int64 = 3;
    data_type: dtype = None; interpolation_type: str = 'bilinear'}""", _fixed)  # fmt: skip
_MIRROR = """color_space: str = 'BGR'; output_layout: str = 'NCHW'; mean: list[float] = (0.0,); std: list[float] = (1.0,);
    crop_h: int64 = 0; crop_w: int64 = 0; crop_pos_x: float = 0.5; crop_pos_y: float = 0.5; output_dtype: dtype = None"""
_MIRROR_NAMES = {
    n: n for n in ("color_space", "output_layout", "mean", "std", "crop_h", "crop_w", "crop_pos_x", "crop_pos_y", "output_dtype")
}  # fmt: skip
for _type in ("crop_mirror_normalize_from_tensorbuffer", "crop_mirror_normalize_from_uint8"):
    row(f"{_type} (in, mirror?) -> (out) {{{_MIRROR}}}",
        call("image.crop_mirror_normalize", "in", mirror_blob="mirror", **_MIRROR_NAMES))  # fmt: skip

# --- boxes and polygons

row(
    "object_bbox_flip (bbox, image_size, flip_code) -> (out)",
    call("detection.object_bbox_flip", "bbox", "image_size", "flip_code"),
)
row("object_bbox_scale (bbox, scale) -> (out)", call("detection.object_bbox_scale", "bbox", "scale"))
row("object_segmentation_polygon_flip (poly, image_size, flip_code) -> (out)",
    call("detection.object_segmentation_polygon_flip", "poly", "image_size", "flip_code"))  # fmt: skip
row("object_segmentation_polygon_scale (poly, scale) -> (out)",
    call("detection.object_segmentation_polygon_scale", "poly", "scale"))  # fmt: skip
row("object_segmentation_polygon_to_mask (poly, poly_index, image_size) -> (out)",
    call("detection.object_segmentation_polygon_to_mask", "poly", "poly_index", "image_size"))  # fmt: skip

# --- tensor buffers

row("tensor_buffer_to_tensor (in) -> (out) {instance_shape: Shape; dtype: dtype}",
    call("tensor_buffer_to_tensor", "in", "dtype", "instance_shape"))  # fmt: skip
row("tensor_to_tensor_buffer (in) -> (out) {instance_dims: int32}", call("tensor_to_tensor_buffer", "in", "instance_dims"))
