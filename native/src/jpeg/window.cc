// A window of a JPEG image, decoded without what is beside and below it, by the libjpeg-turbo that is found when the program runs.

#include <dlfcn.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "libjpeg.h"

namespace {

using libjpeg::Decompress;

constexpr unsigned kPadding = 4;  // pixels beside the window that upsampled colours depend on: two samples at half the width
constexpr unsigned kGroup = 16;   // rows that are read at once
constexpr int kExif = 0xE1;       // the marker of what may say how to turn the image
libjpeg::Functions lib;

struct Errors : libjpeg::ErrorManager {
  std::jmp_buf place;
};

[[noreturn]] void fail(libjpeg::Common* common) { std::longjmp(static_cast<Errors*>(common->err)->place, 1); }

void note(libjpeg::Common* common, int level) { common->err->num_warnings += level < 0; }

void say_nothing(libjpeg::Common*) {}

// Whether pixels are those of the whole image: tested with images of one scan, gray or with colours that have all, half (side by side) or
// a quarter of the samples.
bool is_usual(const Decompress& jpeg) {
  for (const libjpeg::Marker* m = jpeg.marker_list; m; m = m->next)
    if (m->code == kExif && (m->data_length < 4 || std::memcmp(m->data, "http", 4) != 0)) return false;  // XMP turns nothing
  if (jpeg.progressive_mode || jpeg.arith_code || jpeg.data_precision != 8) return false;
  const libjpeg::Component* c = jpeg.comp_info;
  const auto is_one = [&](int i) { return c[i].h_samp_factor == 1 && c[i].v_samp_factor == 1; };
  if (jpeg.num_components == 1) return jpeg.jpeg_color_space == libjpeg::kGray && is_one(0);
  if (jpeg.num_components != 3 || jpeg.comps_in_scan != 3 || jpeg.jpeg_color_space != libjpeg::kYCbCr) return false;
  return c[0].h_samp_factor <= 2 && c[0].v_samp_factor <= c[0].h_samp_factor && is_one(1) && is_one(2);
}

}  // namespace

extern "C" {

// Loads libjpeg-turbo from a file. Returns 0 where that cannot be used.
int oneflow_jpeg_load(const char* path) {
  void* found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!found) return 0;
  bool complete = true;
  auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(found, name));
    complete = complete && function;
  };
  libjpeg::Functions made{};
  get(made.std_error, "jpeg_std_error");
  get(made.create, "jpeg_CreateDecompress");
  get(made.mem_src, "jpeg_mem_src");
  get(made.save_markers, "jpeg_save_markers");
  get(made.read_header, "jpeg_read_header");
  get(made.start, "jpeg_start_decompress");
  get(made.crop_scanline, "jpeg_crop_scanline");
  get(made.skip_scanlines, "jpeg_skip_scanlines");
  get(made.read_scanlines, "jpeg_read_scanlines");
  get(made.destroy, "jpeg_destroy_decompress");
  if (!complete) return 0;
  Errors errors;
  Decompress jpeg{};
  jpeg.err = made.std_error(&errors);
  errors.error_exit = fail;
  errors.output_message = say_nothing;
  if (setjmp(errors.place)) return 0;
  made.create(&jpeg, libjpeg::kVersion, sizeof jpeg);  // fails where its version or its layout is another one
  made.destroy(&jpeg);
  lib = made;
  return 1;
}

// Decodes rows y to y + h - 1 and columns x to x + w - 1 of an image into rows of `stride` bytes, as BGR. The file's image has `height` x
// `width` pixels; the window is of the image that is 1, 2, 4 or 8 times (`factor`) smaller.
// Returns the column of `out` where the window begins; -1 for an image that is left to another decoder, or is damaged.
int oneflow_jpeg_window(const std::uint8_t* data, std::size_t size, unsigned height, unsigned width, unsigned factor, unsigned y, unsigned x,
                        unsigned h, unsigned w, std::uint8_t* out, std::size_t stride) {
  Errors errors;
  Decompress jpeg{};
  jpeg.err = lib.std_error(&errors);
  errors.error_exit = fail;
  errors.emit_message = note;
  errors.output_message = say_nothing;
  if (setjmp(errors.place)) {
    lib.destroy(&jpeg);
    return -1;
  }
  lib.create(&jpeg, libjpeg::kVersion, sizeof jpeg);
  lib.mem_src(&jpeg, data, size);
  lib.save_markers(&jpeg, kExif, 4);
  lib.read_header(&jpeg, 1);
  int shift = -1;
  const bool reduces = factor == 1 || factor == 2 || factor == 4 || factor == 8;
  if (reduces && jpeg.image_height == height && jpeg.image_width == width && is_usual(jpeg)) {
    jpeg.out_color_space = libjpeg::kBgr;
    jpeg.scale_num = 1;
    jpeg.scale_denom = factor;
    lib.start(&jpeg);
    const unsigned bottom = jpeg.output_height, right = jpeg.output_width;
    const bool fits = w > 0 && h > 0 && y < bottom && h <= bottom - y && x < right && w <= right - x;
    unsigned left = x - std::min(x, kPadding), columns = fits ? std::min(right, x + w + kPadding) - left : right;
    if (columns < right) lib.crop_scanline(&jpeg, &left, &columns);
    if (fits && std::size_t{3} * columns <= stride && jpeg.output_components == 3) {
      if (y) lib.skip_scanlines(&jpeg, y);
      for (unsigned done = 0; done < h;) {
        std::uint8_t* rows[kGroup];
        const unsigned count = std::min(kGroup, h - done);
        for (unsigned i = 0; i < count; ++i) rows[i] = out + stride * (done + i);
        done += lib.read_scanlines(&jpeg, rows, count);
      }
      if (errors.num_warnings == 0) shift = static_cast<int>(x - left);
    }
  }
  lib.destroy(&jpeg);
  return shift;
}
}
