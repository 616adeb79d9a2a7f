// Constants of the inverse DCT, shared by its kernels.
//
// Source: C. Loeffler, A. Ligtenberg, G. Moschytz, "Practical fast 1-D DCT algorithms with 11
// multiplications", ICASSP 1989, in 13-bit fixed point; which products are combined is libjpeg-turbo's choice
// (jpeg/idct.h).
#pragma once

namespace fastload::idct {

constexpr int kConstBits = 13;
constexpr int kPass1Bits = 2;  // fraction bits that the first pass (columns) keeps for the second (rows)
constexpr int kShift1 = kConstBits - kPass1Bits;
constexpr int kShift2 = kConstBits + kPass1Bits + 3;

// Each output of an odd or even half is a sum of products of two 16-bit words (or sums of words):
// a * first + b * second.
struct Pair {
  int first, second;
};

// For words 2 and 6.
constexpr Pair kEven3 = {4433 + 6270, 4433};
constexpr Pair kEven2 = {4433, 4433 - 15137};

// For the sums 7 + 3 and 5 + 1.
constexpr Pair kOddSum3 = {9633 - 16069, 9633};
constexpr Pair kOddSum4 = {9633, 9633 - 3196};

// For words 7 and 1.
constexpr Pair kOdd0 = {2446 - 7373, -7373};
constexpr Pair kOdd3 = {-7373, 12299 - 7373};

// For words 3 and 5.
constexpr Pair kOdd1 = {-20995, 16819 - 20995};
constexpr Pair kOdd2 = {25172 - 20995, -20995};

}  // namespace fastload::idct
