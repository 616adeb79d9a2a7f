// Packs and expands blocks of DCT records, sound and damaged ones, with every instruction set of this
// machine, and compares each with the portable code: the same bytes, results and coefficients, and no read
// outside the data. A program without Python and libjpeg, so that code for another processor can be tested in
// an emulator (CONTRIBUTING.md, "Other processors"). tests/native/test_expand.py compiles and runs it.
//
//   expand [rounds [seed]]
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/simd.h"
#include "dct/block.h"
#include "dct/expand.h"
#include "dct/pack.h"

namespace {

using fastload::DctCursor;
using fastload::DctExpander;
using fastload::Simd;

constexpr int kBlocks = 6;  // an MCU of 4:2:0
constexpr int kComponent[kBlocks] = {0, 0, 0, 0, 1, 2};

struct Random {
  std::mt19937_64 engine;
  // 0 to n - 1.
  int below(int n) { return static_cast<int>(engine() % static_cast<uint64_t>(n)); }
};

// MappedArray whose last byte is followed by a page that must not be touched.
class Edge {
 public:
  Edge() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    room_ = page;
    void* at = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(static_cast<char*>(at) + page, page, PROT_NONE) != 0) std::abort();
    end_ = static_cast<uint8_t*>(at) + page;
  }
  // Copies bytes to the end of the page.
  const uint8_t* put(const std::vector<uint8_t>& bytes) {
    if (bytes.size() > room_) std::abort();
    if (!bytes.empty()) std::memcpy(end_ - bytes.size(), bytes.data(), bytes.size());
    return end_ - bytes.size();
  }
  const uint8_t* end() const { return end_; }

 private:
  uint8_t* end_;
  size_t room_;
};

int coefficient(Random* random) {
  const int most = 1 << random->below(11);
  const int value = random->below(2 * most + 1) - most;
  return value < -1023 ? -1023 : value > 1023 ? 1023 : value;
}

// Packs a block with the portable and the fastest packer. nullptr: it cannot be packed.
uint8_t* pack(const JCOEF* zigzag, int16_t* prediction, uint8_t* out) {
  uint8_t again[fastload::kDctPackedRoom];
  int16_t before = *prediction;
  uint8_t* const end = fastload::dct_pack_block(zigzag, prediction, out);
  const uint8_t* const other = fastload::dct_packer()(zigzag, &before, again);
  const bool same =
      end ? other && other - again == end - out && std::memcmp(out, again, end - out) == 0 : !other;
  if (!same) {
    std::printf("a block is packed in two ways\n");
    std::exit(1);
  }
  return end;
}

// The blocks of an MCU as an encoder packs them: some empty, some full, with values of all sizes.
std::vector<uint8_t> sound(Random* random) {
  std::vector<uint8_t> bytes(kBlocks * fastload::kDctPackedRoom);
  int16_t prediction[3] = {};
  uint8_t* end = bytes.data();
  for (int b = 0; b < kBlocks; b++) {
    JCOEF zigzag[64] = {};
    const int density = random->below(65), reach = 1 + random->below(64), small = 1 + random->below(20);
    zigzag[0] = static_cast<JCOEF>(coefficient(random));
    for (int k = 1; k < reach; k++) {
      if (random->below(64) >= density) continue;
      const bool large = random->below(8) == 0;
      zigzag[k] = static_cast<JCOEF>(large ? coefficient(random) : random->below(2 * small + 1) - small);
    }
    end = pack(zigzag, &prediction[kComponent[b]], end);
    if (!end) std::abort();
    if (random->below(16)) continue;
    zigzag[random->below(64)] = random->below(2) ? 1024 : -1025;
    if (pack(zigzag, &prediction[kComponent[b]], end)) std::abort();
  }
  bytes.resize(static_cast<size_t>(end - bytes.data()));
  return bytes;
}

std::vector<uint8_t> hostile(Random* random) {
  std::vector<uint8_t> bytes;
  if (random->below(2)) {
    bytes.resize(static_cast<size_t>(random->below(600)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random->below(256));
    return bytes;
  }
  bytes = sound(random);
  const int size = static_cast<int>(bytes.size());
  for (int changes = 1 + random->below(4); changes > 0; changes--)
    bytes[static_cast<size_t>(random->below(size))] = static_cast<uint8_t>(random->below(256));
  if (random->below(2)) bytes.resize(static_cast<size_t>(random->below(size)));
  return bytes;
}

struct Other {
  const char* name;
  const DctExpander* expander;
};

struct Result {
  bool accepted, skipped;
  ptrdiff_t nbytes, skipped_nbytes;
  int16_t prediction[3];
  JBLOCK blocks[kBlocks];
};

Result expand(const DctExpander& expander, const uint8_t* at, const uint8_t* end) {
  Result result;
  std::memset(&result, 0, sizeof(result));
  JBLOCKROW blocks[kBlocks];
  for (int b = 0; b < kBlocks; b++) blocks[b] = &result.blocks[b];
  DctCursor cursor{at, end, {0, 0, 0}};
  result.accepted = expander.expand(&cursor, kComponent, kBlocks, blocks);
  DctCursor skipper{at, end, {0, 0, 0}};
  result.skipped = expander.skip(&skipper, kComponent, kBlocks);
  if (result.skipped) result.skipped_nbytes = skipper.at - at;
  if (result.accepted) {
    result.nbytes = cursor.at - at;
    std::memcpy(result.prediction, cursor.prediction, sizeof(result.prediction));
  } else {
    std::memset(result.blocks, 0, sizeof(result.blocks));  // in any state
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200000;
  Random random{std::mt19937_64(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1)};
  std::vector<Other> others;
  for (const Simd simd : {Simd::kNeon, Simd::kAvx2, Simd::kAvx512}) {
    if (!fastload::set_simd(fastload::simd_name(simd))) continue;
    others.push_back({fastload::simd_name(simd), &fastload::dct_expander()});
  }
  Edge edge;
  int accepted = 0;
  for (int round = 0; round < rounds; round++) {
    const bool whole = random.below(2);
    const std::vector<uint8_t> bytes = whole ? sound(&random) : hostile(&random);
    const uint8_t* at = edge.put(bytes);
    const Result expected = expand(fastload::dct_expander_scalar(), at, edge.end());
    if (whole && (!expected.accepted || expected.nbytes != static_cast<ptrdiff_t>(bytes.size()))) {
      std::printf("round %d: valid blocks are refused\n", round);
      return 1;
    }
    accepted += expected.accepted;
    for (const Other& other : others) {
      const Result found = expand(*other.expander, at, edge.end());
      if (std::memcmp(&expected, &found, sizeof(found)) != 0) {
        std::printf("round %d: %s differs\n", round, other.name);
        return 1;
      }
    }
  }
  std::printf("%d MCUs, %d of them accepted, the same in: scalar", rounds, accepted);
  for (const Other& other : others) std::printf(" %s", other.name);
  std::printf("\n");
  return 0;
}
