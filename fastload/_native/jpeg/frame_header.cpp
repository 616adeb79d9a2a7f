#include "jpeg/frame_header.h"

#include <algorithm>

#include "dct/format.h"

namespace fastload {
namespace {

// Sets all but the quantisation tables. `h`, `v`: sampling factors of the components.
bool lay_out(int width, int height, int components, const int* h, const int* v, FrameHeader* frame) {
  if (width < 1 || height < 1 || (components != 1 && components != 3)) return false;
  if (h[0] < 1 || h[0] > 2 || v[0] < 1 || v[0] > 2) return false;
  if (components == 1 && h[0] * v[0] != 1) return false;
  for (int c = 1; c < components; c++)
    if (h[c] != 1 || v[c] != 1) return false;
  // libjpeg's fancy upsampling needs three columns of chroma.
  if (h[0] == 2 && (width + 1) / 2 < 3) return false;
  frame->width = width;
  frame->height = height;
  frame->components = components;
  frame->h = h[0];
  frame->v = v[0];
  frame->sampling = components == 1          ? Sampling::kGray
                    : h[0] == 2 && v[0] == 2 ? Sampling::k2x2
                    : h[0] == 2              ? Sampling::k2x1
                    : v[0] == 2              ? Sampling::k1x2
                                             : Sampling::k1x1;
  frame->mcus_per_row = (width + frame->mcu_width() - 1) / frame->mcu_width();
  frame->mcu_rows = (height + frame->mcu_height() - 1) / frame->mcu_height();
  return true;
}

// libjpeg's rule: jdapimin.c, default_decompress_parms.
bool is_ycc(const DctImage& image) {
  if (image.components == 1 || image.jfif) return true;
  if (image.adobe) return image.adobe_transform == 1;
  const DctComponent* of = image.component;
  return !(of[0].id == 'R' && of[1].id == 'G' && of[2].id == 'B');
}

}  // namespace

bool read_frame_header(const jpeg_decompress_struct& cinfo, FrameHeader* frame) {
  int h[3], v[3];
  if (cinfo.data_precision != 8 || cinfo.arith_code || cinfo.progressive_mode || cinfo.num_components > 3)
    return false;
  if (cinfo.comps_in_scan != cinfo.num_components || cinfo.Ss != 0 || cinfo.Se != DCTSIZE2 - 1 ||
      cinfo.Ah != 0 || cinfo.Al != 0)
    return false;
  if (cinfo.jpeg_color_space != (cinfo.num_components == 1 ? JCS_GRAYSCALE : JCS_YCbCr)) return false;
  for (int c = 0; c < cinfo.num_components; c++) {
    const jpeg_component_info& info = cinfo.comp_info[c];
    if (cinfo.cur_comp_info[c] != &info) return false;  // in another order
    h[c] = info.h_samp_factor;
    v[c] = info.v_samp_factor;
    std::copy_n(cinfo.quant_tbl_ptrs[info.quant_tbl_no]->quantval, 64, frame->quant[c]);
  }
  return lay_out(static_cast<int>(cinfo.image_width), static_cast<int>(cinfo.image_height),
                 cinfo.num_components, h, v, frame);
}

bool read_frame_header(const DctImage& image, FrameHeader* frame) {
  int h[kDctMaxComponents], v[kDctMaxComponents];
  if (!is_ycc(image)) return false;
  for (int c = 0; c < image.components; c++) {
    const DctComponent& component = image.component[c];
    h[c] = component.h;
    v[c] = component.v;
    for (int k = 0; k < 64; k++) frame->quant[c][kNaturalOrder[k]] = component.quant[k];
  }
  return lay_out(image.width, image.height, image.components, h, v, frame);
}

}  // namespace fastload
