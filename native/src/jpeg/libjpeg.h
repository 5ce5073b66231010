// What this library uses of libjpeg-turbo's interface (its jpeglib.h, with the binary interface of version 62), so that it can be built
// without libjpeg. The library itself is found when the program runs, and compares its version and the size of `Decompress`.
//
// Layouts are those of jpeglib.h: Copyright (C) 1991-1998, Thomas G. Lane; modified 2002-2009 by Guido Vollbeding; libjpeg-turbo
// modifications: Copyright (C) 2009-2024, D. R. Commander; Copyright (C) 2015, Google, Inc. This software is based in part on the work of the
// Independent JPEG Group.
#pragma once

#include <cstddef>

namespace libjpeg {

constexpr int kVersion = 62;
enum ColorSpace : int { kGray = 1, kYCbCr = 3, kBgr = 8 };

struct Common;

struct ErrorManager {
  void (*error_exit)(Common*);
  void (*emit_message)(Common*, int level);
  void (*output_message)(Common*);
  void (*format_message)(Common*, char*);
  void (*reset_error_mgr)(Common*);
  int msg_code;
  union {
    int i[8];
    char s[80];
  } msg_parm;
  int trace_level;
  long num_warnings;
  const char* const* jpeg_message_table;
  int last_jpeg_message;
  const char* const* addon_message_table;
  int first_addon_message;
  int last_addon_message;
};

struct Common {  // what compression and decompression objects begin with
  ErrorManager* err;
  void* mem;
  void* progress;
  void* client_data;
  int is_decompressor;
  int global_state;
};

struct Component {
  int component_id, component_index, h_samp_factor, v_samp_factor, quant_tbl_no, dc_tbl_no, ac_tbl_no;
  unsigned width_in_blocks, height_in_blocks;
  int dct_scaled_size;
  unsigned downsampled_width, downsampled_height;
  int component_needed;
  int mcu_width, mcu_height, mcu_blocks, mcu_sample_width, last_col_width, last_row_height;
  void* quant_table;
  void* dct_table;
};

struct Marker {  // of an image, saved
  Marker* next;
  unsigned char code;
  unsigned original_length, data_length;
  unsigned char* data;
};

struct Decompress : Common {
  void* src;
  unsigned image_width, image_height;
  int num_components;
  int jpeg_color_space, out_color_space;
  unsigned scale_num, scale_denom;
  double output_gamma;
  int buffered_image, raw_data_out;
  int dct_method, do_fancy_upsampling, do_block_smoothing;
  int quantize_colors, dither_mode, two_pass_quantize, desired_number_of_colors;
  int enable_1pass_quant, enable_external_quant, enable_2pass_quant;
  unsigned output_width, output_height;
  int out_color_components, output_components, rec_outbuf_height, actual_number_of_colors;
  unsigned char** colormap;
  unsigned output_scanline;
  int input_scan_number;
  unsigned input_imcu_row;
  int output_scan_number;
  unsigned output_imcu_row;
  int (*coef_bits)[64];
  void* quant_tbl_ptrs[4];
  void* dc_huff_tbl_ptrs[4];
  void* ac_huff_tbl_ptrs[4];
  int data_precision;
  Component* comp_info;
  int progressive_mode, arith_code;
  unsigned char arith_dc_l[16], arith_dc_u[16], arith_ac_k[16];
  unsigned restart_interval;
  int saw_jfif_marker;
  unsigned char jfif_major_version, jfif_minor_version, density_unit;
  unsigned short x_density, y_density;
  int saw_adobe_marker;
  unsigned char adobe_transform;
  int ccir601_sampling;
  Marker* marker_list;
  int max_h_samp_factor, max_v_samp_factor, min_dct_scaled_size;
  unsigned total_imcu_rows;
  unsigned char* sample_range_limit;
  int comps_in_scan;
  Component* cur_comp_info[4];
  unsigned mcus_per_row, mcu_rows_in_scan;
  int blocks_in_mcu;
  int mcu_membership[10];
  int ss, se, ah, al;
  int unread_marker;
  void* modules[11];
};

struct Functions {
  ErrorManager* (*std_error)(ErrorManager*);
  void (*create)(Decompress*, int version, std::size_t size);
  void (*mem_src)(Decompress*, const unsigned char*, unsigned long size);
  void (*save_markers)(Decompress*, int code, unsigned most_bytes);
  int (*read_header)(Decompress*, int require_image);
  int (*start)(Decompress*);
  void (*crop_scanline)(Decompress*, unsigned* offset, unsigned* width);
  unsigned (*skip_scanlines)(Decompress*, unsigned count);
  unsigned (*read_scanlines)(Decompress*, unsigned char** rows, unsigned count);
  void (*destroy)(Decompress*);
};

}  // namespace libjpeg
