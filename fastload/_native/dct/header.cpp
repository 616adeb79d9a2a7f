// The JPEG header that represents a record: ITU-T T.81 Annex B, JFIF 1.02, and Adobe's APP14.
#include <cstring>

#include "dct/format.h"

namespace fastload {
namespace {

uint8_t* put(uint8_t* at, const uint8_t* bytes, size_t nbytes) {
  std::memcpy(at, bytes, nbytes);
  return at + nbytes;
}

uint8_t* put16(uint8_t* at, int value) {
  *at++ = static_cast<uint8_t>(value >> 8);
  *at++ = static_cast<uint8_t>(value);
  return at;
}

// The first component with the same table: components share a DQT slot if they can.
int quant_slot(const DctImage& image, int index) {
  for (int earlier = 0; earlier < index; earlier++)
    if (std::memcmp(image.component[earlier].quant, image.component[index].quant,
                    sizeof(image.component[0].quant)) == 0)
      return earlier;
  return index;
}

uint8_t* put_quant(uint8_t* at, const uint16_t* quant, int slot) {
  bool words = false;
  for (int k = 0; k < 64; k++) words |= quant[k] > 255;
  *at++ = 0xFF;
  *at++ = 0xDB;
  at = put16(at, 3 + (words ? 128 : 64));
  *at++ = static_cast<uint8_t>((words ? 16 : 0) | slot);
  for (int k = 0; k < 64; k++) {
    if (words) *at++ = static_cast<uint8_t>(quant[k] >> 8);
    *at++ = static_cast<uint8_t>(quant[k]);
  }
  return at;
}

}  // namespace

void dct_jfif_segment(uint8_t* segment) {
  // Version 1.01, no units, density 1x1, no thumbnail: as libjpeg and Pillow write it.
  constexpr uint8_t kSegment[kDctJfifNbytes] = {0xFF, 0xE0, 0, 16, 'J', 'F', 'I', 'F', 0,
                                                1,    1,    0, 0,  1,   0,   1,   0,   0};
  std::memcpy(segment, kSegment, sizeof(kSegment));
}

void dct_adobe_segment(int transform, uint8_t* segment) {
  constexpr uint8_t kSegment[kDctAdobeNbytes] = {0xFF, 0xEE, 0,   14, 'A', 'd', 'o', 'b',
                                                 'e',  0,    100, 0,  0,   0,   0,   0};
  std::memcpy(segment, kSegment, sizeof(kSegment));
  segment[kDctAdobeNbytes - 1] = static_cast<uint8_t>(transform);
}

size_t dct_synthesise_header(const DctImage& image, uint8_t* header) {
  constexpr uint8_t kSoi[] = {0xFF, 0xD8};
  constexpr uint8_t kEoi[] = {0xFF, 0xD9};
  uint8_t* at = put(header, kSoi, sizeof(kSoi));
  if (image.jfif) {
    dct_jfif_segment(at);
    at += kDctJfifNbytes;
  }
  if (image.adobe) {
    dct_adobe_segment(image.adobe_transform, at);
    at += kDctAdobeNbytes;
  }
  for (int c = 0; c < image.components; c++)
    if (quant_slot(image, c) == c) at = put_quant(at, image.component[c].quant, c);
  const uint8_t sof[] = {0xFF, 0xC0};
  at = put(at, sof, sizeof(sof));
  at = put16(at, 8 + 3 * image.components);
  *at++ = 8;
  at = put16(at, image.height);
  at = put16(at, image.width);
  *at++ = static_cast<uint8_t>(image.components);
  for (int c = 0; c < image.components; c++) {
    *at++ = image.component[c].id;
    *at++ = static_cast<uint8_t>(image.component[c].h << 4 | image.component[c].v);
    *at++ = static_cast<uint8_t>(quant_slot(image, c));
  }
  // One code in each Huffman table: libjpeg requires tables and derives others from them, which the hook
  // never uses. A code of 16 bits costs it least, because it fills no entry of the 8-bit look-up table.
  for (int is_ac = 0; is_ac < 2; is_ac++) {
    uint8_t dht[22] = {0xFF, 0xC4, 0, 20, static_cast<uint8_t>(is_ac << 4)};
    dht[5 + 15] = 1;
    at = put(at, dht, sizeof(dht));
  }
  const uint8_t sos[] = {0xFF, 0xDA};
  at = put(at, sos, sizeof(sos));
  at = put16(at, 6 + 2 * image.components);
  *at++ = static_cast<uint8_t>(image.components);
  for (int c = 0; c < image.components; c++) {
    *at++ = image.component[c].id;
    *at++ = 0;
  }
  *at++ = 0;
  *at++ = 63;
  *at++ = 0;
  at = put(at, kEoi, sizeof(kEoi));
  return static_cast<size_t>(at - header);
}

}  // namespace fastload
